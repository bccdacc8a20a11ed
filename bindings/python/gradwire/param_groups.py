"""Settings of some parameters of an optimizer."""

import difflib
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from .errors import InvalidArgument

__all__ = ["ParamGroup", "checked_rate", "group_of_dict", "near_text", "places_of", "row_of"]


@dataclass(frozen=True)
class ParamGroup:
    """Settings of some parameters that differ from the optimizer's.

    Attributes:
        parameters: their places in the sequence of parameters.
        weight_decay: instead of the optimizer's; None leaves it.
        learning_rate_scale: factor on the learning rate.
        adapt: layer-wise adaptation (LARS, LARC, LAMB); False gives ratio 1, as for biases.
        momentum: instead of the optimizer's (SGD, LARS, LARC); None leaves it. 0 where a compressor
            keeps a velocity ("dgc:0.1%").
        beta1, beta2: instead of the optimizer's (AdamW, LAMB); None leaves them.
        epsilon: instead of the optimizer's (AdamW, LAMB, LARS, LARC); None leaves it.
        full_state: state is float32 where the optimizer has state="8bit".
    """

    parameters: Sequence[int]
    weight_decay: Optional[float] = None
    learning_rate_scale: float = 1.0
    adapt: bool = True
    momentum: Optional[float] = None
    beta1: Optional[float] = None
    beta2: Optional[float] = None
    epsilon: Optional[float] = None
    full_state: bool = False


# Settings as other libraries call them.
_HINTS = {
    "lr": "; the learning rate is the optimizer's, learning_rate_scale a group's factor on it",
    "betas": "; beta1 and beta2 are two fields",
    "eps": "; it is called epsilon",
    "params": "; parameters are named by their places",
}


def row_of(group: ParamGroup) -> Tuple[Any, ...]:
    """As the extension's Optimizer takes it."""
    return (
        group.weight_decay,
        group.learning_rate_scale,
        group.adapt,
        group.momentum,
        group.beta1,
        group.beta2,
        group.epsilon,
        group.full_state,
    )


def checked_rate(lr: Any) -> Any:
    """A learning rate as it is. Raises InvalidArgument for what no step could take."""
    try:
        rate = float(lr)
    except (TypeError, ValueError):
        raise InvalidArgument(f"lr: is {lr!r}, must be a number") from None
    if not 0.0 <= rate < float("inf"):
        raise InvalidArgument(f"lr: is {rate}, must be finite and >= 0")
    return lr


def near_text(name: str, known: Iterable[str]) -> str:
    """What may have been meant, as an error says it behind the name; empty: nothing is near."""
    close = difflib.get_close_matches(name.lower(), list(known), 1, 0.75)
    return f" (did you mean '{close[0]}'?)" if close else ""


def group_of_dict(fields: Dict[str, Any]) -> ParamGroup:
    """Raises InvalidArgument for a field that a group does not have."""
    known = list(ParamGroup.__dataclass_fields__)
    for field in fields:
        if field not in known:
            raise InvalidArgument(
                f"groups: a group has the field '{field}', known: {', '.join(known)}{_HINTS.get(field, '')}"
            )
    if "parameters" not in fields:
        raise InvalidArgument(
            f"groups: a group has the fields {', '.join(fields)}, must have parameters"
        )
    return ParamGroup(**fields)


def places_of(groups: List[ParamGroup], count: int) -> List[int]:
    """The group of each parameter: 0 for those no group names, else the group's place from 1."""
    places = [0] * count
    for place, group in enumerate(groups, start=1):
        for parameter in group.parameters:
            if not 0 <= parameter < count:
                raise InvalidArgument(
                    f"groups[{place - 1}]: names parameter {parameter}, must be in [0, {count})"
                )
            if places[parameter] != 0:
                raise InvalidArgument(
                    f"groups[{place - 1}]: names parameter {parameter}, "
                    f"which groups[{places[parameter] - 1}] has already"
                )
            places[parameter] = place
    return places
