"""The paper's recipe as data, and the optimizer and schedules that it stands for."""

import dataclasses
import json

import keras
import numpy as np
import pytest
from harness import array

from keras_preact import InputError
from keras_preact.optimizers import KernelAdamW
from keras_preact.training import (
    RECIPES,
    AdamRecipe,
    CosineSchedule,
    CoupledSGD,
    FastRecipe,
    Recipe,
    RunConfig,
    StepSchedule,
    get_recipe,
)


def rates(schedule, steps, at):
    made = schedule.to_keras(steps)
    return [float(keras.ops.convert_to_numpy(made(step))) for step in at]


def test_the_papers_recipe():
    """Appendix: 64k steps of 128; 0.1, ÷ 10 at 32k and 48k, 0.01 for 400 steps; SGD 0.9, decay 1e-4 on everything."""
    recipe = RECIPES["paper"]
    assert (recipe.steps, recipe.batch_size, recipe.momentum, recipe.nesterov) == (64_000, 128, 0.9, False)
    assert (recipe.weight_decay, recipe.decays, recipe.augment) == (1e-4, "all", True)
    assert (recipe.inputs, recipe.reported) == ("per_pixel_mean", "last epoch, median of 5 runs")
    at = [0, 399, 400, 31_999, 32_000, 47_999, 48_000, 63_999]
    np.testing.assert_allclose(
        rates(recipe.schedule, 64_000, at), [0.01, 0.01, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001], rtol=1e-5
    )


@pytest.mark.parametrize(
    "name, epochs, batch, drops, nesterov, decay, inputs",
    [
        ("fb_resnet_torch", 164, 128, (80, 121), True, 1e-4, "per_channel"),
        ("resnet_1k_layers", 200, 64, (80, 121), True, 1e-4, "per_channel"),
        ("tensorflow_models", 182, 128, (91, 136), False, 2e-4, "per_image"),
    ],
)
def test_what_others_did(name, epochs, batch, drops, nesterov, decay, inputs):
    """Whole epochs before each drop: a trainer that counts from 1 begins epoch 81 at the lower rate."""
    recipe, epoch = RECIPES[name], 50_000 // batch
    assert (recipe.steps, recipe.batch_size, recipe.schedule.drops) == (
        epochs * epoch,
        batch,
        tuple(drop * epoch for drop in drops),
    )
    assert (recipe.nesterov, recipe.weight_decay, recipe.decays, recipe.inputs) == (nesterov, decay, "all", inputs)
    at = [0, drops[0] * epoch - 1, drops[0] * epoch, drops[1] * epoch]
    np.testing.assert_allclose(rates(recipe.schedule, recipe.steps, at), [0.1, 0.1, 0.01, 0.001], rtol=1e-5)


def test_imagenets_crops_are_not_padded_and_recipes_without_a_padding_have_the_papers():
    assert (RECIPES["imagenet"].padding, RECIPES["paper"].padding) == (0, 4)
    old = RECIPES["paper"].to_dict()
    del old["padding"]
    assert Recipe.from_dict(old) == RECIPES["paper"]


def test_an_unknown_treatment_of_the_inputs_is_refused():
    with pytest.raises(InputError, match="known: per_pixel_mean, per_channel, per_image, none"):
        Recipe("mine", 10, inputs="whitened")


def test_without_warmup():
    np.testing.assert_allclose(rates(StepSchedule(warmup_steps=0, drops=(5,)), 10, [0, 4, 5]), [0.1, 0.1, 0.01])


def test_cosine():
    got = rates(CosineSchedule(0.2, warmup_steps=10), 110, [0, 5, 10, 60, 109])
    np.testing.assert_allclose(got, [0, 0.1, 0.2, 0.1, 0.2 * (1 + np.cos(np.pi * 0.99)) / 2], atol=1e-6)
    assert rates(CosineSchedule(0.2, warmup_steps=10), 1, [0]) == [pytest.approx(0.2)]


def test_another_length_keeps_the_proportions():
    short = RECIPES["paper"].with_steps(640)
    assert (short.schedule.drops, short.schedule.warmup_steps, short.steps) == ((320, 480), 4, 640)
    with pytest.raises(InputError, match="training steps is 0; it must be an integer of at least 1"):
        short.with_steps(0)


