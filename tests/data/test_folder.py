"""Folders: images of all kinds, and what is refused."""

import copy
import json
import multiprocessing
import os
import pathlib
import pickle
import sys

import numpy as np
import pytest
from PIL import Image

from keras_preact import InputError
from keras_preact.data import ArraySplit, from_folder


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


@pytest.mark.skipif(sys.platform == "win32", reason="a link needs a privilege")
def test_a_data_set_is_named_like_its_folder_however_the_path_is_written(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder.parent / "animals").symlink_to(folder)
    named = {path: from_folder(path).name for path in (".", "train/..", folder, "../animals")}
    assert named == {".": folder.name, "train/..": folder.name, folder: folder.name, "../animals": "animals"}


def test_a_folder_can_be_copied_and_pickled(folder):
    data = from_folder(folder, image_size=16)
    images, _ = data.train.batch(np.arange(6))
    for other in (copy.deepcopy(data), copy.copy(data.train), pickle.loads(pickle.dumps(data))):
        split = getattr(other, "train", other)
        np.testing.assert_array_equal(split.batch(np.arange(6))[0], images)


def test_images_at_other_sizes_are_center_crops(folder):
    Image.fromarray(np.arange(600, dtype="uint8").reshape(20, 30)).save(folder / "val" / "cats" / "0.png")
    test = from_folder(folder, image_size=16).test
    whole, part = test.at(20, short_side=20).batch(np.arange(1))[0], test.at(10, short_side=20).batch(np.arange(1))[0]
    np.testing.assert_array_equal(whole[:, 5:15, 5:15], part)
    np.testing.assert_array_equal(test.at(16).batch(np.arange(4))[0], test.batch(np.arange(4))[0])
    with pytest.raises(InputError, match="a crop of 16 pixels does not fit a short side of 12"):
        test.at(16, short_side=12)
    for change in (test.at, from_folder(folder).at):
        with pytest.raises(InputError, match="the image size is 7; it must be at least 8 pixels"):
            change(7)


def test_the_short_side_keeps_its_proportion_to_the_crop(folder):
    Image.fromarray(np.arange(600, dtype="uint8").reshape(20, 30)).save(folder / "val" / "cats" / "0.png")
    test = from_folder(folder, image_size=16).test.at(16, short_side=20)
    (folder / "val" / "dogs" / "1.png").write_bytes(b"")
    left, unreadable = test.readable()
    assert (left.short_side, unreadable) == (20, ["val/dogs/1.png"])
    for size, short_side in ((16, 20), (32, 40), (13, 16.25)):
        assert test.at(size).short_side == left.at(size).short_side == short_side
        images = left.at(size).batch(np.arange(1))[0]
        assert images.shape == (1, size, size, 3)
        np.testing.assert_array_equal(images, left.at(size, short_side=round(short_side)).batch(np.arange(1))[0])


def test_images_of_one_size_are_averaged_down_like_arrays(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3)).astype("uint8")
    for k, image in enumerate(images):
        for split in ("train", "test"):
            path = tmp_path / split / "ab"[k % 2] / f"{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
    found = from_folder(tmp_path, image_size=16).train.batch(np.arange(4))[0]
    expected = ArraySplit(images[[0, 2, 1, 3]], [0, 0, 1, 1]).at(16).images
    assert np.abs(found.astype(int) - expected).max() <= 1  # Pillow rounds after each direction


def test_gray_and_transparent_images_become_rgb(folder):
    Image.fromarray(np.full((40, 40), 7, "uint8")).save(folder / "train" / "cats" / "gray.png")
    Image.fromarray(np.full((40, 40, 4), 7, "uint8")).save(folder / "train" / "cats" / "transparent.png")
    images, _ = from_folder(folder).train.batch(np.arange(5))
    assert images.shape == (5, 32, 32, 3)


