"""The loss of the recipe `fast`.

The package imports this module, so that loading a compiled network finds the class.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_preact.errors import InputError, check_rate


@keras.saving.register_keras_serializable(package="keras_preact")
class SmoothedCrossEntropy(keras.losses.Loss):
    """Cross-entropy between logits and smoothed labels: 1 − ε + ε / K for the right one of K classes, ε / K elsewhere.

    Keras's `CategoricalCrossentropy(label_smoothing=ε)` needs one-hot labels; this loss accepts class numbers. See
    Szegedy et al. 2016, section 7.

    Args:
        label_smoothing: ε, at least 0 and less than 1. Default 0.1.
        **kwargs: as in `keras.losses.Loss`.

    Labels: integers (batch, …) or (batch, …, 1). Outputs: logits (batch, …, K). The loss of a label outside
    0, …, K − 1 is NaN, even if it is masked or its sample weight is 0: give ignored examples a label in this range.

    Raises:
        InputError: ε is out of range, or labels are one-hot.

    Example: equal logits cost ln 2 for two classes, whatever the labels.

    >>> loss = SmoothedCrossEntropy(0.2)
    >>> round(float(loss([0, 1], [[0.0, 0.0], [0.0, 0.0]])), 4)
    0.6931
    """

    def __init__(self, label_smoothing: float = 0.1, name: str = "smoothed_cross_entropy", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.label_smoothing = check_rate("label_smoothing", label_smoothing)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if len(y_true.shape) == len(y_pred.shape):
            if y_true.shape[-1] != 1:
                raise InputError(
                    f"labels of shape {tuple(y_true.shape)} may be one-hot; pass class numbers of shape (batch,) or "
                    "(batch, 1), or use Keras's CategoricalCrossentropy(from_logits=True, label_smoothing=...)"
                )
            y_true = ops.squeeze(y_true, -1)
        classes, numbers = ops.shape(y_pred)[-1], ops.cast(y_true, "int32")
        labels = ops.one_hot(ops.clip(numbers, 0, classes - 1), classes, dtype=y_pred.dtype)
        losses = keras.losses.categorical_crossentropy(
            labels, y_pred, from_logits=True, label_smoothing=self.label_smoothing
        )
        return ops.where(ops.logical_and(numbers >= 0, numbers < classes), losses, float("nan"))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
