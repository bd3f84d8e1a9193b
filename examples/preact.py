"""A pre-activation ResNet for CIFAR-10 in one file of plain Keras 3, with its training.

He, Zhang, Ren and Sun, "Identity Mappings in Deep Residual Networks", 2016, https://arxiv.org/abs/1603.05027.

    python examples/preact.py --steps 20              # see the loss fall: seconds on two cores
    python examples/preact.py --steps 2000            # a ResNet-20 learns something: minutes
    python examples/preact.py --depth 110             # the paper's ResNet-110 and schedule: use a GPU

Keras downloads CIFAR-10 (170 MB) the first time. `--data cifar10.npz` reads the arrays x_train, y_train, x_test and
y_test from a file instead. The file runs on every backend: KERAS_BACKEND=jax python examples/preact.py --steps 20.
"""

import argparse

import keras
import numpy as np
from keras import layers

# ---- the network ---------------------------------------------------------------------------------------------------


def preactivate(x):
    """BN, then ReLU. The paper's code has epsilon 1e-5; Keras's default is 1e-3."""
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x))


def conv(x, filters, size=3, stride=1):
    """A convolution without bias, He-initialized by fan-out, padded equally on all sides."""
    if stride > 1 and size > 1:  # Keras's "same" would pad the right and the bottom only
        x = layers.ZeroPadding2D(size // 2)(x)
    padding = "valid" if stride > 1 else "same"
    he = keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="untruncated_normal")
    return layers.Conv2D(filters, size, stride, padding, use_bias=False, kernel_initializer=he)(x)


def unit(x, filters, stride, first):
    """x + F(x), where F is BN, ReLU, conv, BN, ReLU, conv: Fig. 4(e) of the paper."""
    activated = preactivate(x)
    if first:  # the first unit of the network: the activation comes before the split, on both paths
        shortcut = activated
    elif x.shape[-1] != filters:  # a unit that changes the shape projects the activated signal
        shortcut = conv(activated, filters, 1, stride)
    else:  # all other units: the shortcut is x itself, not the activated signal
        shortcut = x
    branch = conv(activated, filters, 3, stride)
    branch = conv(preactivate(branch), filters)
    return layers.Add()([shortcut, branch])  # and nothing after the addition


def resnet(depth=20, classes=10, size=32):
    """ResNet-(6n+2): a convolution, three stages of n units, BN and ReLU, pooling, classifier. Returns logits."""
    n, rest = divmod(depth - 2, 6)
    if n < 1 or rest:
        raise SystemExit(f"depth {depth} is not 6n + 2; try 20, 32, 44, 56 or 110")
    images = keras.Input((size, size, 3))
    x = conv(images, 16)
    for stage, filters in enumerate((16, 32, 64)):
        for k in range(n):
            x = unit(x, filters, stride=2 if stage > 0 and k == 0 else 1, first=stage == k == 0)
    x = preactivate(x)  # the last addition has no activation of its own
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, layers.Dense(classes)(x), name=f"preact{depth}")


# ---- the training --------------------------------------------------------------------------------------------------


class SGD(keras.optimizers.SGD):
    """SGD whose weight decay is part of the gradient, as in the paper. (Keras's own bypasses the momentum.)"""

    decay = 1e-4

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient + self.decay * variable, variable, learning_rate)


def schedule(steps, rate=0.1):
    """Warm-up at a tenth of the rate, then the rate, divided by 10 after half and after three quarters of the steps."""
    boundaries = [min(400, steps // 10), steps // 2, 3 * steps // 4]
    rates = [rate / 10, rate, rate / 10, rate / 100]
    return keras.optimizers.schedules.PiecewiseConstantDecay([b - 1 for b in boundaries], rates)


def compiled(model, steps, rate=0.1):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(SGD(schedule(steps, rate), momentum=0.9), loss, metrics=["accuracy"])
    return model


def augment(images, rng, pad=4):
    """Pad with zeros, crop to the old size at a random place, flip left to right half of the time."""
    count, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    cropped = np.empty_like(images)
    for i, (top, left, flip) in enumerate(rng.integers(0, (2 * pad + 1, 2 * pad + 1, 2), (count, 3))):
        crop = padded[i, top : top + height, left : left + width]
        cropped[i] = crop[:, ::-1] if flip else crop
    return cropped


def train(model, images, labels, steps, batch_size=128, seed=0, report=100):
    """Train for a number of steps; return the mean loss of every `report` steps."""
    rng, losses, recent, order = np.random.default_rng(seed), [], [], np.empty(0, int)
    for step in range(1, steps + 1):
        if len(order) < batch_size:
            order = rng.permutation(len(images))  # a new epoch
        batch, order = order[:batch_size], order[batch_size:]
        model.reset_metrics()  # so that the next line returns loss and accuracy of this batch
        recent.append(model.train_on_batch(augment(images[batch], rng), labels[batch]))
        if step % report == 0 or step == steps:
            loss, accuracy = np.mean(recent, axis=0)
            losses.append(float(loss))
            recent.clear()
            error = 100 * (1 - accuracy)
            print(f"step {step:6,}   training loss {loss:.3f}   training error {error:.1f} %", flush=True)
    return losses


def load(path=None):
    """Return training images, labels, test images and labels, with the mean training image subtracted."""
    if path:
        with np.load(path) as file:
            x_train, y_train, x_test, y_test = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    else:
        (x_train, y_train), (x_test, y_test) = keras.datasets.cifar10.load_data()
    mean = x_train.mean(axis=0)
    x_train, x_test = (((x - mean) / 255).astype("float32") for x in (x_train, x_test))
    return x_train, y_train.reshape(-1), x_test, y_test.reshape(-1)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=20, help="6n + 2: 20, 32, 44, 56, 110 (default 20)")
    parser.add_argument("--steps", type=int, default=64_000, help="mini-batches of 128 (default 64,000, the paper's)")
    parser.add_argument("--data", help="an .npz file instead of a download")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    keras.utils.set_random_seed(options.seed)
    x_train, y_train, x_test, y_test = load(options.data)
    model = compiled(resnet(options.depth, int(y_train.max()) + 1, x_train.shape[1]), options.steps)
    train(model, x_train, y_train, options.steps, seed=options.seed, report=max(1, min(100, options.steps // 4)))
    _, accuracy = model.evaluate(x_test, y_test, batch_size=500, verbose=0)
    print(f"test error after the last step: {100 * (1 - accuracy):.2f} %")


if __name__ == "__main__":
    main()