@pytest.mark.parametrize(("steps", "epochs"), [(1, 1), (5, 1), (6, 1), (7, 2), (12, 2), (13, 3)])
def test_a_last_epoch_that_is_cut_short_counts_as_one(steps, epochs):
    assert Recipe("test", steps=steps).epochs(steps_per_epoch=6) == epochs


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_survive_json(name):
    recipe = RECIPES[name]
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize("kind", [Recipe, AdamRecipe, FastRecipe])
def test_kinds_of_recipes_survive_json(kind):
    recipe = kind("mine", 10, schedule=CosineSchedule(0.3))
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe and type(again) is kind
    assert type(again.optimizer()) is type(recipe.optimizer())


def test_the_size_of_the_images_grows_after_whole_epochs_to_full_size():
    recipe = FastRecipe("mine", 100, image_scales=(0.5, 0.75, 1.0), scale_changes=(0.5, 0.8))
    assert [recipe.image_scale(epoch, 10) for epoch in range(10)] == [0.5] * 5 + [0.75] * 3 + [1.0] * 2
    for epochs in range(1, 30):
        scales = [recipe.image_scale(epoch, epochs) for epoch in range(epochs)]
        assert scales == sorted(scales)
        assert scales[-1] == 1
    assert {Recipe("mine", 10).image_scale(epoch, 10) for epoch in range(10)} == {1}


@pytest.mark.usefixtures("kinds")
def test_a_recipe_scales_images_if_its_class_says_how():
    class Growing(Recipe):
        def image_scale(self, epoch, epochs):
            return 1.0 if epoch == epochs - 1 else 0.5

    class Other(Recipe):
        pass

    assert FastRecipe("mine", 10).scales_images and Growing("mine", 10).scales_images
    assert not Recipe("mine", 10).scales_images and not Other("mine", 10).scales_images


def test_cosine_decay_reaches_0_after_the_last_step():
    rate = CosineSchedule(0.1, warmup_steps=0).to_keras(100)
    assert float(rate(100)) == pytest.approx(0, abs=1e-8) and float(rate(99)) > 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image_scales": (0.5, 1.0)}, "2 image scales"),
        ({"scale_changes": (0.8, 0.5)}, "increasing order"),
        ({"image_scales": (0.5, 0.75, 0.9)}, "must be 1"),
        ({"inputs": "per_pixel_mean"}, "fits only one image size"),
    ],
)
def test_sizes_that_do_not_lead_to_full_size_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        a_fast_recipe(**options)


def test_an_unknown_recipe_is_refused():
    known = "paper, imagenet, fb_resnet_torch, resnet_1k_layers, tensorflow_models, short, fast, adam, demo"
    with pytest.raises(InputError, match=f"known: {known}"):
        get_recipe("quick")


@pytest.mark.parametrize("nesterov", [False, True])
def test_weight_decay_is_the_gradient_of_half_the_squared_norm(nesterov):
    """Equal to Keras's SGD on gradients to which λw was added by hand, momentum included."""
    w, reference = keras.Variable([2.0, -1.0], name="kernel"), keras.Variable([2.0, -1.0], name="kernel")
    ours = CoupledSGD(0.1, momentum=0.9, decay=0.01, nesterov=nesterov)
    plain = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=nesterov)
    for gradient in ([1.0, 0.5], [-0.3, 0.2], [0.1, 0.1]):
        ours.apply([keras.ops.array(gradient)], [w])
        plain.apply([keras.ops.array(gradient) + 0.01 * keras.ops.convert_to_tensor(reference)], [reference])
    np.testing.assert_allclose(array(w), array(reference), rtol=1e-6)


def test_it_is_not_kerass_decoupled_decay_nor_its_l2_penalty():
    w, other = keras.Variable([2.0], name="kernel"), keras.Variable([2.0], name="kernel")
    ours, keras_own = CoupledSGD(0.1, momentum=0.9, decay=0.1), keras.optimizers.SGD(0.1, 0.9, weight_decay=0.1)
    for _ in range(3):
        ours.apply([keras.ops.array([1.0])], [w])
        keras_own.apply([keras.ops.array([1.0])], [other])
    assert abs(float(w[0]) - float(other[0])) > 0.01


