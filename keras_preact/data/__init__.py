"""Data sets (bundled, tensorflow-datasets, folders, arrays), batches, and augmentation on the device."""

from keras_preact.data.batches import TestBatches, TrainBatches, feed, original_errors, part_of
from keras_preact.data.bundled import bundled_cifar10
from keras_preact.data.folder import FolderSplit, from_folder
from keras_preact.data.load import load_dataset, prepare_dataset
from keras_preact.data.rules import baselines
from keras_preact.data.sequences import (
    SequenceDataset,
    SequenceSplit,
    bundled_characters,
    bundled_reviews,
    bundled_weather,
)
from keras_preact.data.splits import ArraySplit, ImageDataset, ImageSplit, Split, from_arrays
from keras_preact.data.streams import from_tfds
from keras_preact.layers.preprocessing import PadCropFlip, PerPixelMean

__all__ = [
    "ArraySplit",
    "FolderSplit",
    "ImageDataset",
    "ImageSplit",
    "PadCropFlip",
    "PerPixelMean",
    "SequenceDataset",
    "SequenceSplit",
    "Split",
    "TestBatches",
    "TrainBatches",
    "baselines",
    "bundled_characters",
    "bundled_cifar10",
    "bundled_reviews",
    "bundled_weather",
    "feed",
    "from_arrays",
    "from_folder",
    "from_tfds",
    "load_dataset",
    "original_errors",
    "part_of",
    "prepare_dataset",
]
