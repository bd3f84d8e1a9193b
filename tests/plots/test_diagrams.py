"""Diagrams of networks, equations and Transformer blocks: they show what the model or the equation has."""

import re

import keras
import pytest

from keras_preact.errors import InputError
from keras_preact.layers import NORM_PLACEMENTS, PLACEMENTS, SHORTCUTS, EncoderBlock, ResidualUnit
from keras_preact.models import (
    cifar_resnet,
    fold,
    imagenet_resnet,
    preact_resnet50,
    roll,
    with_preprocessing,
)
from keras_preact.plots import alt_text, blocks_figure, draw, network_figure, terms_figure
from keras_preact.plots.base import COLOURS
from keras_preact.plots.units import unit_parts

# ---- networks -----------------------------------------------------------------------------------------------------


def described(figure):
    """Return the parts of a network in the description, by name."""
    text = alt_text(figure).split("channels: ")[1].removesuffix(".")
    return dict(part.split(": ", 1) for part in text.split("; "))


def shown(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def sizes(figure, parts):
    """Return the widths and heights of the boxes from left to right."""
    corners = [patch.get_xy() for patch in parts(figure.axes[0], "box")]
    return [(xy[1][0] - xy[0][0], xy[2][1] - xy[1][1]) for xy in corners]


def test_a_cifar_network(parts, check_texts):
    figure = network_figure(cifar_resnet(20))
    check_texts(figure)
    assert described(figure) == {
        "input": "output 32 × 32 × 3",
        "stem": "3×3 conv, 16, output 32 × 32 × 16",
        "stage 1": "3 basic units, full pre-activation, output 32 × 32 × 16",
        "stage 2": "3 basic units, full pre-activation, output 16 × 16 × 32",
        "stage 3": "3 basic units, full pre-activation, output 8 × 8 × 64",
        "head": "BN, ReLU, global average pool, dense, 10, output vector of 10",
    }
    titles = {"input", "stem", "stage 1", "stage 2", "stage 3", "head"}
    assert {*titles, "3 basic units", "full pre-activation", "8 × 8 × 64"} <= set(shown(figure))
    widths, heights = zip(*sizes(figure, parts), strict=True)
    assert heights[0] == heights[1] == heights[2] > heights[3] > heights[4] > heights[5]
    assert widths[0] < widths[1] == widths[2] < widths[3] < widths[4] > widths[5]
    assert heights[2] / heights[4] == pytest.approx(2) and widths[4] / widths[2] == pytest.approx(2)  # 4 ** 0.5
    assert len(parts(figure.axes[0], "arrow")) == 5


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shortcut", SHORTCUTS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_all_placements_and_shortcuts(placement, shortcut, check_texts):
    figure = network_figure(cifar_resnet(8, placement, shortcut=shortcut, input_shape=(8, 8, 3)))
    check_texts(figure)
    stage = described(figure)["stage 2"]
    assert stage.startswith("1 basic unit, ") and stage.endswith("output 4 × 4 × 32")
    assert ("shortcut: " in stage) == (shortcut != "identity")


@pytest.mark.parametrize(("depth", "block", "word"), [(29, "bottleneck", "bottleneck"), (11, "single", "single-layer")])
def test_other_blocks(depth, block, word, check_texts):
    figure = network_figure(cifar_resnet(depth, block=block))
    check_texts(figure)
    assert described(figure)["stage 1"].startswith(f"3 {word} units, full pre-activation, output 32 × 32 × ")


def test_a_rolled_network_looks_like_the_unrolled_one(tmp_path):
    network = cifar_resnet(26, rolled=False)
    figures = [network_figure(model) for model in (network, roll(network), cifar_resnet(26, rolled=True))]
    assert len({draw(figure, tmp_path / "figure.png").read_bytes() for figure in figures}) == 1
    assert described(figures[0])["stage 3"].startswith("4 basic units")
    assert described(network_figure(cifar_resnet(1001, rolled=True)))["stage 3"].startswith("111 bottleneck units")


def test_channels_first_has_the_same_shapes():
    first = network_figure(cifar_resnet(8, data_format="channels_first"))
    assert alt_text(first) == alt_text(network_figure(cifar_resnet(8)))


def test_an_imagenet_network(check_texts):
    figure = network_figure(preact_resnet50(classes=7))
    check_texts(figure)
    found = described(figure)
    assert found["stem"] == "7×7 conv, 64, /2, BN, ReLU, 3×3 max pool, /2, output 56 × 56 × 64"
    assert found["stage 3"] == "6 bottleneck units, full pre-activation, output 14 × 14 × 1024"
    assert found["head"].endswith("dense, 7, output vector of 7") and len(found) == 7


@pytest.mark.parametrize("placement", ["original", "full_preactivation"])
def test_networks_for_any_image_size(placement, check_texts):
    figure = network_figure(imagenet_resnet(18, placement, include_top=False))
    check_texts(figure)
    found = described(figure)
    assert found["input"] == "output H × W × 3"
    assert found["stage 1"].endswith("output H/4 × W/4 × 64")
    assert found["stage 4"].endswith("output H/32 × W/32 × 512")
    assert ("head" in found) == (placement == "full_preactivation")  # nothing follows the last original unit


def test_maps_larger_than_the_input():
    x = keras.layers.UpSampling2D(2)(keras.Input((None, None, 3)))
    found = described(network_figure(cifar_resnet(8, include_top=False, input_tensor=x)))
    assert found["stage 1"].endswith("output 2H × 2W × 16") and found["stage 2"].endswith("output H × W × 32")


def test_a_network_of_another_code_base_and_one_with_preprocessing(check_texts):
    other = network_figure(imagenet_resnet(50, profile="keras_applications", include_top=False, pooling="max"))
    check_texts(other)
    assert described(other)["stage 1"].endswith("output H/8 × W/8 × 256")  # the stride is in the last unit
    assert described(other)["head"].endswith("global max pool, output vector of 2048")
    inside = imagenet_resnet(18, "original", input_shape=(64, 64, 3), classes=10)
    figure = network_figure(with_preprocessing(inside))
    check_texts(figure)
    found = described(figure)
    assert found["input"] == "output H × W × 3" and found["preparation"].endswith("normalization, output 64 × 64 × 3")
    assert found["stage 2"] == described(network_figure(inside))["stage 2"]


def _with_units(name="stage1_unit01", inputs=1):
    images = [keras.Input((8, 8, 4)) for _ in range(inputs)]
    x = keras.layers.add(images) if inputs > 1 else images[0]
    return keras.Model(images, ResidualUnit(4, name=name)(x), name="mine")


def test_a_network_of_units_alone(check_texts):
    figure = network_figure(_with_units())
    check_texts(figure)
    assert list(described(figure)) == ["input", "stage 1"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), "has no residual units"),
        (lambda: fold(cifar_resnet(8)), "has no residual units"),
        (lambda: keras.layers.Dense(2, name="mine"), "Dense mine is not a functional Keras model"),
        (lambda: "resnet", "str is not a functional Keras model"),
        (lambda: _with_units("unit"), "mine has a unit unit outside of stages"),
        (lambda: _with_units(inputs=2), "mine has several inputs or outputs"),
        (
            lambda: keras.Model(x := keras.Input((5, 8)), EncoderBlock(2, name="stage1_block01")(x), name="mine"),
            "mine is a Transformer or has custom units",
        ),
    ],
)
def test_other_models_are_refused(model, message):
    with pytest.raises(InputError, match=message):
        network_figure(model())


