"""f and the order inside F: Table 2 (Fig. 4) of the paper as data.

A placement says where batch norm and ReLU stand around a unit's weight layers. The six of them differ in six
tuples and in nothing else; `branches.py` and `units.py` read the tuples and know no placement by name.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from keras_preact.errors import InputError, check_choice

NORM = "norm"
RELU = "relu"
ORDERS = ((), (NORM,), (RELU,), (NORM, RELU))
"""What can stand in one place."""


@dataclass(frozen=True)
class Placement:
    """Where normalization and ReLU stand in a residual unit.

    Attributes:
        name: the name that layers, models and the command line take.
        figure: the panel of the paper's Fig. 4, or a word for an extension of this package.
        first: operations before the first weight layer: the pre-activation.
        between: operations between two weight layers.
        last: operations after the last weight layer, before the addition.
        after_addition: operations after the addition: f of Eq. (2). Empty means that f is the identity.
        stem: operations after the network's first convolution. Default: what is lacking in the pre-activation of
            the first unit to norm and ReLU, "right after conv1 and before splitting into two paths" (appendix of the
            paper).
        head: operations between the last unit of a network and its pooling. Default: the pre-activation that a
            further unit would have begun with.

    Raises:
        InputError: a place holds something else, or ReLU before the normalization.

    Example:

    >>> full = PLACEMENTS["full_preactivation"]
    >>> full.first, full.after_addition, full.identity_after_addition
    (('norm', 'relu'), (), True)
    >>> mine = Placement("mine", "mine", first=("norm", "relu"), last=("norm",))
    >>> mine.stem, mine.head
    ((), ('norm', 'relu'))
    """

    name: str
    figure: str
    first: tuple[str, ...] = ()
    between: tuple[str, ...] = (NORM, RELU)
    last: tuple[str, ...] = ()
    after_addition: tuple[str, ...] = ()
    stem: tuple[str, ...] = None  # type: ignore[assignment]  # set below
    head: tuple[str, ...] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.stem is None:
            object.__setattr__(self, "stem", tuple(kind for kind in (NORM, RELU) if kind not in self.first))
        if self.head is None:
            object.__setattr__(self, "head", self.first)
        for place in ("first", "between", "last", "after_addition", "stem", "head"):
            if (given := getattr(self, place)) not in ORDERS:
                raise InputError(f"the placement {self.name} has {place}={given!r}; give one of {ORDERS}")

    @property
    def identity_after_addition(self) -> bool:
        """Whether f of Eq. (2) is the identity, so that Eq. (4) holds exactly between units of equal shape."""
        return not self.after_addition

    @property
    def normalizes_projection(self) -> bool:
        """Whether a projection shortcut ends in a normalization: it does where the residual branch does."""
        return NORM in self.last


PLACEMENTS: dict[str, Placement] = {
    placement.name: placement
    for placement in (
        Placement("original", "a", last=(NORM,), after_addition=(RELU,)),
        Placement("bn_after_addition", "b", after_addition=(NORM, RELU)),
        Placement("relu_before_addition", "c", last=(NORM, RELU)),
        Placement("relu_only_preactivation", "d", first=(RELU,), last=(NORM,)),
        Placement("full_preactivation", "e", first=(NORM, RELU)),
        # Not in the paper: what (d) does with ReLU alone, done with batch norm alone.
        Placement("bn_only_preactivation", "extension", first=(NORM,), stem=(), head=(NORM, RELU)),
    )
}


NORM_PLACEMENTS: dict[str, Placement] = {
    placement.name: placement
    for placement in (
        Placement("pre_norm", "Transformer", first=(NORM,), between=(), stem=()),
        Placement("post_norm", "Transformer", between=(), after_addition=(NORM,), stem=()),
        Placement("sandwich", "Transformer", first=(NORM,), between=(), last=(NORM,), stem=()),
        Placement("no_norm", "Transformer", between=(), stem=()),
    )
}
"""Where a Transformer's sublayers have their normalization: the same data, for another F."""


def get_placement(placement: str | Placement | dict[str, Any], known: dict[str, Placement] = PLACEMENTS) -> Placement:
    """Return the placement of that name among the `known` ones.

    A `Placement` (a reader's own variant) is returned as it is; a dictionary, as a saved layer has it, is made one.

    Raises:
        InputError: no placement has that name, or a dictionary has other fields.

    Example:

    >>> get_placement("original").after_addition
    ('relu',)
    """
    if isinstance(placement, Placement):
        return placement
    if isinstance(placement, dict):
        if not {"name", "figure"} <= set(placement) <= {each.name for each in fields(Placement)}:
            names = ", ".join(each.name for each in fields(Placement))
            raise InputError(f"a placement has a name, a figure, and of {names} what it needs; not {list(placement)}")
        return Placement(
            **{key: tuple(x) if isinstance(x, list) else x for key, x in placement.items()}  # type: ignore[arg-type]
        )
    return known[check_choice("placement", placement, known)]


def placement_config(placement: Placement, known: dict[str, Placement] = PLACEMENTS) -> str | dict[str, Any]:
    """Return what `get_placement` makes the placement of: its name, or its fields where it is a reader's own.

    >>> placement_config(PLACEMENTS["original"])
    'original'
    """
    return placement.name if known.get(placement.name) == placement else asdict(placement)