def test_decay_of_kernels_alone():
    kernel, gamma = keras.Variable([1.0], name="kernel"), keras.Variable([1.0], name="gamma")
    CoupledSGD(1.0, momentum=0.0, decay=0.5, decays="kernels").apply([keras.ops.zeros((1,))] * 2, [kernel, gamma])
    assert (float(kernel[0]), float(gamma[0])) == (0.5, 1.0)
    CoupledSGD(1.0, momentum=0.0, decay=0.5).apply([keras.ops.zeros((1,))] * 2, [kernel, gamma])
    assert (float(kernel[0]), float(gamma[0])) == (0.25, 0.5)


def test_variables_that_are_excluded_in_kerass_way_do_not_decay():
    for by_name in (True, False):
        for optimizer in (CoupledSGD(1.0, momentum=0.0, decay=0.5), KernelAdamW(1.0, weight_decay=0.5)):
            one, other = (keras.Variable([1.0], name=name) for name in ("kernel", "other_kernel"))
            optimizer.exclude_from_weight_decay(*([None, ["other"]] if by_name else [[other]]))
            optimizer.apply([keras.ops.zeros((1,))] * 2, [one, other])
            assert (float(one[0]), float(other[0])) == (0.5, 1.0)


def test_the_optimizer_survives_serialization():
    optimizer = RECIPES["short"].optimizer()
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert again.get_config() == optimizer.get_config()
    assert again.decay == 5e-4


# ---- numbers out of their range -------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")
NO_RATES = (-1, NAN, INF, -INF, 1e39, 10**400, True, "0.1", None)
"""What is no learning rate and no weight decay. One of a list, none of them computes an error later."""
NO_SHARES = (-0.1, 1, 1.0, 2, NAN, INF, False, "0.9", None)
NO_COUNTS = (-1, 0.5, 10.0, NAN, True, "10", None)
NO_FLAGS = (1, 0, "False", None)


def wrong_arguments():
    """Yield every constructor with every argument that has a range, and every value outside it."""
    for make in (StepSchedule, CosineSchedule, CoupledSGD, KernelAdamW):
        yield from ((make, "learning_rate", value) for value in NO_RATES)
    for make in (StepSchedule, CosineSchedule):
        yield from ((make, "warmup_steps", value) for value in NO_COUNTS)
    yield from ((StepSchedule, "warmup_learning_rate", value) for value in NO_RATES)
    yield from ((StepSchedule, "drops", value) for value in ((-1, 500), ("500",), (500.0,), (True,), (NAN,), 500, None))
    yield from ((CoupledSGD, "decay", value) for value in NO_RATES)
    yield from ((KernelAdamW, "weight_decay", value) for value in NO_RATES)
    yield from ((KernelAdamW, name, value) for name in ("beta_1", "beta_2") for value in NO_SHARES)
    for make in (a_recipe, an_adam_recipe):
        yield from ((make, "weight_decay", value) for value in NO_RATES)
        yield from ((make, name, value) for name in ("steps", "batch_size") for value in (*NO_COUNTS, 0))
        yield from ((make, "padding", value) for value in NO_COUNTS)
        yield from ((make, name, value) for name in ("nesterov", "augment") for value in NO_FLAGS)
        yield from ((make, "decays", value) for value in ("none", None, True))
        yield from ((make, "schedule", value) for value in (0.1, None, "cosine"))
    yield from ((make, "momentum", value) for make in (a_recipe, an_adam_recipe, CoupledSGD) for value in NO_SHARES)
    yield from ((CoupledSGD, "nesterov", value) for value in NO_FLAGS)
    yield from ((an_adam_recipe, "beta_2", value) for value in NO_SHARES)
    yield from ((a_fast_recipe, "label_smoothing", value) for value in NO_SHARES)
    for name in ("image_scales", "scale_changes"):
        yield from ((a_fast_recipe, name, value) for value in (0.5, None, [0.5, 1.0], (-0.5, 1.0), (1.5, 1.0), (NAN,)))
    yield from ((an_adam_recipe, "clip_norm", value) for value in (-1, 0, NAN, INF, True, "1"))


