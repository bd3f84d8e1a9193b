"""f and the order inside F: Table 2 (Fig. 4) of the paper as data.

A placement lists the batch norms and ReLUs around a unit's weight layers. The six placements differ only in six tuples;
`branches.py` and `units.py` read these tuples and never test a placement's name.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from keras_preact.errors import InputError, check_choice

NORM = "norm"
RELU = "relu"
OPERATIONS = ((), (NORM,), (RELU,), (NORM, RELU))
"""The operations that one place can have."""


@dataclass(frozen=True)
class Placement:
    """Where a residual unit has normalization and ReLU.

    Attributes:
        name: the name in layers, models and the command line.
        figure: the panel of the paper's Fig. 4, or a word for a placement that is not in the paper.
        first: operations before the first weight layer: the pre-activation. This and all other places are tuples:
            `()`, `("norm",)`, `("relu",)` or `("norm", "relu")`. Default `()`.
        between: operations between two weight layers. Default `("norm", "relu")`.
        last: operations after the last weight layer, before the addition. Default `()`.
        after_addition: operations after the addition: f of Eq. (2). Default `()`: f is the identity.
        stem: operations after the network's first convolution, "right after conv1 and before splitting into two
            paths" (appendix of the paper). Default: norm and ReLU, without those that `first` already has.
        head: operations between the network's last unit and its pooling. Default: `first`, as if another unit
            followed.

    Raises:
        InputError: a place has operations other than norm and ReLU, or ReLU before norm.

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
            if (steps := getattr(self, place)) not in OPERATIONS:
                allowed = ", ".join(map(str, OPERATIONS))
                raise InputError(f"the placement {self.name} has {place}={steps!r}; use one of {allowed}")

    @property
    def identity_after_addition(self) -> bool:
        """Whether f of Eq. (2) is the identity, so that Eq. (4) holds exactly between units of equal shape."""
        return not self.after_addition

    @property
    def normalizes_projection(self) -> bool:
        """Whether a projection shortcut ends in a normalization: it does if the residual branch does."""
        return NORM in self.last


PLACEMENTS: dict[str, Placement] = {
    placement.name: placement
    for placement in (
        Placement("original", "a", last=(NORM,), after_addition=(RELU,)),
        Placement("bn_after_addition", "b", after_addition=(NORM, RELU)),
        Placement("relu_before_addition", "c", last=(NORM, RELU)),
        Placement("relu_only_preactivation", "d", first=(RELU,), last=(NORM,)),
        Placement("full_preactivation", "e", first=(NORM, RELU)),
        # Not in the paper: (d) pre-activates with ReLU alone, this one with batch norm alone.
        Placement("bn_only_preactivation", "extension", first=(NORM,), stem=(), head=(NORM, RELU)),
    )
}
"""The placements of convolutional units by name: the five of Table 2, and `bn_only_preactivation`, an extension."""

NORM_PLACEMENTS: dict[str, Placement] = {
    placement.name: placement
    for placement in (
        Placement("pre_norm", "Transformer", first=(NORM,), between=(), stem=()),
        Placement("post_norm", "Transformer", between=(), after_addition=(NORM,), stem=()),
        Placement("sandwich", "Transformer", first=(NORM,), between=(), last=(NORM,), stem=()),
        Placement("no_norm", "Transformer", between=(), stem=()),
    )
}
"""Where the sublayers of a Transformer have their normalization."""


def get_placement(placement: str | Placement | dict[str, Any], known: dict[str, Placement] = PLACEMENTS) -> Placement:
    """Return the placement with this name in `known`.

    A `Placement`, for example a custom one, is returned unchanged. A dictionary, as in the configuration of a saved
    layer, is converted to a `Placement`.

    Raises:
        InputError: the name is unknown, or the dictionary has missing or unknown fields.

    Example:

    >>> get_placement("original").after_addition
    ('relu',)
    """
    if isinstance(placement, Placement):
        return placement
    if isinstance(placement, dict):
        names = [field.name for field in fields(Placement)]
        if not {"name", "figure"} <= set(placement) <= set(names):
            raise InputError(
                f"a placement cannot have the fields {list(placement)}; name and figure are required, and "
                f"{', '.join(names[2:])} are optional"
            )
        return Placement(
            **{key: tuple(x) if isinstance(x, list) else x for key, x in placement.items()}  # type: ignore[arg-type]
        )
    return known[check_choice("placement", placement, known)]


def placement_config(placement: Placement, known: dict[str, Placement] = PLACEMENTS) -> str | dict[str, Any]:
    """Return the placement in the form that a configuration saves: its name, or its fields if it is a custom one.

    >>> placement_config(PLACEMENTS["original"])
    'original'
    """
    return placement.name if known.get(placement.name) == placement else asdict(placement)
