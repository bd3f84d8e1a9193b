"""All uses of Keras's private API. `tests/test_keras_private.py` fails if a release of Keras changes one."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import keras
from keras.src import api_export
from keras.src.backend import compute_output_spec
from keras.src.backend.common import global_state, stateless_scope
from keras.src.backend.common.masking import get_keras_mask, set_keras_mask
from keras.src.backend.common.variables import AutocastScope, initialize_all_variables
from keras.src.layers.layer import CallContext
from keras.src.saving import saving_lib, serialization_lib

# ---- layers -------------------------------------------------------------------------------------------------------


def layers_inside(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return all inner layers of a layer, at any depth, each before its own inner layers."""
    return list(layer._flatten_layers(include_self=False))


def direct_layers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the list of a layer's direct inner layers, in the order in which Keras saves them.

    A layer appended to the list is tracked, for example for freezing, but not saved: Keras saves attributes only.
    """
    return layer._layers


def own_trainable(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the layer's own variables created as trainable, whether the layer is frozen or not."""
    return list(layer._trainable_variables)


def own_state(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the layer's own variables created as non-trainable."""
    return list(layer._non_trainable_variables)


def move_variables(layer: keras.layers.Layer, above: str) -> None:
    """Move the paths of the variables of a new layer below `above` and the layer's name.

    Those that a layer, or a functional model in it, creates in its constructor have the same paths in every copy. On
    PyTorch, Keras finds the parameters of a model by these paths.
    """
    for variable in layer.variables:
        path = variable._path
        below = path if path.startswith(f"{layer.name}/") else f"{layer.name}/{path}"
        variable._path = f"{above}/{below}"


def seed_generators(layer: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """Return the layer's own seed generators."""
    return list(layer._seed_generators)


@contextlib.contextmanager
def calling(training: bool | None) -> Iterator[None]:
    """Return a context in which layers that are called without the argument `training` use this value.

    `Layer.__call__` opens such a context. `call` runs without one in the recomputation of a checkpointed layer and in
    `stateless_call`. In `super().call(x, training=False)`, the open context may have another value.
    """
    context = global_state.get_global_attribute("current_call_ctx")
    if context is not None:
        outer = context.training
        context.training = outer if training is None else training
        try:
            yield
        finally:
            context.training = outer
        return
    context = CallContext(entry_layer=None)
    context.training = training
    global_state.set_global_attribute("current_call_ctx", context)
    try:
        yield
    finally:
        global_state.set_global_attribute("current_call_ctx", None)


def track_in_checkpoints(layer: keras.layers.Layer, parts: Iterable[Any]) -> None:
    """Make TensorFlow's own checkpoints find these layers or variables of a layer; they do not look into lists."""
    if keras.backend.backend() == "tensorflow":
        for number, part in enumerate(parts):
            layer._track_trackable(part, f"part{number}", overwrite=True)


def accept_any_dtype(model: keras.Model) -> None:
    """Make a Sequential model check its inputs' dtype instead of casting them first."""
    model._convert_input_args = False


def check_arrays_on_jax(model: keras.Model, check: Callable[[Any], None]) -> None:
    """Call a function with the arrays that a model's `fit`, `predict` and so on accept, on JAX.

    There these methods do not check the specs of a model's inputs, and an error after their start loses the weights.
    """
    if keras.backend.backend() != "jax":
        return
    for name in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"):
        setattr(model, name, functools.partial(_checked, getattr(model, name), check))


def _checked(
    method: Callable[..., Any], check: Callable[[Any], None], x: Any = None, *others: Any, **options: Any
) -> Any:
    check(x)
    return method(x, *others, **options)


def parts_of_attention(attention: keras.layers.Layer) -> dict[str, keras.layers.Layer]:
    """Return the dense layers of built attention: of query, key, value, output and, if it has one, the gate."""
    parts = {name: getattr(attention, f"_{name}_dense") for name in ("query", "key", "value", "output")}
    return {**parts, "gate": attention._gate_dense} if getattr(attention, "use_gate", False) else parts


def attention_axes(attention: keras.layers.MultiHeadAttention) -> tuple[int, ...]:
    """Return the axes over which built attention attends."""
    return attention._attention_axes


# ---- optimizers ---------------------------------------------------------------------------------------------------


def last_learning_rate(optimizer: keras.optimizers.Optimizer) -> float:
    """Return the learning rate of an optimizer's last step; the present one if it follows no schedule.

    With a loss scale, the schedule counts only the steps whose gradients were finite: the others change no weights.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale
    schedule, step = inner._learning_rate, max(int(keras.ops.convert_to_numpy(inner.iterations)) - 1, 0)
    is_schedule = isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule)
    return float(keras.ops.convert_to_numpy(schedule(step) if is_schedule else inner.learning_rate))


def is_decayed(optimizer: keras.optimizers.Optimizer, variable: Any) -> bool:
    """Return whether an optimizer's `exclude_from_weight_decay` leaves a variable in the weight decay."""
    return optimizer._use_weight_decay(variable)


def variable_index(optimizer: keras.optimizers.Optimizer, variable: Any) -> int:
    """Return the index of a variable among those that an optimizer was built for."""
    return optimizer._get_variable_index(variable)


# ---- variables ----------------------------------------------------------------------------------------------------


def mask_of(x: Any) -> Any:
    """Return the mask that layers attach to a tensor for the layers after them; `None` if there is none."""
    return get_keras_mask(x)


def attach_mask(x: Any, mask: Any) -> None:
    """Attach a mask to a tensor that has none. The new tensors of a loop or a checkpointed function have none."""
    if get_keras_mask(x) is None:
        set_keras_mask(x, mask)


def stored_dtype(variable: keras.Variable) -> str:
    """Return the dtype of a variable's value. In a layer's call, `dtype` is that to which the layer casts it."""
    return str(variable._dtype)


def initializer_of(variable: keras.Variable) -> Any:
    """Return the initializer of a variable that was created in a stateless scope."""
    return variable._initializer


def is_autocast(variable: keras.Variable) -> bool:
    """Return whether a layer casts a variable to its compute dtype."""
    return bool(variable._autocast)


def without_autocast() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which variables have their own dtype, whatever the policy of the layer that reads them."""
    return AutocastScope(None)


def trace(function: Callable[..., Any], *specs: Any) -> None:
    """Run a function on symbolic tensors of these `KerasTensor` specs, without effects on variables or graphs."""
    compute_output_spec(function, *specs)


def initialize(values: dict[int, Any]) -> None:
    """Initialize all variables without values: from `values` by id, or by their own initializers."""
    for variable in global_state.get_global_attribute("uninitialized_variables", []):
        if id(variable) in values:
            variable._initializer = _returns(values.pop(id(variable)))
    initialize_all_variables()


def reseed(generator: keras.random.SeedGenerator, seed: int) -> None:
    """Give a seed generator a new state; in a trace of TensorFlow, the present one cannot be assigned."""
    path = generator.state.path
    generator.state = keras.random.SeedGenerator(seed, name=generator.name).state
    generator.state._path = path


def current_stateless_scope() -> Any:
    """Return the innermost `keras.StatelessScope` that is open, or `None`."""
    return stateless_scope.get_stateless_scope() if stateless_scope.in_stateless_scope() else None


def forget_uninitialized() -> None:
    """Leave the variables without values. Otherwise the next stateless scope would initialize them when it closes."""
    global_state.set_global_attribute("uninitialized_variables", [])


@contextlib.contextmanager
def forgotten_on_error() -> Iterator[None]:
    """If the block fails, forget its uninitialized variables: every later stateless scope would fail on them."""
    try:
        yield
    except BaseException:
        forget_uninitialized()
        raise


@contextlib.contextmanager
def without_layouts() -> Iterator[None]:
    """Within the block, the layouts of a `ModelParallel` distribution do not apply to new variables."""
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)


def _returns(value: Any) -> Callable[..., Any]:
    """Return an initializer that returns a given value."""
    return lambda shape, dtype=None: value


# ---- random numbers ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def own_random_state() -> Iterator[None]:
    """After the block, restore Keras's global seed and seed generator, which `set_random_seed` replaces."""
    names = ("global_random_seed", "global_seed_generator")
    before = {name: global_state.get_global_attribute(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            global_state.set_global_attribute(name, value)


_SEED_LOCK = threading.RLock()


@contextlib.contextmanager
def without_tensorflow_seed() -> Iterator[None]:
    """Within the block, TensorFlow has no global seed; after it, the program's again. One thread at a time.

    Keras's `set_random_seed` replaces the global seed on every backend. Operations with a seed depend on it too.
    """
    try:
        from tensorflow.python.eager.context import context  # TensorFlow has no public API for this
    except ImportError:
        yield
        return
    with _SEED_LOCK:
        state = vars(context())
        before = {key: state[key] for key in ("_seed", "_rng") if key in state}
        state["_seed"] = None
        try:
            yield
        finally:
            state.update(before)


# ---- graphs -------------------------------------------------------------------------------------------------------


def functional_of(model: keras.Sequential) -> keras.Model | None:
    """Return the functional model that a Sequential model runs; `None` until it is built."""
    return model._functional


def nodes_of(graph: keras.Model) -> Iterator[Any]:
    """Yield the calls in a functional model in execution order, without its inputs.

    A layer's `input` and `output` are those of its first call anywhere, perhaps in another model.
    """
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        yield from (node for node in graph._nodes_by_depth[depth] if not node.is_input)


def names_its_inputs(graph: keras.Model) -> bool:
    """Return whether a functional model was created from a dictionary of inputs."""
    return isinstance(graph._inputs_struct, dict)


def forget_losses(layer: keras.layers.Layer, losses: Sequence[Any]) -> None:
    """Remove losses from those that a layer has added. Keras knows them by `id`, which a later tensor may have."""
    for part in [layer, *layers_inside(layer)]:
        part._loss_ids.difference_update(map(id, losses))


def run_through(graph: keras.Model, inputs: Any, operation: Callable[[Any], Callable[..., Any]]) -> Any:
    """Return the outputs of a functional model with `operation(layer)` called in place of each layer.

    The public `clone_model` compiles the copy, and copies a shared layer once for each nested model.
    """
    return graph._run_through_graph(inputs, operation)


def producer_of(tensor: Any) -> Any:
    """Return the operation whose output is a Keras tensor."""
    return tensor._keras_history.operation


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Return the arguments of `model.compile`; `get_compile_config` fails on losses that cannot be serialized."""
    return dict(model._compile_config.config)


def decay_exclusions(optimizer: keras.optimizers.Optimizer) -> list[str]:
    """Return the names that an optimizer excludes from weight decay, as one regular expression or none."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    return [pattern.pattern] if pattern else []


def exclude_like(copy: keras.optimizers.Optimizer, optimizer: keras.optimizers.Optimizer) -> None:
    """Exclude the same names from weight decay as another optimizer; its configuration does not contain them."""
    new, old = (getattr(each, "inner_optimizer", each) for each in (copy, optimizer))
    if names := getattr(old, "excluded_names", None) or decay_exclusions(old):
        new.exclude_from_weight_decay(var_names=names)


# ---- names and files ----------------------------------------------------------------------------------------------


def public_symbol(name: str) -> Any:
    """Return Keras's public object of a name such as `keras.layers.Dense`; `None` if this release lacks it."""
    return api_export.get_symbol_from_name(name)


def objects_by_name(part: str) -> dict[str, Any]:
    """Return the objects that Keras accepts by name: of `losses`, `metrics`, `initializers`, …"""
    return defining_module(part).ALL_OBJECTS_DICT


def defining_module(part: str) -> Any:
    """Return a private module of Keras, for example `ops.numpy`."""
    return importlib.import_module(f"keras.src.{part}")


def load_variables(model: keras.Model, content: BinaryIO, visited: set[int]) -> dict[Any, Any]:
    """Load variables from the bytes of an HDF5 file; the public `load_weights` requires a path.

    Args:
        model: the network.
        content: the bytes of the file.
        visited: ids of the objects to skip; the ids of the loaded objects are added.

    Returns:
        The objects that could not be loaded, with the reasons.
    """
    failed: dict[Any, Any] = {}
    with contextlib.closing(saving_lib.H5IOStore(content, mode="r")) as store:
        saving_lib._load_state(
            model,
            weights_store=store,
            assets_store=None,
            inner_path="",
            visited_saveables=visited,
            failed_saveables=set(),
            error_msgs=failed,
        )
    return failed


def safe_mode() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which Keras refuses to load code."""
    return serialization_lib.SafeModeScope(True)


def shared_objects() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which Keras deserializes a shared object only once."""
    return serialization_lib.ObjectSharingScope()


@contextlib.contextmanager
def no_shared_objects() -> Iterator[None]:
    """Return a context outside of `shared_objects`, in which Keras loads a model.

    Within it, a copy of a layer would have the inner layers of the original.
    """
    names = ("shared_objects/id_to_obj_map", "shared_objects/id_to_config_map")
    before = {name: global_state.get_global_attribute(name) for name in names}
    for name in names:
        global_state.set_global_attribute(name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            global_state.set_global_attribute(name, value)


def open_both_writers(callback: keras.callbacks.TensorBoard) -> None:
    """Make the TensorBoard callback open its validation file now, not at the first validation result."""
    callback._val_writer  # noqa: B018