@pytest.mark.parametrize("file", ["deep.png", "deep.tif", "float.tif"])
def test_an_image_of_more_than_8_bits_is_refused_and_not_clipped_at_255(folder, file):
    pixels = np.arange(0, 65536, 41).reshape(41, 39).astype("float32" if "float" in file else "uint16")
    Image.fromarray(pixels).save(folder / "train" / "cats" / file)
    with pytest.raises(InputError, match=f"cats/{file} has pixels of more than 8 bits .*; scale them to 0 to 255"):
        from_folder(folder).train.batch(np.arange(5))
    assert from_folder(folder, skip_corrupt=True).skipped == (f"train/cats/{file}",)


ORIENTATION = 0x0112


def stored_with(orientation, upright):
    """Return an image as a camera stores it with an EXIF orientation from 1 to 8."""
    turn = Image.Transpose
    stored = {2: [turn.FLIP_LEFT_RIGHT], 3: [turn.ROTATE_180], 4: [turn.FLIP_TOP_BOTTOM], 5: [turn.TRANSPOSE]}
    stored |= {6: [turn.ROTATE_90], 7: [turn.TRANSVERSE], 8: [turn.ROTATE_270]}
    for step in stored.get(orientation, []):
        upright = upright.transpose(step)
    return upright


@pytest.mark.parametrize("ending", ["png", "jpg", "webp", "tif"])
def test_exif_orientations_are_respected(folder, ending):
    """All eight show the same picture: a dark corner on a light background."""
    pixels = np.full((40, 60, 3), 200, "uint8")
    pixels[:15, :25] = 10
    expected = None
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        options = {} if ending == "tif" else {"quality": 100}
        stored = stored_with(orientation, Image.fromarray(pixels))
        stored.save(folder / "train" / "cats" / f"-first.{ending}", exif=exif, **options)
        image = from_folder(folder).train.batch(np.arange(1))[0][0].astype(int)
        expected = image if expected is None else expected
        assert image.shape == (32, 32, 3) and np.abs(image - expected).max() < 60, orientation
        assert image[0, 0].max() < 40 and image[-1, -1].min() > 160 and image[-1, 0].min() > 160, orientation


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0II*\0" + b"\xff" * 40, b"\0" * 30, b"Exif\0\0MM\0*\0\0"])
def test_images_with_damaged_exif_tags_are_read_as_stored(folder, exif):
    Image.fromarray(np.full((40, 60, 3), 200, "uint8")).save(folder / "train" / "cats" / "-first.jpg", exif=exif)
    assert from_folder(folder).train.batch(np.arange(1))[0].min() > 190


def test_a_truncated_image_is_named(folder):
    broken = folder / "train" / "dogs" / "1.png"
    broken.write_bytes(broken.read_bytes()[:40])
    with pytest.raises(InputError, match=r"train/dogs/1.png cannot be read .*replace or remove it"):
        from_folder(folder).train.batch(np.arange(6))


def test_a_damaged_image_of_any_format_is_left_out_by_choice(folder):
    """Pillow raises many kinds of exceptions: if the header of a PPM image is cut, a ValueError."""
    whole, broken = folder / "whole.ppm", folder / "train" / "cats" / "half.ppm"
    Image.new("RGB", (20, 30)).save(whole)
    broken.write_bytes(whole.read_bytes()[:8])
    with pytest.raises(InputError, match=r"train/cats/half.ppm cannot be read .*replace or remove it"):
        from_folder(folder).train.batch(np.arange(6))
    assert from_folder(folder, skip_corrupt=True).skipped == ("train/cats/half.ppm",)


@pytest.mark.skipif(sys.platform == "win32", reason="a link needs a privilege")
def test_a_link_to_nowhere_is_named(folder):
    (folder / "train" / "cats" / "link.png").symlink_to(folder / "nowhere.png")
    with pytest.raises(InputError, match=r"train/cats/link.png cannot be read .*replace or remove it"):
        from_folder(folder).fingerprint()
    data = from_folder(folder, skip_corrupt=True)
    assert data.skipped == ("train/cats/link.png",) and data.fingerprint()


