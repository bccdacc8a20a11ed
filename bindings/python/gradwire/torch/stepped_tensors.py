"""Parameters and gradients of torch as the optimizers' core steps them, or what is wrong with them."""

from typing import Any, Iterable, List, Optional, Tuple

import torch

from ..errors import InvalidArgument
from .devices import check_device
from .saved_state import DTYPES, is_dense
from .shards import local_of

__all__ = ["check_parameter", "gradient_like", "is_zero", "momentum_free"]


def momentum_free(spec: str, rows: List[Tuple[Any, ...]]) -> bool:
    """Whether a core of these groups keeps no momentum."""
    return spec.split(":")[0] == "sgd" and all(row[3] == 0.0 for row in rows)


def check_parameter(
    parameter: torch.Tensor, others: List[torch.Tensor], name: Optional[str] = None
) -> None:
    what = f"parameter {'' if name is None else repr(name) + ' '}of shape {tuple(parameter.shape)}"
    parameter = local_of(what, parameter)
    if parameter.dtype not in DTYPES:
        raise InvalidArgument(f"{what}: is {parameter.dtype}, must be float32, float16 or bfloat16")
    check_device(what, parameter, [local_of(what, other) for other in others[:1]])
    if parameter.layout != torch.strided or not is_dense(parameter):
        raise InvalidArgument(
            f"{what}: its elements do not fill one piece of memory, must be a dense tensor"
        )
    if parameter.is_neg():
        raise InvalidArgument(f"{what}: its memory holds negatives, must its values: resolve_neg()")


def gradient_like(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient in the parameter's order of elements."""
    if gradient.layout != torch.strided:
        raise InvalidArgument(
            f"gradient of a parameter of shape {tuple(parameter.shape)}: its layout is "
            f"{gradient.layout}, must be strided; grad.to_dense() makes it so"
        )
    if gradient.device != parameter.device or gradient.dtype not in DTYPES:
        raise InvalidArgument(
            f"gradient of a parameter of shape {tuple(parameter.shape)}: is {gradient.dtype} on "
            f"{gradient.device}, must be float32, float16 or bfloat16 on {parameter.device}"
        )
    gradient = gradient.resolve_neg()
    same = all(
        n == 1 or a == b
        for a, b, n in zip(gradient.stride(), parameter.stride(), parameter.shape)
    )
    if same:
        return gradient
    ordered = torch.empty_strided(
        parameter.shape, parameter.stride(), dtype=gradient.dtype, device=gradient.device
    )
    return ordered.copy_(gradient)


def is_zero(gradients: Iterable[Optional[torch.Tensor]]) -> bool:
    """Whether there is no element that is not 0. On a GPU it waits."""
    return not any(bool(g.count_nonzero()) for g in gradients if g is not None)
