"""Settings of a param group of torch's, as the core takes them."""

from typing import Any, Dict, Optional, Tuple

from ..errors import InvalidArgument
from ..param_groups import ParamGroup, row_of

__all__ = ["row_of_group"]


def row_of_group(group: Dict[str, Any]) -> Tuple[Any, ...]:
    """Raises InvalidArgument for what is no number, no two numbers, neither True nor False."""
    lr = _number("lr", group["lr"])
    assert lr is not None
    if not 0.0 <= lr < float("inf"):
        raise InvalidArgument(f"lr: is {lr}, must be finite and >= 0")
    betas = group.get("betas", (None, None))
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise InvalidArgument(f"betas: is {betas!r}, must be two numbers in [0, 1)")
    return row_of(
        ParamGroup(
            (),
            weight_decay=_number("weight_decay", group["weight_decay"]),
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
