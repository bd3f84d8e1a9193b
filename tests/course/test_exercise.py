"""Every exercise takes a right answer, and tells what is wrong with the wrong ones that readers give."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from keras import layers

from keras_preact import InputError
from keras_preact.course import check, results_folder
from keras_preact.layers import Placement, Shortcut

FOLDER = Path(__file__).parents[1] / "notebooks"


def relu(x):
    return np.maximum(x, 0)


def conv(x):
    return layers.Conv2D(16, 3, padding="same", use_bias=False)(layers.ReLU()(layers.BatchNormalization()(x)))


def copied_unit(x):
    out = layers.ReLU()(layers.BatchNormalization()(x))
    return layers.Add()([conv(layers.Conv2D(16, 3, padding="same")(out)), out])


def backwards(g, jacobians):
    direct, through = two_terms(g, jacobians)
    return through, direct


def two_terms(g, jacobians):
    whole = g
    for jacobian in reversed(jacobians):
        whole = whole + whole @ jacobian
    return g, whole - g


def run_stack(body, x, w):
    for weights in w:
        x = body(x, weights)
    return x


def pre_norm(x, norm1, attention, norm2, feed_forward):
    x = x + attention(norm1(x))
    return x + feed_forward(norm2(x))


def activated_path(x, norm1, attention, norm2, feed_forward):
    x = norm1(x)
    x = norm2(x + attention(x))
    return x + feed_forward(x)


def changes_x(x, a, b):
    x += relu(relu(x) @ a) @ b
    return x


class Forgets(Shortcut):
    keeps_identity = True

    def __init__(self, c=0.1, **kwargs):
        super().__init__(**kwargs)
        self.c = c

    def call(self, x, residual):
        return x + self.c * residual


class Damped(Forgets):
    def get_config(self):
        return {**super().get_config(), "c": self.c}


def freeze(network, chosen, stage):
    with_weights = [layer for layer in network.layers if layer.weights]
    first = next(place for place, layer in enumerate(with_weights) if layer.name.startswith(stage))
    for place, layer in enumerate(with_weights):
        layer.trainable = not chosen(place, first)


NORMAL = np.random.default_rng(0).normal(size=(2, 8, 8, 4)).astype("float32")
IDENTITIES = ["relu_before_addition", "relu_only_preactivation", "full_preactivation", "bn_only_preactivation"]

RIGHT = {
    "00.1": IDENTITIES,
    "00.2": relu,
    "00.3": 54,
    "01.1": lambda x, a, b: x + relu(relu(x) @ a) @ b,
    "01.2": ["BN", "ReLU", "conv"] * 2,
    "01.3": lambda x: x + conv(conv(x)),
    "02.1": lambda x, residuals: x + sum(residuals),
    "02.2": -1,
    "02.3": two_terms,
    "03.1": np.prod,
    "03.2": 93,
    "03.3": 0.5 ** (1 / 54),
    "04.1": lambda bias, units: (1 / (1 + np.exp(bias))) ** units,
    "04.2": -3.24,
    "04.3": 18 * 16**2 + 17 * 32**2 + 17 * 64**2,
    "05.1": ["full_preactivation", "bn_after_addition"],
    "05.2": 54 / (2 * np.pi) ** 0.5,
    "05.3": Placement("mine", "mine", first=("norm", "relu"), last=("norm",)),
    "06.1": lambda depth, convolutions: (depth - 2) / (3 * convolutions),
    "06.2": run_stack,
    "06.3": 11,
    "07.1": 2**15,
    "07.2": lambda step: 0.01 if step < 400 else 0.1 if step < 32_000 else 0.01 if step < 48_000 else 0.001,
    "07.3": ["weights", "moving averages", "momentum", "step", "random state"],
    "08.1": 66,
    "08.2": lambda size, stride: [size // min(s, stride) for s in (4, 8, 16, 32)],
    "08.3": lambda network, stage: freeze(network, lambda place, first: place < first, stage),
    "09.1": pre_norm,
    "09.2": lambda depths, norms: np.polyfit(np.log(depths), np.log(norms), 1)[0],
    "09.3": lambda step, peak, steps: peak * min(1, step / steps),
    "10.1": lambda unit: np.array_equal(np.array(unit(NORMAL)), NORMAL),
    "10.2": "unit3",
    "10.3": lambda w, g, rate, decay: w - rate * (g + decay * w),
    "11.1": lambda units: units**-0.5,
    "11.2": (1 / 16, 1 / 128),
    "11.3": Damped,
}

WRONG = [
    ("00.1", "full_preactivation", "give a list"),
    ("00.1", ["pre"], "pre is not a placement"),
    ("00.1", ["original"], "original has relu after the addition"),
    ("00.1", IDENTITIES[1:], "left out relu_before_addition"),
    ("00.2", lambda x: x, "that is the pre-activation unit"),
    ("00.2", lambda x: 0 * x, "The shortcut still carries x"),
    ("00.2", lambda x: -x, "for x = −2 your function returns 2"),
    ("00.2", lambda x: x[0], "the shape (4,)"),
    ("00.2", 3, "give a function; this is of type int"),
    ("00.3", 18, "units of one stage"),
    ("00.3", 110, "counted convolutions"),
    ("00.3", 55, "55 is wrong"),
    ("00.3", "many", "give a number; this is of type str"),
    ("00.3", float("nan"), "not a finite number"),
    ("01.1", lambda x, a, b: relu(x + relu(relu(x) @ a) @ b), "ReLU after the addition"),
    ("01.1", lambda x, a, b: relu(x) + relu(relu(x) @ a) @ b, "your shortcut carries relu(x)"),
    ("01.1", lambda x, a, b: relu(relu(x) @ a) @ b, "the shortcut is missing"),
    ("01.1", lambda x, a, b: x + relu(x @ a) @ b, "that is the original order"),
    ("01.1", lambda x, a, b: x + relu(relu(x) @ a @ b), "belongs before it"),
    ("01.1", lambda x, a, b: x + relu(x) @ a @ b, "two linear maps are one"),
    ("01.1", lambda x, a, b: x * 7, "it is not x + relu(relu(x) W1) W2"),
    ("01.1", changes_x, "modifies x in place"),
    ("01.1", lambda x, a, b: None, "returns nothing"),
    ("01.1", lambda x: x, "checking it raised TypeError"),
    ("01.2", "BN ReLU conv", "give a list"),
    ("01.2", ["BN", "ReLU", "pool"], "'pool' is not one of"),
    ("01.2", ["BN", "ReLU", "conv"], "you gave 3 words"),
    ("01.2", ["conv", "BN", "ReLU"] * 2, "the order of a plain network"),
    ("01.2", ["ReLU", "BN", "conv"] * 2, "BN comes after ReLU"),
    ("01.2", ["BN", "ReLU", "conv", "conv", "BN", "ReLU"], "position 4 is wrong"),
    ("01.3", copied_unit, "the linter reports"),
    ("01.3", lambda x: layers.ReLU()(layers.Add()([x, conv(conv(x))])), "ReLU"),
    ("01.3", lambda x: layers.Conv2D(4, 1)(x), "it must keep the shape"),
    ("01.3", conv, "no keras.layers.Add"),
    ("01.3", lambda x: layers.Add()([x, conv(x)]), "should have two convolutions, not 1"),
    ("01.3", lambda x: 3, "must return the tensor"),
    ("02.1", lambda x, residuals: sum(residuals), "x_l itself is missing"),
    ("02.1", lambda x, residuals: relu(x + sum(residuals)), "there is a ReLU in it"),
    ("02.1", lambda x, residuals: x + np.prod(residuals, axis=0), "they add up"),
    ("02.1", lambda x, residuals: x + residuals[-1], "only the last residual"),
    ("02.1", lambda x, residuals: x + sum(residuals[:-1]), "left out the last"),
    ("02.1", lambda x, residuals: x, "it is not x_l + Σ"),
    ("02.2", 0, "the gradient is 1"),
    ("02.2", 1, "(1 + w)² = 4"),
    ("02.2", -2, "not 0"),
    ("02.3", lambda g, jacobians: g, "return two values"),
    ("02.3", backwards, "in the wrong order"),
    ("02.3", lambda g, jacobians: (0 * g, g), "whatever F is"),
    ("02.3", lambda g, jacobians: (g, g @ sum(jacobians)), "unit by unit"),
    ("02.3", lambda g, jacobians: (g, sum(two_terms(g, jacobians))), "subtract the direct term"),
    ("02.3", lambda g, jacobians: two_terms(g, jacobians[::-1]), "begin with the last unit"),
    ("02.3", lambda g, jacobians: (g, 0 * g), "the term through the weights is"),
    ("03.1", sum, "units in a row multiply"),
    ("03.1", lambda scales: None, "returns nothing"),
    ("03.1", lambda scales: 7, "not 0.5"),
    ("03.2", 92, "still above"),
    ("03.2", 94, "it happens earlier"),
    ("03.2", 92.5, "not a whole number of units"),
    ("03.3", 0.5, "0.5 to the power of 54"),
    ("03.3", -0.9, "a negative scale"),
    ("04.1", lambda bias, units: (1 / (1 + np.exp(-bias))) ** units, "that is the factor of F"),
    ("04.1", lambda bias, units: units / (1 + np.exp(bias)), "units in a row multiply"),
    ("04.1", lambda bias, units: 1 / (1 + np.exp(bias)), "that is one unit"),
    ("04.1", lambda bias, units: 2.0, "it returns 2"),
    ("04.1", lambda bias, units: None, "returns nothing"),
    ("04.2", 3.24, "wrong sign"),
    ("04.2", -6, "0.956 of the signal"),
    ("04.3", 18 * (16**2 + 32**2 + 64**2), "two units change the shape"),
    ("04.3", 18 * 16 + 17 * 32 + 17 * 64, "not c"),
    ("04.3", 9 * RIGHT["04.3"], "3×3"),
    ("04.3", 1000, "1,000 is not 18"),
    ("05.1", "full_preactivation", "give a list"),
    ("05.1", ["pre"], "pre is not a placement"),
    ("05.1", ["original"], "not original"),
    ("05.1", ["bn_after_addition"], "full_preactivation is missing"),
    ("05.1", ["full_preactivation"], "one is missing"),
    ("05.2", 1 / (2 * np.pi) ** 0.5, "mean of one residual"),
    ("05.2", 2 * RIGHT["05.2"], "twice that of max"),
    ("05.2", 27, "their mean is not 1"),
    ("05.2", (54 / (2 * np.pi)) ** 0.5, "not with its square root"),
    ("05.2", 3, "3 is not 54 times"),
    ("05.3", "full_preactivation", "give a Placement"),
    ("05.3", Placement("mine", "mine", after_addition=("relu",)), "f is not the identity"),
    ("05.3", Placement("mine", "mine"), "the first convolution sees"),
    ("05.3", Placement("mine", "mine", first=("norm",), between=("relu",)), "the second convolution sees"),
    ("05.3", Placement("mine", "mine", first=("norm",), last=("relu",)), "can only push the signal up"),
    ("05.3", Placement("mine", "mine", first=("norm",), between=("norm",)), "it has no ReLU"),
    ("05.3", Placement("mine", "mine", first=("norm", "relu")), "that is full_preactivation"),
    ("06.1", lambda depth, convolutions: depth / (3 * convolutions), "two layers belong to no unit"),
    ("06.1", lambda depth, convolutions: (depth - 2) / convolutions, "all three stages"),
    ("06.1", lambda depth, convolutions: 18, "for depth 1001"),
    ("06.1", lambda depth, convolutions: None, "returns nothing"),
    ("06.2", lambda body, x, w: run_stack(body, x, w[::-1]), "begins with the last"),
    ("06.2", lambda body, x, w: run_stack(body, x, [w[0]] * 5), "the first unit's weights"),
    ("06.2", lambda body, x, w: body(x, w[0]), "stops after one unit"),
    ("06.2", lambda body, x, w: run_stack(body, x, w[:-1]), "one unit too early"),
    ("06.2", lambda body, x, w: x + run_stack(body, x, w), "adds x once more"),
    ("06.2", lambda body, x, w: [body(x, each) for each in w][-1], "each unit receives x itself"),
    ("06.2", lambda body, x, w: x, "one after the other"),
    ("06.3", 110**0.5, "a whole number"),
    ("06.3", 1, "with k = 1 the sum is 111.0"),
    ("06.3", 0, "from 1 to 110"),
    ("07.1", 20_345, "not a power of two"),
    ("07.1", 2**14, "below 2^-14"),
    ("07.1", 2**16, "half of 65536 is enough"),
    ("07.2", lambda step: 0.1, "still in the warm-up"),
    ("07.2", lambda step: 0.01 if step < 399 else 0.1, "one step too early"),
    ("07.2", lambda step: 0.01 if step <= 400 else 0.1, "counted from 0"),
    ("07.2", lambda step: None, "returns nothing"),
    ("07.2", lambda step: 1.0, "at step 0 it returns 1"),
    ("07.3", "weights", "give a list"),
    ("07.3", ["weights", "learning rate"], "the schedule and the step determine it"),
    ("07.3", ["weights", "colour"], "'colour' is not in the list"),
    ("07.3", ["weights", "moving averages", "step", "random state"], "the momentum"),
    ("08.1", 99, "a bottleneck has three"),
    ("08.1", 200 / 3, "two layers belong to no unit"),
    ("08.1", 50, "make 152 layers"),
    ("08.2", lambda size, stride: size // 4, "return a list of four heights"),
    ("08.2", lambda size, stride: [size // s for s in (4, 8, 16, 32)], "no map is smaller than 28"),
    ("08.2", lambda size, stride: [2 * h for h in RIGHT["08.2"](size, stride)], "then the pooling by 2"),
    ("08.2", lambda size, stride: [1, 2, 3, 4], "for 224 pixels and an output stride of 32"),
    (
        "08.2",
        lambda size, stride: [56, 28, 14, 7] if stride == 32 else [size // stride] * 4,
        "first stages do not change",
    ),
    ("08.2", lambda size, stride: [None] * 4, "returns nothing"),
    ("08.3", lambda network, stage: None, "nothing is frozen"),
    ("08.3", lambda network, stage: freeze(network, lambda place, first: True, stage), "even the classifier"),
    ("08.3", lambda network, stage: freeze(network, lambda place, first: place == 0, stage), "but is still trained"),
    ("08.3", lambda network, stage: freeze(network, lambda place, first: place <= first, stage), "but is frozen"),
    ("08.3", 3, "give a function"),
    ("09.1", lambda x, n1, a, n2, f: n2(n1(x + a(x)) + f(n1(x + a(x)))), "that is post-norm"),
    ("09.1", lambda x, n1, a, n2, f: pre_norm(x, n2, a, n1, f), "the two norms are swapped"),
    ("09.1", lambda x, n1, a, n2, f: x + a(n1(x)), "feed-forward branch is missing"),
    ("09.1", lambda x, n1, a, n2, f: x + f(n2(x)), "attention branch is missing"),
    ("09.1", lambda x, n1, a, n2, f: x + a(n1(x)) + f(n2(x)), "receive the same signal"),
    ("09.1", lambda x, n1, a, n2, f: pre_norm(x, n1, a, lambda y: y, f), "second branch has no norm"),
    ("09.1", lambda x, n1, a, n2, f: pre_norm(x, lambda y: y, a, n2, f), "first branch has no norm"),
    ("09.1", lambda x, n1, a, n2, f: f(n2(a(n1(x)))), "shortcuts are missing"),
    ("09.1", lambda x, n1, a, n2, f: activated_path(x, n1, a, n2, f), "add x itself"),
    ("09.1", lambda x, n1, a, n2, f: x, "it is not x + attention"),
    ("09.2", lambda depths, norms: np.polyfit(depths, norms, 1)[0], "take logarithms"),
    ("09.2", lambda depths, norms: np.polyfit(np.log(depths), np.log(norms), 1), "the first of them"),
    ("09.2", lambda depths, norms: -RIGHT["09.2"](depths, norms), "the sign is wrong"),
    ("09.2", lambda depths, norms: 1 / RIGHT["09.2"](depths, norms), "are swapped"),
    ("09.2", lambda depths, norms: 3.0, "it returns 3"),
    ("09.2", lambda depths, norms: None, "returns nothing"),
    ("09.3", lambda step, peak, steps: peak * step / steps, "keeps rising"),
    ("09.3", lambda step, peak, steps: peak, "it starts at 0.1"),
    ("09.3", lambda step, peak, steps: peak * min(1, step / steps) ** 2, "not 0.05"),
    ("09.3", lambda step, peak, steps: None, "returns nothing"),
    ("10.1", lambda unit: True, "passes the original unit"),
    ("10.1", lambda unit: np.array_equal(np.array(unit(abs(NORMAL))), abs(NORMAL)), "negative values"),
    ("10.1", lambda unit: np.allclose(unit(NORMAL), NORMAL, rtol=0.01), "test for equality"),
    ("10.1", lambda unit: False, "fails the full pre-activation unit"),
    ("10.1", lambda unit: None, "returns nothing"),
    ("10.2", "unit4", "adds its input unchanged"),
    ("10.2", "stage1_unit04", "give the name of a unit"),
    ("10.3", lambda w, g, rate, decay: w - rate * g - decay * w, "not multiplied by the learning rate"),
    ("10.3", lambda w, g, rate, decay: w - rate * (g + 2 * decay * w), "twice as fast"),
    ("10.3", lambda w, g, rate, decay: w - rate * g, "the decay is missing"),
    ("10.3", lambda w, g, rate, decay: w - rate * (g - decay * w), "the weights grow"),
    ("10.3", lambda w, g, rate, decay: w + rate * (g + decay * w), "up the gradient"),
    ("10.3", lambda w, g, rate, decay: w, "it is not w"),
    ("11.1", lambda units: 1 / units, "a scale enters squared"),
    ("11.1", lambda units: 1, "the variance at the end is 5"),
    ("11.1", lambda units: None, "returns nothing"),
    ("11.2", 0.2, "give two numbers"),
    ("11.2", (1, 2, 3), "not 3"),
    ("11.2", (64**-0.25, 1024**-0.25), "a power of β"),
    ("11.2", (64**-0.5, 1024**-0.5), "a power of β"),
    ("11.2", (1 / 8**0.5 / 2, 1 / 128**0.5 / 2), "that is β/α"),
    ("11.2", (16, 128), "the inverse"),
    ("11.2", (1 / 128, 1 / 16), "8 blocks come first"),
    ("11.2", (1, 1), "α is 2"),
    ("11.3", 3, "give a subclass"),
    ("11.3", type("Empty", (Shortcut,), {}), "no call"),
    ("11.3", Forgets, "get_config must include"),
    (
        "11.3",
        type("Half", (Shortcut,), {"call": lambda self, x, residual: 0.1 * (x + residual)}),
        "x is scaled too",
    ),
    ("11.3", type("Sum", (Shortcut,), {"call": lambda self, x, residual: x + residual}), "it should return 2"),
    ("11.3", type("Fixed", (Shortcut,), {"call": lambda self, x, residual: x + 0.1 * residual}), "has no argument c"),
    ("11.3", type("Shy", (Damped,), {"keeps_identity": False}), "does not declare it"),
]


@pytest.mark.parametrize("number", RIGHT)
def test_a_right_answer_is_right_and_none_is_open(number, capsys):
    check(number, RIGHT[number])
    assert capsys.readouterr().out.startswith(f"{number} right. ")
    check(number, ...)
    assert "open: replace the dots" in capsys.readouterr().out


@pytest.mark.parametrize("number, answer, words", WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_a_wrong_answer_is_told_what_is_wrong(number, answer, words, capsys):
    check(number, answer)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{number} not yet: ") and words in printed


def test_every_exercise_has_a_wrong_answer_too():
    assert {number for number, _, _ in WRONG} == set(RIGHT)


def test_the_kept_results_are_found_from_the_notebooks_and_missed_elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(FOLDER)
    assert results_folder() == FOLDER.parent / "results"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="in a clone of the repository"):
        results_folder()


def test_the_page_of_the_course_has_every_notebook_and_links_to_what_is_there():
    links = re.findall(r"\]\(([^)\s]+)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert all((FOLDER / link).exists() for link in links)
    assert {path.name for path in FOLDER.glob("[0-9]*.ipynb")} <= set(links)


def test_an_unknown_exercise():
    with pytest.raises(InputError, match="unknown notebook '99'"):
        check("99.1", 0)
    with pytest.raises(InputError, match=r"unknown exercise '00\.9'"):
        check("00.9", 0)


def cells(path, kind):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("[0-9]*.ipynb")), ids=lambda path: path.name)
class TestEveryNotebook:
    def test_says_what_it_is_about_and_what_it_does_not_show(self, path):
        text = "\n".join(cells(path, "markdown"))
        for words in ("**You will learn**", "**You need**", "**It takes**", "Predict before you run", "does not show"):
            assert words in text, words

    def test_links_to_what_is_there(self, path):
        links = re.findall(r"\]\(([^)\s]+)\)", "\n".join(cells(path, "markdown")))
        missing = [link for link in links if "://" not in link and not (path.parent / link.partition("#")[0]).exists()]
        assert links and not missing

    def test_has_three_exercises_with_solutions(self, path):
        number = path.name[:2]
        wanted = {n for n in RIGHT if n.startswith(number)}
        asked = re.findall(r'check\("([\d.]+)", ', "\n".join(cells(path, "code")))
        assert len(asked) >= 3 and set(asked) == wanted
        solutions = FOLDER / "solutions" / f"{number}_solutions.ipynb"
        solved = json.loads(solutions.read_text(encoding="utf-8"))["cells"]
        said = "".join("".join(o.get("text", "")) for c in solved for o in c.get("outputs", []))
        assert set(re.findall(r"([\d.]+) right\.", said)) == wanted and "not yet" not in said
        assert solutions.name in "\n".join(cells(path, "markdown"))
