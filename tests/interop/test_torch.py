"""Weights of PyTorch networks: the answers that PyTorch gave with them are ours, without PyTorch."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from interop.make_torch_logits import SIZES, images, weights
from safetensors.numpy import save_file

from keras_preact import InputError
from keras_preact.interop import load_torch_state_dict
from keras_preact.models import imagenet_resnet

RECORD = json.loads(Path(__file__).with_name("torch_logits.json").read_text())["networks"]

SAME = {
    "resnetv2_18": {"depth": 18, "profile": "timm"},
    "resnetv2_50": {"depth": 50, "profile": "timm"},
    "resnet18": {"depth": 18, "placement": "original", "profile": "timm"},
    "resnet50": {"depth": 50, "placement": "original", "profile": "timm"},
    "PreActResNet18": {"depth": 18, "profile": "pytorch_cifar", "stem": "3x3", "classes": 10},
    "ResNet18": {"depth": 18, "placement": "original", "profile": "pytorch_cifar", "stem": "3x3", "classes": 10},
}
"""Their networks as ours."""


def ours(name, **options):
    return imagenet_resnet(input_shape=(SIZES[name], SIZES[name], 3), **SAME[name], **options)


def state(name):
    return weights(RECORD[name]["shapes"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SIZES)
def test_same_logits(name):
    model = ours(name)
    load_torch_state_dict(model, state(name))
    logits = np.asarray(model.predict(images(SIZES[name]), verbose=0))[:, :10]
    expected = np.array(RECORD[name]["logits"])
    assert np.abs(logits - expected).max() < 1e-4 * max(np.abs(expected).max(), 1)


@pytest.mark.thorough
def test_rolled_from_a_file_with_a_prefix_without_top(tmp_path):
    tensors = {f"module.{name}": value for name, value in state("resnetv2_50").items()}
    tensors["module.stem.norm.num_batches_tracked"] = np.array(3)
    save_file(tensors, tmp_path / "theirs.safetensors")
    whole, features = ours("resnetv2_50"), ours("resnetv2_50", include_top=False, pooling="avg", rolled=True)
    load_torch_state_dict(whole, state("resnetv2_50"))
    load_torch_state_dict(features, tmp_path / "theirs.safetensors")
    x = images(64)
    dense = whole.get_layer("logits")
    logits = np.asarray(features.predict(x, verbose=0)) @ np.asarray(dense.kernel) + np.asarray(dense.bias)
    assert np.allclose(logits, whole.predict(x, verbose=0), atol=1e-4 * np.abs(logits).max())


class Tensor:
    """What PyTorch's tensors are asked for."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    cpu = float = detach

    def numpy(self):
        return self.array


def test_tensors_are_taken_as_they_are():
    model = ours("PreActResNet18")
    load_torch_state_dict(model, {name: Tensor(value) for name, value in state("PreActResNet18").items()})
    assert np.array_equal(model.get_layer("logits").bias, state("PreActResNet18")["linear.bias"])


