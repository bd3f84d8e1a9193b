"""Arrays, folders, the bundled images, and what is refused."""

import copy
import hashlib
import pickle

import numpy as np
import pytest
from PIL import Image

from keras_preact import InputError
from keras_preact.data import ArraySplit, bundled_cifar10, from_arrays, from_folder, load_dataset


def pixels(count, size=8):
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3)).astype("uint8")


# ---- bundled ---------------------------------------------------------------------------------------------------------


def test_bundled_images_are_the_first_of_each_class_of_cifar10():
    """SHA-256 of images and labels, taken from the whole CIFAR-10 when the subset was made."""
    data = bundled_cifar10()

    def digest(split):
        return hashlib.sha256(split.images.tobytes() + split.labels.astype("uint8").tobytes()).hexdigest()

    assert digest(data.train) == "c65a8e17914f8d30740c538461b87e2cd2199e251a68f826d89a9b1b377a892c"
    assert digest(data.test) == "2d34d5dc5491f71e1de575ecdfc7287f543e2c8ae81278990a0dba0f0af2d57d"


def test_bundled_classes_are_balanced_and_named():
    data = bundled_cifar10()
    assert np.bincount(data.train.labels).tolist() == [400] * 10
    assert np.bincount(data.test.labels).tolist() == [100] * 10
    assert data.class_names[3] == "cat"


def test_no_test_image_is_a_training_image():
    data = bundled_cifar10()
    training = {image.tobytes() for image in data.train.images}
    assert not any(image.tobytes() in training for image in data.test.images)


def test_the_bundle_is_small():
    from pathlib import Path

    import keras_preact.data

    folder = Path(keras_preact.data.__file__).parent / "bundled"
    assert sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) <= 12e6
    assert (folder / "README.md").is_file()


# ---- arrays ----------------------------------------------------------------------------------------------------------


def test_arrays():
    data = from_arrays(pixels(6), [0, 1, 2] * 2, pixels(3), [[0], [1], [2]], class_names=["a", "b", "c"])
    assert (data.classes, data.image_shape, len(data.train), len(data.test)) == (3, (8, 8, 3), 6, 3)
    np.testing.assert_allclose(data.train.mean(), pixels(6).mean(0), rtol=1e-6)


def test_the_fingerprint_tells_data_apart():
    x, y = pixels(4), np.array([0, 1, 0, 1])
    base = from_arrays(x, y, x, y).fingerprint()
    assert from_arrays(x.copy(), y.copy(), x, y).fingerprint() == base
    assert from_arrays(x, 1 - y, x, y).fingerprint() != base
    assert from_arrays(255 - x, y, x, y).fingerprint() != base
    assert from_arrays(x, y, 255 - x, y).fingerprint() != base


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": pixels(4).astype("float32")}, "dtype float32 are not uint8; give pixels from 0 to 255"),
        ({"x_train": pixels(4)[0]}, "are not \\(number, height, width, channels\\)"),
        ({"y_train": [0, 1, 0]}, "4 images have 3 labels"),
        ({"y_test": [0, 2, 0, 1]}, "a test label of arrays is 2, but its 2 classes are numbered 0 to 1"),
        ({"y_train": [0, 1, -1, 1]}, "a training label of arrays is -1"),
        ({"x_test": pixels(4, 9)}, "test images \\(9, 9, 3\\); bring them to one shape"),
        ({"y_train": [0, 0, 0, 0], "class_names": ["a", "b"]}, "the class b of arrays has no training image"),
        ({"y_train": [0] * 4, "y_test": [0] * 4}, "takes at least 2"),
        ({"x_test": pixels(0), "y_test": np.zeros(0, int)}, "has no test images"),
    ],
)
def test_bad_arrays_are_refused_with_a_sentence(change, message):
    good = {"x_train": pixels(4), "y_train": [0, 1, 0, 1], "x_test": pixels(4), "y_test": [0, 1, 0, 1]}
    with pytest.raises(InputError, match=message):
        from_arrays(**{**good, **change})


# ---- folders ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    for split, count in (("train", 3), ("val", 2)):
        for number, name in enumerate(("cats", "dogs")):
            (tmp_path / split / name).mkdir(parents=True)
            for k in range(count):
                image = np.full((20, 30, 3), 100 * number + k, "uint8")
                Image.fromarray(image).save(tmp_path / split / name / f"{k}.png")
    return tmp_path


def test_a_folder_of_class_folders(folder):
    data = from_folder(folder, image_size=16)
    assert (data.class_names, data.image_shape) == (("cats", "dogs"), (16, 16, 3))
    images, labels = data.train.batch(np.arange(6))
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert images[:, 3, 4, 1].tolist() == [0, 1, 2, 100, 101, 102]


