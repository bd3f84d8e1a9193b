"""Images in one folder per class."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from keras_preact.data.batches import as_labels
from keras_preact.data.splits import ImageDataset, ImageSplit, check_image_size, check_short_side
from keras_preact.errors import InputError, first_line, printable

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff"}
TEST_FOLDERS = ("test", "val", "validation")
FOLDER_IMAGE_SIZE = 32
"""Default height and width of the images of a folder, in pixels."""


class FolderSplit(ImageSplit):
    """Image files, read on demand, turned upright, scaled by their short side and center-cropped.

    Args:
        root: folder; names in messages and in the fingerprint are relative to it.
        paths: the image files.
        labels: integers (n,).
        image_size: height and width in pixels.
        short_side: length of the short side before the crop, in pixels; images are scaled to whole pixels. Default
            `image_size`.
    """

    def __init__(
        self, root: Path, paths: Sequence[Path], labels: Any, image_size: int, short_side: float | None = None
    ) -> None:
        self.root = root
        self.paths = list(paths)
        self.labels = as_labels(labels)
        self.image_shape = (image_size, image_size, 3)
        self.short_side = check_short_side(image_size if short_side is None else short_side, image_size)

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images = list(_threads(os.getpid()).map(self._read, (self.paths[i] for i in indices)))
        return np.stack(images), self.labels[indices]

    def _read(self, path: Path) -> np.ndarray:
        size, short_side = self.image_shape[0], self.short_side
        try:
            with Image.open(path) as file:
                # Pillow would clip integers of 16 or 32 bits at 255, which makes nearly every pixel white.
                if file.mode.startswith(("I", "F")):
                    raise InputError(
                        f"the image {path.relative_to(self.root)} has pixels of more than 8 bits ({file.mode}); "
                        "scale them to 0 to 255 and save it with 8 bits per channel"
                    )
                image = _upright(file).convert("RGB")
        except (InputError, MemoryError):
            raise
        except Exception as error:  # Pillow's decoders raise many kinds on damaged files
            raise self._unreadable(path, error) from None
        scale = short_side / min(image.size)
        width, height = (max(size, round(length * scale)) for length in image.size)
        if (width, height) != image.size:
            # Shrink by area averaging, like images in memory. BOX would enlarge pixels to blocks.
            image = image.resize((width, height), Image.Resampling.BOX if scale < 1 else Image.Resampling.BILINEAR)
        left, top = (width - size) // 2, (height - size) // 2
        return np.asarray(image)[top : top + size, left : left + size]

    def at(self, image_size: int, short_side: float | None = None) -> FolderSplit:
        check_image_size(image_size)
        if short_side is None:
            short_side = self.short_side * image_size / self.image_shape[0]
        return FolderSplit(self.root, self.paths, self.labels, image_size, short_side)

    def readable(self) -> tuple[FolderSplit, list[str]]:
        """Decode every file once; return a split of those that can be read, and the names of the rest."""

        def is_readable(path: Path) -> bool:
            try:
                self._read(path)
            except InputError:
                return False
            return True

        good = np.array(list(_threads(os.getpid()).map(is_readable, self.paths)), dtype=bool)
        paths = [self.paths[i] for i in np.flatnonzero(good)]
        unreadable = [printable(str(self.paths[i].relative_to(self.root))) for i in np.flatnonzero(~good)]
        return FolderSplit(self.root, paths, self.labels[good], self.image_shape[0], self.short_side), unreadable

    def check_files(self) -> None:
        """Open every file, without decoding it: a damaged test image must not stop a run after its first epoch."""

        def check(path: Path) -> None:
            try:
                Image.open(path).close()
            except Exception as error:
                raise self._unreadable(path, error) from None

        list(_threads(os.getpid()).map(check, self.paths))

    def _unreadable(self, path: Path, error: Exception) -> InputError:
        name = path.relative_to(self.root)
        return InputError(
            f"the image {name} cannot be read ({first_line(error)}); replace or remove it and start a new run, or "
            "leave such images out with skip_corrupt (--skip-corrupt)"
        )

    def update_hash(self, digest: Any) -> None:
        for path, label in zip(self.paths, self.labels, strict=True):
            try:
                size = path.stat().st_size
            except OSError as error:  # for example a broken link
                raise self._unreadable(path, error) from None
            line = f"{path.relative_to(self.root).as_posix()} {size} {label}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))  # names of files need not be UTF-8


@functools.cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Return the threads that read images in a process. A forked process inherits the pool but not its threads."""
    return ThreadPoolExecutor(max_workers=4)  # Pillow releases the GIL while it decodes