def a_recipe(**options):
    return Recipe(**{"name": "mine", "steps": 10, **options})


def an_adam_recipe(**options):
    return AdamRecipe(**{"name": "mine", "steps": 10, **options})


def a_fast_recipe(**options):
    return FastRecipe(**{"name": "mine", "steps": 10, **options})


def test_a_number_out_of_its_range_is_refused_by_name():
    for make, name, value in wrong_arguments():
        with pytest.raises(InputError) as refusal:
            make(**{name: value})
            pytest.fail(f"{make.__name__}({name}={value!r}) is accepted")
        words = {"steps": "training steps", "batch_size": "batch size", "decays": "decayed variables"}
        assert words.get(name, name) in str(refusal.value), (make, name, value)


def test_numbers_at_the_ends_of_their_ranges_are_accepted():
    StepSchedule(0, (0,), 0, 0), CosineSchedule(0, 0), a_recipe(momentum=0, weight_decay=0, padding=0)
    StepSchedule(np.float32(0.1), (np.int64(5),), warmup_steps=np.int32(0))
    CoupledSGD(0, momentum=0, decay=0), CoupledSGD(CosineSchedule().to_keras(10)), CoupledSGD(lambda: 0.1)
    an_adam_recipe(beta_2=0, clip_norm=1e-9)


def test_a_rate_that_is_a_whole_number_is_no_other():
    for schedule in (CosineSchedule, StepSchedule):
        for warmup in (0, 4):
            whole, real = (schedule(rate, warmup_steps=warmup) for rate in (1, 1.0))
            assert rates(whole, 50, range(50)) == rates(real, 50, range(50))


@pytest.mark.parametrize(
    "options, words",
    [
        ({"drops": (48_000, 32_000)}, "increasing order"),
        ({"drops": (500, 600, 550)}, "increasing order"),
        ({"drops": (399,)}, "inside the warm-up of 400 steps"),
        ({"drops": (0, 5000)}, "inside the warm-up"),
    ],
)
def test_a_schedule_whose_parts_overlap_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        StepSchedule(**options)


