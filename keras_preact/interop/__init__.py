"""Weights that travel: between this package's networks and other programs."""

from keras_preact.interop.files import load_safetensors, save_safetensors

__all__ = ["load_safetensors", "save_safetensors"]
