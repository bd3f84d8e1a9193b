"""A custom shortcut and a custom placement: what do they do to the identity path, and do they train?

    python examples/custom_unit.py [--steps 60]

`Leaky` scales the shortcut by a learned factor that begins at 0.9. `norm_last` is full pre-activation with one more
batch norm at the end of the branch. The program measures both before training and trains them on bundled images.
"""

import argparse

import keras
import numpy as np

from keras_preact.analysis import check_identity_path, forward_signal
from keras_preact.data import load_dataset
from keras_preact.layers import Placement, Shortcut
from keras_preact.models import cifar_resnet


@keras.saving.register_keras_serializable("examples")
class Leaky(Shortcut):
    """h(x) = λx with a learned λ."""

    def build(self, x_shape, residual_shape):
        self.factor = self.add_weight(shape=(), initializer=keras.initializers.Constant(0.9), name="factor")
        super().build(x_shape, residual_shape)

    def call(self, x, residual):
        return keras.ops.cast(self.factor, x.dtype) * x + residual


NORM_LAST = Placement("norm_last", "none", first=("norm", "relu"), last=("norm",))
NETWORKS = {
    "full pre-activation": {},
    "leaky shortcut": {"shortcut": Leaky()},
    "norm at the end": {"placement": NORM_LAST},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps

    images, labels = load_dataset("bundled", image_size=16).train.batch(np.arange(4000))
    images = (images.astype("float32") - images.mean()) / images.std()
    for name, options in NETWORKS.items():
        keras.utils.set_random_seed(0)
        network = cifar_resnet(56, input_shape=(16, 16, 3), rolled=False, **options)
        units = check_identity_path(network).units
        clear = sum(not unit.faults for unit in units)
        variances = [signal.x.variance for signal in forward_signal(network, images[:64])]
        network.compile(
            keras.optimizers.SGD(0.05, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        rows = np.arange(64 * steps) % len(images)  # after 62 steps, the images come again
        history = network.fit(images[rows], labels[rows], batch_size=64, verbose=0)
        print(
            f"{name:20} units with a clear identity path: {clear:2} of {len(units)}; "
            f"variance from {variances[0]:.1f} to {variances[-1]:.1f}; "
            f"mean loss of {steps} steps: {history.history['loss'][-1]:.2f}"
        )


if __name__ == "__main__":
    main()
