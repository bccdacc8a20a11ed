"""Settings of a param group of torch's, as the core takes them."""

import difflib
import inspect
from typing import Any, Dict, Iterable, Optional, Tuple

from ..errors import InvalidArgument
from ..param_groups import ParamGroup, checked_rate, row_of

__all__ = ["UnknownKeyword", "refuse_misspelt", "refuse_unknown_keywords", "row_of_group"]

# Settings as people call them elsewhere.
_ALIASES = {
    "wd": "weight_decay", "decay": "weight_decay", "learning_rate": "lr", "beta": "betas",
    "beta1": "betas", "beta2": "betas", "epsilon": "eps", "mom": "momentum", "mu": "momentum",
}  # fmt: skip
# What torch.optim's constructors take besides.
_OF_TORCH = {
    **dict.fromkeys(("fused", "foreach"), " of torch.optim: a step is one call anyhow, leave it out"),
    **dict.fromkeys(
        ("amsgrad", "maximize", "dampening", "differentiable", "capturable", "decoupled_weight_decay"),
        " of torch.optim, which is not there",
    ),
}
_ALIKE = 0.9  # of a misspelt name and the right one; "weight_decay_mult" is somebody's own


def refuse_misspelt(group: Dict[str, Any], settings: Iterable[str]) -> None:
    """Raises InvalidArgument for a key that was meant to be one of the settings.

    Others stay: schedulers and scripts keep theirs in groups ("initial_lr", "name", "lr_scale").
    """
    known = [*settings, "full_state"]
    for key in set(group) - {*known, "params", "param_names"}:
        close = difflib.get_close_matches(key.lower(), known, 1, _ALIKE)
        meant = _ALIASES.get(key, close[0] if close else None)
        if meant in known:
            raise InvalidArgument(
                f"params: a group has the key '{key}', which nothing reads, must be '{meant}'; "
                f"settings of a group are {', '.join(known)}"
            )


class UnknownKeyword(InvalidArgument, TypeError):
    """As Python's own error for it, of which programs that try torch's keywords first know."""


def refuse_unknown_keywords(kind: type, keywords: Iterable[str]) -> None:
    """Raises UnknownKeyword for one that the class does not take."""
    taken = list(inspect.signature(kind.__init__).parameters.values())[1:]  # type: ignore[misc]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
        return  # somebody's own class, which knows
    known = [parameter.name for parameter in taken]
    for key in keywords:
        if key not in known:
            meant = _ALIASES.get(key)
            why = _OF_TORCH.get(key, f" (did you mean '{meant}'?)" if meant in known else "")
            raise UnknownKeyword(
                f"{kind.__name__}: unknown keyword '{key}'{why}; known: {', '.join(known)}"
            )


def row_of_group(group: Dict[str, Any]) -> Tuple[Any, ...]:
    """Raises InvalidArgument for what is no number, no two numbers, neither True nor False."""
    lr = float(checked_rate(group["lr"]))
    betas = group.get("betas", (None, None))
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise InvalidArgument(f"betas: is {betas!r}, must be two numbers in [0, 1)")
    return row_of(
        ParamGroup(
            (),
            weight_decay=_number("weight_decay", group.get("weight_decay")),
            learning_rate_scale=lr,
            adapt=_switch("adapt", group.get("adapt", True)),
            momentum=_number("momentum", group.get("momentum")),
            beta1=_number("betas", betas[0]),
            beta2=_number("betas", betas[1]),
            epsilon=_number("eps", group.get("eps")),
            full_state=_switch("full_state", group.get("full_state", False)),
        )
    )


def _number(key: str, value: Any) -> Optional[float]:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{key}: is {value!r}, must be a number") from None


def _switch(key: str, value: Any) -> bool:
    if not isinstance(value, bool):  # "no" would be true
        raise InvalidArgument(f"{key}: is {value!r}, must be True or False")
    return value
