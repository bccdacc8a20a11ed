"""Exchanges that have gradients in this process: a parameter's are exchanged once."""

import weakref
from typing import TYPE_CHECKING, Iterable

import torch

from ..errors import InvalidArgument

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["live", "refuse_exchanged"]

live: "weakref.WeakSet[GradientExchange]" = weakref.WeakSet()


def refuse_exchanged(parameters: Iterable[torch.Tensor], expected: str) -> None:
    """Raises InvalidArgument where one that is not closed has gradients of one of them."""
    for parameter in parameters:
        for other in list(live):
            name = other._names.get(id(parameter))
            if name is not None and not other._closed:
                raise InvalidArgument(
                    f"parameter '{name}': an exchange has its gradients already, {expected}"
                )
