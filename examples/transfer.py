"""Teach a trained pre-activation ResNet the classes of a folder of images.

    python examples/transfer.py FOLDER [--epochs 20]

FOLDER holds one subfolder of images per class. The network was trained on five classes of CIFAR-10; a new layer on its
features learns yours. Everything but `pretrained` is plain Keras and tf.data.
"""

import argparse

import keras
import tensorflow as tf

from keras_preact.models import pretrained, require_uint8


def load(folder, size, subset):
    """Return batches of uint8 images and labels: 80 % of the images for training, the others for validation."""
    batches = keras.utils.image_dataset_from_directory(
        folder, image_size=(size, size), validation_split=0.2, subset=subset, seed=0, verbose=False
    )
    names = batches.class_names
    return batches.map(lambda images, labels: (tf.cast(images, tf.uint8), labels)).prefetch(2), names


def build(classes):
    """Return a network for new classes: the features of a trained network, frozen, and a new layer."""
    trained = pretrained("resnet20-preact-cifar10-5classes")
    trained.trainable = False
    features = trained.get_layer("logits").input
    network = keras.Model(trained.input, keras.layers.Dense(classes, name="classes")(features))
    return require_uint8(network)  # pixels divided by 255 would all become 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()

    keras.utils.set_random_seed(0)
    training, names = load(arguments.folder, 32, "training")
    validation, _ = load(arguments.folder, 32, "validation")
    network = build(len(names))
    network.compile(
        keras.optimizers.Adam(3e-3), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    network.fit(training, validation_data=validation, epochs=arguments.epochs, verbose=2)
    accuracy = network.evaluate(validation, verbose=0)[1]
    print(f"validation accuracy {accuracy:.1%} on {len(names)} classes: {', '.join(names)}")


if __name__ == "__main__":
    main()