def test_a_folder_can_be_copied_and_pickled(folder):
    data = from_folder(folder, image_size=16)
    images, _ = data.train.batch(np.arange(6))
    for other in (copy.deepcopy(data), copy.copy(data.train), pickle.loads(pickle.dumps(data))):
        split = getattr(other, "train", other)
        np.testing.assert_array_equal(split.batch(np.arange(6))[0], images)


def test_a_folders_images_are_cut_to_other_squares(folder):
    Image.fromarray(np.arange(600, dtype="uint8").reshape(20, 30)).save(folder / "val" / "cats" / "0.png")
    test = from_folder(folder, image_size=16).test
    whole, part = test.at(20, short_side=20).batch(np.arange(1))[0], test.at(10, short_side=20).batch(np.arange(1))[0]
    np.testing.assert_array_equal(whole[:, 5:15, 5:15], part)
    np.testing.assert_array_equal(test.at(16).batch(np.arange(4))[0], test.batch(np.arange(4))[0])
    with pytest.raises(InputError, match="not in an image whose short side is 12"):
        test.at(16, short_side=12)


@pytest.mark.parametrize(("before", "after"), [(32, 16), (24, 8), (32, 24), (17, 9)])
def test_images_in_memory_are_averaged_down(before, after):
    """Against the mean over every area, by repeating each pixel until the areas have whole numbers of them."""
    images = pixels(2, before)
    fine = np.repeat(np.repeat(images.astype("float64"), after, 1), after, 2)
    means = fine.reshape(2, after, before, after, before, 3).mean((2, 4))
    found = ArraySplit(images, [0, 1]).at(after)
    assert found.image_shape == (after, after, 3)
    assert np.abs(found.images - means).max() <= 0.5 + 1e-4  # to the nearest whole number


def test_a_folder_of_images_of_one_size_is_averaged_down_like_arrays(tmp_path):
    images = pixels(4, 32)
    for k, image in enumerate(images):
        for split in ("train", "test"):
            path = tmp_path / split / "ab"[k % 2] / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    found = from_folder(tmp_path, image_size=16).train.batch(np.arange(4))[0]
    expected = ArraySplit(images[[0, 2, 1, 3]], [0, 0, 1, 1]).at(16).images
    assert np.abs(found.astype(int) - expected).max() <= 1  # Pillow rounds after each direction


def test_sizes_that_images_in_memory_cannot_have():
    split = ArraySplit(pixels(2, 16), [0, 1])
    assert split.at(16) is split
    for size in (7, 17):
        with pytest.raises(InputError, match=f"give an image size from 8 to 16 pixels, not {size}"):
            split.at(size)
    with pytest.raises(InputError, match="none is cropped; leave out the short side"):
        split.at(8, short_side=12)
    with pytest.raises(InputError, match="the images are 8×16, not square; leave out the image size"):
        ArraySplit(np.zeros((2, 8, 16, 3), "uint8"), [0, 1]).at(8)


def test_some_classes_at_another_size():
    small = bundled_cifar10().only(["cat", "dog"]).at(16)
    assert small.image_shape == small.test.image_shape == (16, 16, 3)
    np.testing.assert_array_equal(small.train.labels, bundled_cifar10().only(["cat", "dog"]).train.labels)
    assert small.fingerprint() != load_dataset("bundled", image_size=16).fingerprint()


