"""Exchange of weights and networks with other programs."""

from keras_preact.interop.exports import export_model
from keras_preact.interop.keras_applications import load_keras_applications, to_keras_applications
from keras_preact.interop.torch import load_torch_state_dict
from keras_preact.models.saving.safetensors import load_safetensors, save_safetensors

__all__ = [
    "export_model",
    "load_keras_applications",
    "load_safetensors",
    "load_torch_state_dict",
    "save_safetensors",
    "to_keras_applications",
]