def without(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("layer2.0.shortcut.0.weight"), r"lacks layer2.0.shortcut.0.weight, the projection/conv"),
        (lambda s: {**s, "layer9.weight": s["linear.bias"]}, "has layer9.weight, which .* lacks"),
        (lambda s: {**s, "linear.bias": np.zeros(7, "float32")}, r"linear.bias \(logits's bias\) has shape \(7,\)"),
        (lambda s: {**s, "conv1.weight": s["conv1.weight"] * np.nan}, "conv1.weight .* contains NaN"),
        (lambda s: {**s, "conv1.weight": s["conv1.weight"].astype("float64") + 1e300}, "too large for float32"),
        (lambda s: {**s, "conv1.weight": s["conv1.weight"].astype("object")}, "object, not floating-point"),
        (lambda s: {"state_dict": s, "epoch": 3}, r"pass source\['state_dict'\]"),
        (lambda s: {"features.0.weight": s["conv1.weight"]}, "matches none of these"),
        (
            lambda s: SimpleNamespace(state_dict=lambda: s),
            r"a SimpleNamespace is not a state dict; pass its state_dict\(\)",
        ),
        (lambda s: list(s.values()), r"a list is not a state dict; pass a \.safetensors file or a state dict"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, words):
    model = ours("PreActResNet18")
    before = [np.array(weight) for weight in model.get_weights()]
    with pytest.raises(InputError, match=words):
        load_torch_state_dict(model, change(state("PreActResNet18")))
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_a_first_unit_whose_identity_shortcut_is_given_the_pre_activation_is_another_network():
    """The common PreActResNet18 with a last batch norm: all names and shapes fit the paper's, which shares it."""
    theirs = state("PreActResNet18")
    more = {f"bn.{k}": theirs[f"layer4.1.bn2.{k}"] for k in ("weight", "bias", "running_mean", "running_var")}
    options = {"depth": 18, "stem": "3x3", "classes": 10}
    with pytest.raises(InputError, match=r"the identity shortcut of stage1_unit01 .* profile='timm'"):
        load_torch_state_dict(imagenet_resnet(**options), {**theirs, **more})
    load_torch_state_dict(imagenet_resnet(**options, profile="timm"), {**theirs, **more})


def test_another_order_or_stride_is_refused():
    with pytest.raises(InputError, match="orders its layers differently; build the network with placement='original'"):
        load_torch_state_dict(ours("resnetv2_18"), state("resnet18"))
    with pytest.raises(InputError, match="stage1_unit01 has stride_on='1x1'"):
        load_torch_state_dict(ours("resnet50", stride_on="1x1"), state("resnet50"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnetv2_50", {"placement": "bn_only_preactivation"}, "has placement='bn_only_preactivation'"),
        ("resnetv2_50", {"shortcut": "constant_scaling"}, "has shortcut='constant_scaling'"),
        ("resnetv2_50", {"stride_in": "last"}, "stage1 of .* stride in another unit"),
        ("resnet50", {"placement": "relu_before_addition"}, "has placement='relu_before_addition'"),
        ("ResNet18", {"shape_change": "option_a"}, "has shape_change='option_a'"),
    ],
)
def test_a_network_that_computes_something_else_with_these_weights_is_refused(name, options, words):
    size = SIZES[name]
    model = imagenet_resnet(input_shape=(size, size, 3), **SAME[name] | options)
    with pytest.raises(InputError, match=words):
        load_torch_state_dict(model, state(name))


@pytest.mark.parametrize("options", [{"drop_path": 0.2}, {"drop_path": 0.2, "rolled": True}, {"output_stride": 8}])
def test_drop_path_and_dilation_are_no_weights(options):
    model = ours("resnetv2_18", **options)
    load_torch_state_dict(model, state("resnetv2_18"))
    bias = model.get_layer("logits").bias
    assert np.array_equal(bias, state("resnetv2_18")["head.fc.bias"])


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_pickles_are_not_opened(tmp_path, suffix):
    path = tmp_path / f"theirs{suffix}"
    path.write_bytes(b"cos\nsystem\n(S'touch owned'\ntR.")
    with pytest.raises(InputError, match="is a pickle, which can execute"):
        load_torch_state_dict(ours("PreActResNet18"), path)
    assert not (Path.cwd() / "owned").exists()


def test_group_norms_are_refused_because_their_kernels_may_be_standardized():
    """BiT's networks have the names and shapes of `normalization="group"`, and standardize kernels when they run."""
    bit = {name: array for name, array in state("resnetv2_50").items() if "running" not in name}
    network = imagenet_resnet(50, profile="timm", normalization="group", input_shape=(64, 64, 3))
    with pytest.raises(InputError, match="has normalization='group', but the units of timm's resnetv2 have 'batch'"):
        load_torch_state_dict(network, bit)
