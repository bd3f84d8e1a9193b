"""Data: the bundled images, tensorflow-datasets, folders, arrays; batches; augmentation on the device."""

from keras_preact.data.augmentation import PadCropFlip, PerPixelMean
from keras_preact.data.batches import TestBatches, TrainBatches, feed
from keras_preact.data.sources import (
    ArraySplit,
    FolderSplit,
    ImageDataset,
    Split,
    bundled_cifar10,
    from_arrays,
    from_folder,
    load_dataset,
)
from keras_preact.data.streams import from_tfds

__all__ = [
    "ArraySplit",
    "FolderSplit",
    "ImageDataset",
    "PadCropFlip",
    "PerPixelMean",
    "Split",
    "TestBatches",
    "TrainBatches",
    "bundled_cifar10",
    "feed",
    "from_arrays",
    "from_folder",
    "from_tfds",
    "load_dataset",
]