def test_a_step_schedule_has_the_rate_of_its_description_at_every_step():
    """Of any warm-up and drops that are accepted: at each step one rate, never the sum of two."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        warmup, *drops = sorted(rng.integers(0, 12, size=rng.integers(1, 5)).tolist())
        expected = [0.25 if step < warmup else 0.5 / 10 ** sum(step >= d for d in drops) for step in range(13)]
        got = rates(StepSchedule(0.5, tuple(drops), 0.25, warmup), 13, range(13))
        np.testing.assert_allclose(got, expected, rtol=1e-5, err_msg=f"{warmup} {drops}")


def test_a_cosine_with_the_papers_warm_up_holds_its_rate_then_falls_to_zero():
    schedule = CosineSchedule(0.1, warmup_steps=62, warmup_learning_rate=0.01)
    got = rates(schedule, 310, range(311))
    falling = [0.05 * (1 + np.cos(np.pi * step / 248)) for step in range(249)]
    np.testing.assert_allclose(got, [0.01] * 62 + falling, rtol=1e-5, atol=1e-8)
    assert rates(CosineSchedule(0.1, 0, 0.01), 10, [0]) == rates(CosineSchedule(0.1, 0), 10, [0])
    made = schedule.to_keras(310)
    copy = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(made))
    assert [float(copy(step)) for step in (0, 61, 62, 200)] == [float(made(step)) for step in (0, 61, 62, 200)]
    recipe = Recipe("mine", steps=310, schedule=schedule)
    assert Recipe.from_dict(recipe.to_dict()) == recipe
    with pytest.raises(InputError, match="warmup_learning_rate"):
        CosineSchedule(warmup_learning_rate=-1)


# ---- subclasses, and what a newer version wrote --------------------------------------------------------------------


@pytest.mark.usefixtures("kinds")
def test_a_subclass_comes_back_as_itself_by_its_name_or_its_kind():
    class Plain(Recipe):
        pass

    @dataclasses.dataclass(frozen=True)
    class WithField(AdamRecipe, kind="mine"):
        sizes: tuple[float, ...] = (0.1,)

    for made, name in ((Plain("a", 1), "Plain"), (WithField("b", 1, sizes=(0.5, 1.0)), "mine")):
        data = json.loads(json.dumps(made.to_dict()))
        again = Recipe.from_dict(data)
        assert data["kind"] == name and type(again) is type(made) and again == made


@pytest.mark.usefixtures("kinds")
def test_a_class_that_is_unknown_or_not_the_only_one_of_its_kind_is_refused():
    first = type("Mine", (Recipe,), {})("a", 1)
    second = type("Mine", (Recipe,), {})("a", 1)
    assert type(Recipe.from_dict(second.to_dict())) is type(second)
    with pytest.raises(InputError, match="another class was defined with the kind of Mine; create the recipe again"):
        first.to_dict()
    with pytest.raises(InputError, match="the kind 'Other', which is not defined here; import its subclass"):
        Recipe.from_dict({**second.to_dict(), "kind": "Other"})
    with pytest.raises(InputError, match="'adam' is the kind of AdamRecipe; define adam with another kind"):
        type("adam", (Recipe,), {})


def test_a_schedule_that_could_not_be_recorded_is_refused():
    with pytest.raises(InputError, match="it must be a StepSchedule or CosineSchedule"):
        a_recipe(schedule=type("Mine", (CosineSchedule,), {})())


def test_what_a_newer_version_recorded_is_refused():
    data = a_recipe().to_dict()
    for newer in ({**data, "new": 1}, {**data, "schedule": {**data["schedule"], "new": 1}}):
        with pytest.raises(InputError, match=r"has no new: .* a newer version of keras_preact; update it"):
            Recipe.from_dict(newer)
    with pytest.raises(InputError, match="unknown schedule 'linear'"):
        Recipe.from_dict({**data, "schedule": {"kind": "linear"}})


def test_numpys_numbers_are_recorded_as_pythons():
    made = a_recipe(steps=np.int64(2), momentum=np.float32(0.5), schedule=CosineSchedule(np.float32(0.25), np.int8(3)))
    assert Recipe.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert json.dumps(StepSchedule(drops=(np.int64(500),)).drops) == "[500]"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_as_short_as_one_step(name):
    for steps in (*range(1, 60), 100, 1000):
        assert RECIPES[name].with_steps(steps).steps == steps


def test_kerass_weight_decay_is_refused_beside_ours():
    with pytest.raises(InputError, match="decoupled decay to decay; use decay alone"):
        CoupledSGD(0.1, weight_decay=1e-4)
    with pytest.raises(InputError, match="use decay alone"):
        CoupledSGD.from_config({**CoupledSGD(0.1).get_config(), "weight_decay": 0.0})


@pytest.mark.usefixtures("kinds")
def test_a_field_as_a_plain_class_attribute_is_refused_because_it_would_have_no_effect():
    class Plain(Recipe):
        nesterov = True

    @dataclasses.dataclass(frozen=True)
    class Annotated(Recipe):
        momentum: float = 0.5

    @dataclasses.dataclass(frozen=True)
    class NotAnnotated(Recipe):
        momentum = 0.5

    class Below(Annotated):
        pass

    for kind, name in ((Plain, "nesterov"), (NotAnnotated, "momentum")):
        with pytest.raises(InputError, match=f"{kind.__name__}.{name} has no effect; decorate the class with @data"):
            kind("a", 1)
    assert Annotated("a", 1).momentum == Below("a", 1).momentum == 0.5


def test_adam_has_no_nesterov_momentum():
    with pytest.raises(InputError, match="AdamW has no Nesterov momentum; leave out nesterov"):
        AdamRecipe("a", 1, nesterov=True)


def test_drops_may_be_a_list():
    """`run.json` restores a tuple, and a schedule that differs from the restored one is refused."""
    schedule = StepSchedule(drops=[50, 75], warmup_steps=0)
    assert schedule == StepSchedule(drops=(50, 75), warmup_steps=0)
    RunConfig(recipe=Recipe("mine", steps=100, schedule=schedule)).check_recordable()