def test_a_subfolder_named_like_an_image_is_none(folder):
    (folder / "train" / "cats" / "raw.png").mkdir()
    assert len(from_folder(folder).train) == 6 and from_folder(folder).fingerprint()


def test_the_order_of_images_does_not_depend_on_how_a_system_compares_paths(folder, monkeypatch):
    """Windows ignores the case; without a link or a subfolder, the order on Linux is that of the names."""
    for name in ("B.png", "a.png", "a/z.png", "a-b.png", "C.png"):
        path = folder / "train" / "cats" / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 30)).save(path)
    data = from_folder(folder)
    names = [path.relative_to(folder / "train" / "cats").as_posix() for path in data.train.paths[:8]]
    assert names == ["0.png", "1.png", "2.png", "B.png", "C.png", "a/z.png", "a-b.png", "a.png"]
    fingerprint = data.fingerprint()
    monkeypatch.setattr(pathlib.PurePath, "__lt__", lambda path, other: str(path).lower() < str(other).lower())
    assert from_folder(folder).fingerprint() == fingerprint


def test_hidden_subfolders_have_no_images(folder):
    for name, count in ((".ipynb_checkpoints", 6), ("visible", 7)):
        (folder / "train" / "cats" / name).mkdir()
        Image.new("RGB", (20, 30)).save(folder / "train" / "cats" / name / "1-checkpoint.png")
        assert len(from_folder(folder).train) == count


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_images_are_read_in_a_forked_process_too(folder):
    """As in a worker of a PyTorch `DataLoader`, after the parent's threads have read."""
    data = from_folder(folder, image_size=16)
    data.train.mean()
    worker = multiprocessing.get_context("fork").Process(target=data.train.batch, args=(np.arange(6),), daemon=True)
    worker.start()
    worker.join(20)
    status = worker.exitcode
    worker.kill()
    assert status == 0


def test_images_without_class_folders_are_refused(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        Image.new("RGB", (20, 30)).save(tmp_path / split / "1.png")
    with pytest.raises(InputError, match=r"train/ and test/ in .* have no class folders; put the images of each class"):
        from_folder(tmp_path)


def test_bad_folders_are_refused(folder, tmp_path):
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
    with pytest.raises(InputError, match="train/birds has no images"):
        from_folder(folder)


def test_some_classes_of_a_folder(folder):
    names = from_folder(folder).class_names
    assert from_folder(folder).only(names[::-1]).class_names == names[::-1]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no names that are not UTF-8")
def test_names_that_are_not_utf_8_are_read_and_recorded(folder):
    first = folder / "train" / "cats" / "0.png"
    broken = first.with_name("caf\udce9.png")
    before = from_folder(folder).fingerprint()
    first.rename(broken)
    assert from_folder(folder).fingerprint() != before
    broken.write_bytes(broken.read_bytes()[:40])
    skipped = from_folder(folder, skip_corrupt=True).skipped
    assert skipped == (r"train/cats/caf\udce9.png",) and json.dumps(skipped).encode()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have only names in Unicode")
def test_a_class_needs_a_name_in_unicode(folder):
    """The records of a run are UTF-8."""
    for split in ("train", "val"):
        os.rename(folder / split / "cats", os.fsencode(folder / split) + b"/c\xff")
    with pytest.raises(InputError, match=r"the name of the class folder train/c\\udcff is not valid UTF-8; rename it"):
        from_folder(folder)


def test_a_test_image_that_cannot_be_opened_is_found_before_the_training(folder):
    (folder / "val" / "dogs" / "1.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"the image val/dogs/1.png cannot be read .*; replace or remove it and start"):
        from_folder(folder)
    assert len(from_folder(folder, skip_corrupt=True).test) == 3
