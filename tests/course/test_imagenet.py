"""Exercises of notebook 08: right answers pass, and each usual mistake is named."""

import numpy as np
from answers import check_answers

MEAN, DEVIATION = np.array([123.675, 116.28, 103.53]), np.array([58.395, 57.12, 57.375])
BGR = np.array([103.939, 116.779, 123.68])


def heights(size, output_stride):
    return [size // min(stride, output_stride) for stride in (4, 8, 16, 32)]


RIGHT = {
    "08.1": lambda channels, filters, size: 3 * channels * filters * (size // 2) ** 2,
    "08.2": heights,
    "08.3": lambda x: (x * DEVIATION + MEAN)[..., ::-1] - BGR,
}

WRONG = [
    ("08.1", 77, "give a function"),
    ("08.1", lambda channels, filters, size: channels * filters * size**2, "part of it remains"),
    ("08.1", lambda channels, filters, size: channels * filters * size**2 / 4, "what remains"),
    ("08.1", lambda channels, filters, size: channels * filters * size**2 / 2, "the height and the width"),
    (
        "08.1",
        lambda channels, filters, size: 0.75 * size**2 * (channels * filters + 9 * filters**2),
        "the same outputs in both cases",
    ),
    ("08.1", lambda channels, filters, size: 3, "it returns 3, not 77,070,336"),
    ("08.1", lambda channels, filters, size: None, "returns nothing"),
    ("08.2", lambda size, stride: size // 4, "return a list of four heights"),
    ("08.2", lambda size, stride: [size // s for s in (4, 8, 16, 32)], "no map is smaller than 28"),
    ("08.2", lambda size, stride: [2 * h for h in heights(size, stride)], "then the pooling by 2"),
    ("08.2", lambda size, stride: [1, 2, 3, 4], "for 224 pixels and an output stride of 32"),
    ("08.2", lambda size, stride: heights(size, stride) if stride == 32 else [size // stride] * 4, "do not change"),
    ("08.2", lambda size, stride: [None] * 4, "returns nothing"),
    ("08.3", lambda x: x * DEVIATION + MEAN - BGR[::-1], "still RGB; Keras's"),
    ("08.3", lambda x: (x * DEVIATION + MEAN)[..., ::-1] - BGR[::-1], "from the wrong channels"),
    ("08.3", lambda x: x * DEVIATION + MEAN - BGR, "still RGB, and"),
    ("08.3", lambda x: x[..., ::-1], "first undo it"),
    ("08.3", lambda x: (x * DEVIATION + MEAN)[..., ::-1], "must be subtracted"),
    ("08.3", lambda x: (x + MEAN)[..., ::-1] - BGR, "undo the division"),
    ("08.3", lambda x: 0 * x + 7, "becomes (7.00, 7.00, 7.00)"),
    ("08.3", lambda x: x[0], "the shape (4, 4, 3)"),
    ("08.3", lambda x: None, "returns nothing"),
]


test_right_answers, test_wrong_answers, test_every_exercise_has_both = check_answers(RIGHT, WRONG)
