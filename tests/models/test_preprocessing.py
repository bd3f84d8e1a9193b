"""Preprocessing inside a network: the same pixels as Pillow's resizing and the code base's own functions."""

import keras
import numpy as np
import pytest
from PIL import Image

from keras_preact import InputError
from keras_preact.interop import load_keras_applications
from keras_preact.models import Preprocessing, cifar_resnet, imagenet_resnet, load_model, with_preprocessing
from keras_preact.models.profiles import PROFILES

VARIANTS = {
    "paper": Preprocessing(),
    "timm": PROFILES["timm"].imagenet.inputs,
    "keras_applications, V1": PROFILES["keras_applications"].imagenet_original.inputs,
}


def small(**options):
    return imagenet_resnet(18, "original", **{"input_shape": (64, 64, 3), "classes": 3, **options})


def slope(height, width):
    """A picture whose red channel is the row and whose green channel is the column."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = [rows * 255 / height, columns * 255 / width, 0 * rows]
    return np.stack(channels, axis=-1).round().astype("uint8")


def by_pillow(image, how, size):
    """Return the pixels as torchvision and timm prepare them, from 0 to 255."""
    picture = Image.fromarray(image)
    scale = round(size * how.resize / how.crop) / min(picture.size)
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[how.interpolation]
    picture = picture.resize([round(side * scale) for side in picture.size], method)
    left, top = (round((side - size) / 2) for side in picture.size)
    return np.asarray(picture.crop((left, top, left + size, top + size)), "float32")


def prepared(model, images):
    """Return what the last layer, the network, receives."""
    return keras.Model(model.input, model.layers[-2].output).predict_on_batch(images)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shape", [(150, 100), (100, 150), (73, 73), (60, 90)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_pixels_are_those_of_pillow(variant, shape):
    how, image = VARIANTS[variant], slope(*shape)
    (found,) = prepared(with_preprocessing(small(), how), image[None])
    pixels = found * np.array(how.deviation) + np.array(how.mean)
    if how.bgr:
        pixels = pixels[..., ::-1]
    expected = by_pillow(image, how, 64)
    # Pillow rounds to whole numbers, and the center of the long side to whole pixels.
    assert np.abs(pixels - expected).max() <= 2 * 255 / min(shape) + 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["ResNet50", "ResNet50V2"])
def test_the_outputs_are_those_of_keras_applications_on_its_own_preprocessing(name):
    theirs = getattr(keras.applications, name)(weights=None, include_top=False, pooling="avg", input_shape=(64, 64, 3))
    module = keras.applications.resnet_v2 if name.endswith("V2") else keras.applications.resnet
    images = np.random.default_rng(0).integers(0, 256, (2, 73, 73, 3)).astype("uint8")
    inputs = module.preprocess_input(images[:, 4:68, 4:68].astype("float32"))
    ours = load_keras_applications(theirs, preprocessing=True)
    expected = theirs.predict_on_batch(inputs)
    np.testing.assert_allclose(ours.predict_on_batch(images), expected, atol=1e-4 * np.abs(expected).max())


def test_images_of_any_size_and_files(tmp_path):
    network = small()
    model = with_preprocessing(network)
    assert model.input.dtype == "uint8" and model.input_shape == (None, None, None, 3)
    assert {id(v) for v in network.weights} <= {id(v) for v in model.weights}
    model.save(tmp_path / "model.keras")
    again = load_model(tmp_path / "model.keras")
    for shape in ((80, 120), (300, 70)):
        image = slope(*shape)[None]
        np.testing.assert_allclose(again.predict_on_batch(image), model.predict_on_batch(image), atol=1e-5)


def test_pixels_scaled_to_1_are_refused_and_not_taken_for_black():
    with pytest.raises(ValueError, match="expected dtype=uint8, found dtype=float"):
        with_preprocessing(small()).predict(slope(80, 120)[None] / 255, verbose=0)


def test_channels_first():
    model = with_preprocessing(small(data_format="channels_first", input_shape=(3, 64, 64)))
    last = with_preprocessing(small())
    image = slope(80, 120)[None]
    np.testing.assert_allclose(prepared(model, image), prepared(last, image).transpose(0, 3, 1, 2), atol=1e-5)


def test_the_preprocessing_is_in_float32_in_mixed_precision():
    model = with_preprocessing(small(dtype="mixed_bfloat16"))
    assert prepared(model, slope(80, 120)[None]).dtype == np.float32


@pytest.mark.parametrize(
    ("build", "profile", "says"),
    [
        (small, "pytorch_cifar", "the preprocessing of pytorch_cifar depends on the data; pass a Preprocessing"),
        (small, "caffe", "unknown profile 'caffe'"),
        (lambda: small(include_top=False, input_shape=(None, None, 3)), "paper", "build the network for square images"),
        (lambda: small(input_shape=(64, 96, 3)), "paper", "build the network for square images"),
        (lambda: small(input_shape=(64, 64, 1)), "paper", "build the network for RGB images"),
        (lambda: keras.Sequential([keras.Input((64, 64, 3))]), "paper", "no residual units; pass a Preprocessing"),
    ],
)
def test_what_is_not_known_is_refused(build, profile, says):
    with pytest.raises(InputError, match=says):
        with_preprocessing(build(), profile)


def test_a_cifar_network_with_a_preprocessing_of_its_own():
    how = Preprocessing(32, 32, mean=(125.3, 123.0, 113.9), deviation=(63.0, 62.1, 66.7))
    found = prepared(with_preprocessing(cifar_resnet(8), how), slope(32, 32)[None])
    np.testing.assert_allclose(found, (slope(32, 32)[None] - np.array(how.mean)) / np.array(how.deviation), atol=1e-5)


def test_the_loss_scale_of_mixed_precision_stays():
    model = with_preprocessing(small(dtype="mixed_float16"))
    model.compile("sgd", "mse")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