# ---- Eqs. (4) and (5) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", range(1, 7))
def test_the_sum_has_a_term_for_each_branch_in_its_color(units, parts, check_texts):
    figure = terms_figure(units)
    (labels,) = check_texts(figure)
    terms = ["$F(x_l)$", *(f"$F(x_{{l+{k}}})$" for k in range(1, units))]
    assert labels == [*terms, "$x_l$", *terms, *terms, "1"]  # branches, sum, branches backward, the direct term
    (axes,) = figure.axes
    boxes = sorted(parts(axes, "box"), key=lambda box: (-round(box.get_bbox().y1, 2), box.get_bbox().x0))
    edges = [box.get_edgecolor() for box in boxes]
    branches, total, backward = edges[:units], edges[units : 2 * units + 1], edges[2 * units + 1 :]
    assert branches == total[1:] == backward[:-1] and len(set(branches)) == units
    assert total[0] == backward[-1] == (0, 0, 0, 1)  # black, as the main path
    assert len(parts(axes, "plus")) == units
    straight = [patch for patch in parts(axes, "arrow") if patch.get_linewidth() > 2]
    (start, end), (back, front) = (patch._path_original.vertices for patch in straight)
    assert start[1] == end[1] and back[1] == front[1] and (start[0], end[0]) == (front[0], back[0])
    assert f"$L = l + {units}$" in [text.get_text() for text in axes.texts]
    plain = [re.sub(r"\$", "", term) for term in terms]
    assert f"x_L = x_l + {' + '.join(plain)}." in alt_text(figure)


@pytest.mark.parametrize("units", [0, 7, 2.0, True])
def test_the_number_of_units_is_checked(units):
    with pytest.raises(InputError, match="units is "):
        terms_figure(units)
    assert len(COLOURS) == 7


# ---- Transformers -------------------------------------------------------------------------------------------------


def test_the_blocks_are_those_of_the_layers(parts, check_texts, tmp_path):
    figure = blocks_figure()
    post, pre = check_texts(figure)
    assert post == ["self-attention", "layer norm", "MLP", "layer norm"]
    assert pre == ["layer norm", "self-attention", "layer norm", "MLP"]
    titles = [axes.texts[0].get_text() for axes in figure.axes]
    assert titles == ["post-norm", "pre-norm"]
    for name, axes, labels in zip(("post_norm", "pre_norm"), figure.axes, (post, pre), strict=True):
        assert len(parts(axes, "plus")) == 2
        assert {"$x_l$", "$x_{l+2}$"} <= {text.get_text() for text in axes.texts}  # two units
        block = EncoderBlock(2, placement=NORM_PLACEMENTS[name])
        block.build((None, 5, 8))
        unit = unit_parts(block.attention)
        assert [*unit.branch, *unit.after] == labels[:2]
    assert "; on the branch layer norm, self-attention;" in alt_text(figure).split("pre-norm: first")[1]
    assert draw(figure, tmp_path / "a.svg").read_bytes() == draw(blocks_figure(), tmp_path / "b.svg").read_bytes()