def test_moments_of_the_channels_are_numpys():
    images = np.random.default_rng(2).integers(0, 256, (1100, 3, 4, 3)).astype("uint8")
    images[..., 1] = 7
    mean, deviation = ArraySplit(images, np.zeros(1100, int)).channel_moments()
    np.testing.assert_allclose(mean, images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(deviation, images.std((0, 1, 2)), rtol=1e-5)


def test_grey_and_transparent_images_become_rgb(folder):
    Image.fromarray(np.full((40, 40), 7, "uint8")).save(folder / "train" / "cats" / "grey.png")
    Image.fromarray(np.full((40, 40, 4), 7, "uint8")).save(folder / "train" / "cats" / "transparent.png")
    images, _ = from_folder(folder).train.batch(np.arange(5))
    assert images.shape == (5, 32, 32, 3)


@pytest.mark.parametrize("file", ["deep.png", "deep.tif", "float.tif"])
def test_an_image_of_more_than_8_bits_is_refused_not_cut_off_at_255(folder, file):
    pixels = np.arange(0, 65536, 41).reshape(41, 39).astype("float32" if "float" in file else "uint16")
    Image.fromarray(pixels).save(folder / "train" / "cats" / file)
    with pytest.raises(InputError, match=f"cats/{file} has pixels of more than 8 bits .*; scale them to 0 to 255"):
        from_folder(folder).train.batch(np.arange(5))
    assert from_folder(folder, skip_corrupt=True).skipped == (f"train/cats/{file}",)


ORIENTATION = 0x0112


def turned_by_exif(upright, orientation):
    """Return an image as a camera stores it that says of it, by an EXIF orientation of 1 to 8, how it is shown."""
    turn = Image.Transpose
    stored = {2: [turn.FLIP_LEFT_RIGHT], 3: [turn.ROTATE_180], 4: [turn.FLIP_TOP_BOTTOM], 5: [turn.TRANSPOSE]}
    stored |= {6: [turn.ROTATE_90], 7: [turn.TRANSVERSE], 8: [turn.ROTATE_270]}
    for step in stored.get(orientation, []):
        upright = upright.transpose(step)
    return upright


@pytest.mark.parametrize("ending", ["png", "jpg", "webp", "tif"])
def test_images_are_turned_as_their_exif_orientation_says(folder, ending):
    """All eight orientations are the same picture, a dark corner on a light ground."""
    pixels = np.full((40, 60, 3), 200, "uint8")
    pixels[:15, :25] = 10
    expected = None
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        options = {} if ending == "tif" else {"quality": 100}
        stored = turned_by_exif(Image.fromarray(pixels), orientation)
        stored.save(folder / "train" / "cats" / f"-first.{ending}", exif=exif, **options)
        image = from_folder(folder).train.batch(np.arange(1))[0][0].astype(int)
        expected = image if expected is None else expected
        assert image.shape == (32, 32, 3) and np.abs(image - expected).max() < 60, orientation
        assert image[0, 0].max() < 40 and image[-1, -1].min() > 160 and image[-1, 0].min() > 160, orientation


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0II*\0" + b"\xff" * 40, b"\0" * 30, b"Exif\0\0MM\0*\0\0"])
def test_damaged_exif_tags_leave_the_image_as_it_is_stored(folder, exif):
    Image.fromarray(np.full((40, 60, 3), 200, "uint8")).save(folder / "train" / "cats" / "-first.jpg", exif=exif)
    assert from_folder(folder).train.batch(np.arange(1))[0].min() > 190


def test_an_image_that_is_cut_short_is_named(folder):
    broken = folder / "train" / "dogs" / "1.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(InputError, match=r"train/dogs/1.png cannot be read .*replace or remove it"):
        from_folder(folder).train.batch(np.arange(6))


def test_bad_folders_are_refused_with_a_sentence(folder, tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        from_folder(tmp_path / "nothing")
    with pytest.raises(InputError, match="has no train/ or no test/ folder"):
        from_folder(folder / "train")
    with pytest.raises(InputError, match="at least 8 pixels"):
        from_folder(folder, image_size=4)
    (folder / "train" / "birds").mkdir()
    with pytest.raises(InputError, match="differ in the classes birds"):
        from_folder(folder)
    (folder / "val" / "birds").mkdir()
    with pytest.raises(InputError, match="train/birds has no image"):
        from_folder(folder)
    with pytest.raises(InputError, match="--dataset folder needs --data-dir"):
        load_dataset("folder")


def test_splits_have_their_length_and_steps():
    split = ArraySplit(pixels(10), np.zeros(10, int))
    assert (len(split), split.steps_per_epoch(3)) == (10, 3)


class TestOnlySomeClasses:
    def test_are_numbered_in_the_order_named(self):
        whole = bundled_cifar10()
        part = whole.only(["ship", "cat"])
        assert part.class_names == ("ship", "cat") and len(part.train) == 800 and len(part.test) == 200
        of_label = [np.flatnonzero(whole.train.labels == label) for label in (8, 3)]
        images, labels = part.train.batch(np.arange(800))
        for label, places in enumerate(of_label):
            assert np.array_equal(images[labels == label], whole.train.images[places])
        assert np.array_equal(part.train.labels, labels)

    def test_have_a_fingerprint_of_their_own(self):
        whole = bundled_cifar10()
        prints = {whole.fingerprint(), *(whole.only(names).fingerprint() for names in (("cat", "dog"), ("dog", "cat")))}
        assert len(prints) == 3

    def test_of_a_folder(self, folder):
        names = from_folder(folder).class_names
        assert from_folder(folder).only(names[::-1]).class_names == names[::-1]

    @pytest.mark.parametrize(
        "names, words",
        [
            (["cat", "dgo"], "unknown class 'dgo' .did you mean 'dog'"),
            (["cat", "cat"], "named twice"),
            (["cat"], "has 1 class"),
            ([], "has 0 class"),
        ],
    )
    def test_bad_names_are_refused(self, names, words):
        with pytest.raises(InputError, match=words):
            bundled_cifar10().only(names)


@pytest.mark.parametrize(
    ("name", "option"),
    [("bundled", {"data_dir": "my_images"}), ("reviews", {"data_dir": "my_texts"}), ("reviews", {"image_size": 64})],
)
def test_what_comes_with_the_package_is_not_taken_for_data_of_ones_own(name, option):
    with pytest.raises(InputError, match=f"the data set {name} comes with the package, as it is; leave out --"):
        load_dataset(name, **option)
