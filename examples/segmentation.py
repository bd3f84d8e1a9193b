"""Segment images with a pre-activation backbone: a small head on its feature maps.

    python examples/segmentation.py [--steps 200]

The images are bright discs on noise. The head brings the maps of all stages to the resolution of the first and
classifies every pixel. The maps of a pre-activation network are sums that nothing has normalized, so each passes a
`PreActivation` before its convolution.
"""

import argparse

import keras
import numpy as np

from keras_preact.layers import PreActivation
from keras_preact.models import cifar_resnet, feature_maps


def draw(count, size=32, seed=0):
    """Return uint8 images (count, size, size, 3) and masks (count, size, size) of discs."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size]
    center, radius = random.uniform(8, size - 8, (2, count, 1, 1)), random.uniform(4, 8, (count, 1, 1))
    masks = (rows - center[0]) ** 2 + (columns - center[1]) ** 2 < radius**2
    noise = random.integers(0, 160, (count, size, size, 3))
    return (noise + 80 * masks[..., None]).astype("uint8"), masks.astype("int32")


def build(size=32):
    """Return a network from images to the logit of every pixel."""
    images = keras.Input((size, size, 3))
    scaled = keras.layers.Rescaling(1 / 64, offset=-2)(images)
    maps = feature_maps(cifar_resnet(20, include_top=False, input_tensor=scaled))
    levels = []
    for name, stage in maps.output.items():
        x = keras.layers.Conv2D(16, 1, name=f"{name}_lateral")(PreActivation(name=f"{name}_preact")(stage))
        levels.append(keras.layers.UpSampling2D(size // x.shape[1], interpolation="bilinear")(x))
    x = keras.layers.Add()(levels)
    return keras.Model(images, keras.layers.Conv2D(1, 3, padding="same", name="pixels")(x))


def overlap(network, images, masks):
    """Return the intersection over union of the predicted discs."""
    predicted = network.predict(images, verbose=0)[..., 0] > 0
    return np.sum(predicted & (masks == 1)) / np.sum(predicted | (masks == 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps

    keras.utils.set_random_seed(0)
    network = build()
    network.compile(keras.optimizers.Adam(2e-3), keras.losses.BinaryCrossentropy(from_logits=True))
    images, masks = draw(16 * steps)
    network.fit(images, masks[..., None], batch_size=16, epochs=1, verbose=2)
    print(f"intersection over union on new images: {overlap(network, *draw(64, seed=1)):.2f}")


if __name__ == "__main__":
    main()
