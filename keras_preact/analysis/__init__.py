"""The paper's equations measured on real networks: signals, gradients, lesions, and a linter for identity paths."""

from keras_preact.analysis.chain import Chain
from keras_preact.analysis.gradients import GradientSignal, gradient_signal
from keras_preact.analysis.identity_path import IdentityPath, UnitPath, check_identity_path
from keras_preact.analysis.inspection import Inspection, inspect_model, read_inspection, write_inspection
from keras_preact.analysis.lesions import Lesion, PathLength, Swap, leave_out, path_lengths, swap
from keras_preact.analysis.propagation import (
    DeadFraction,
    ForwardSignal,
    Moments,
    ScalingFactor,
    UnrolledSum,
    dead_fraction,
    forward_signal,
    identity_error,
    scaling_factor,
    unrolled_sum,
)

__all__ = [
    "Chain",
    "DeadFraction",
    "ForwardSignal",
    "GradientSignal",
    "IdentityPath",
    "Inspection",
    "Lesion",
    "Moments",
    "PathLength",
    "ScalingFactor",
    "Swap",
    "UnitPath",
    "UnrolledSum",
    "check_identity_path",
    "dead_fraction",
    "forward_signal",
    "gradient_signal",
    "identity_error",
    "inspect_model",
    "leave_out",
    "path_lengths",
    "read_inspection",
    "scaling_factor",
    "swap",
    "unrolled_sum",
    "write_inspection",
]