def _upright(file: Image.Image) -> Image.Image:
    """Return an image as a viewer shows it: cameras store the orientation in the EXIF tags."""
    from PIL import ImageOps  # only here: `import keras_preact` loads no more of Pillow than Keras does

    try:
        return ImageOps.exif_transpose(file)
    except (ValueError, TypeError, KeyError, struct.error):  # damaged tags; the pixels may be intact
        return file


def from_folder(directory: str | Path, image_size: int | None = None, skip_corrupt: bool = False) -> ImageDataset:
    """Return the images of a folder with one subfolder per class.

    Args:
        directory: contains `train/CLASS/*.png` and `test/CLASS/*.png` (or `val`, `validation`), in any common image
            format. EXIF orientations are respected.
        image_size: height and width in pixels. The short side is scaled to it, and the center is cropped. Default 32.
        skip_corrupt: whether to decode every image now and leave out those that cannot be read. Default `False`: the
            first such image stops the training.

    Raises:
        InputError: a folder is missing or empty, there are no class folders, training and test classes differ, a test
            image cannot be opened, or `image_size` is less than 8.

    Example:

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for path in ("train/cat/1.png", "train/dog/1.png", "test/cat/2.png", "test/dog/2.png"):
    ...         Path(folder, path).parent.mkdir(parents=True)
    ...         Image.new("RGB", (60, 40)).save(Path(folder, path))
    ...     animals = from_folder(folder, image_size=32)
    ...     animals.class_names, animals.train.batch(np.array([0, 1]))[0].shape
    (('cat', 'dog'), (2, 32, 32, 3))
    """
    root = Path(directory)
    if not root.is_dir():
        raise InputError(f"there is no folder {directory}; choose one with train/CLASS/ and test/CLASS/")
    test_name = next((name for name in TEST_FOLDERS if (root / name).is_dir()), None)
    if not (root / "train").is_dir() or test_name is None:
        raise InputError(f"{directory} has no train/ or no test/ folder; put the class folders into those two")
    names = _class_folders(root / "train")
    if not names and not _class_folders(root / test_name):
        raise InputError(
            f"train/ and {test_name}/ in {directory} have no class folders; put the images of each class into a folder "
            "of its own"
        )
    if differing := sorted(set(names) ^ set(_class_folders(root / test_name))):
        raise InputError(
            f"train/ and {test_name}/ in {directory} differ in the classes {', '.join(differing)}; "
            "put the same class folders into both"
        )
    size = FOLDER_IMAGE_SIZE if image_size is None else check_image_size(image_size)
    splits, skipped = [], []
    for name in ("train", test_name):
        files = [(path, label) for label, folder in enumerate(names) for path in _images(root / name / folder)]
        split = FolderSplit(root, [path for path, _ in files], [label for _, label in files], size)
        if skip_corrupt:
            split, unreadable = split.readable()
            skipped += unreadable
        elif name == test_name:
            split.check_files()
        splits.append(split)
    name = Path(os.path.abspath(root)).name  # "." and ".." have none; a link keeps its own
    selection = {"data_dir": os.path.abspath(root), "image_size": image_size, "skip_corrupt": skip_corrupt}
    selection = {key: value for key, value in selection.items() if value not in (None, False)}
    return ImageDataset(name, splits[0], splits[1], tuple(names), tuple(skipped), "folder", selection)


def _class_folders(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    for name in names:
        if any("\ud800" <= character <= "\udfff" for character in name):  # how Python represents other bytes
            raise InputError(f"the name of the class folder {folder.name}/{name} is not valid UTF-8; rename it")
    return names


def _images(folder: Path) -> list[Path]:
    """Return the images of a class folder and its subfolders, without hidden ones such as `.ipynb_checkpoints`."""
    found = (
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES
        and not path.is_dir()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    # Windows compares paths without regard to case; the order decides batches and fingerprint on every system.
    images = sorted(found, key=lambda path: path.relative_to(folder).parts)
    if not images:
        raise InputError(f"the class folder {folder.parent.name}/{folder.name} has no images; add some or remove it")
    return images
