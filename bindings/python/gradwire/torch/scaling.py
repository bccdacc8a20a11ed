"""Gradients that a GradScaler has scaled: residuals stay those of the gradients themselves."""

import gc
from typing import Any, Sequence, Union

import torch

from ..errors import InvalidArgument

__all__ = ["Scaler", "check_scaler", "find_scaler", "is_enabled"]

# The scaler of the loss; False: there is none, or it is that of other losses; None: not known.
Scaler = Union["torch.amp.GradScaler", bool, None]


def check_scaler(scaler: Any, parameters: Sequence[torch.Tensor]) -> None:
    """Raises InvalidArgument for what is no scaler, or cannot go with these parameters."""
    if scaler is None or scaler is False:
        return
    if scaler is True or not hasattr(scaler, "get_scale"):
        raise InvalidArgument(f"scaler: is {scaler!r}, must be a torch.amp.GradScaler, False or None")
    for parameter in parameters:
        if parameter.dtype == torch.float16:
            raise InvalidArgument(
                "scaler: there are parameters of float16, whose gradients GradScaler does not "
                "unscale; keep parameters in float32 and use torch.autocast"
            )


def is_enabled(scaler: Any) -> bool:
    """Whether it scales: GradScaler(enabled=False) is how scripts do without."""
    return bool(scaler) and bool(scaler.is_enabled())


def find_scaler() -> None:
    """Raises InvalidArgument when a GradScaler is at work in this process.

    Residuals would be of scaled gradients, and wrong by the ratio when the scale changes. A scaler
    is not told apart from that of another model: who has one says scaler=False.
    """
    for found in gc.get_objects():
        # type(), because isinstance() asks the object, which may be a proxy that acts on it.
        if issubclass(type(found), torch.amp.GradScaler) and _is_at_work(found):
            raise InvalidArgument(
                "scaler: a GradScaler is in use, must be given: scaler=it; or scaler=False when it "
                "does not scale this model's loss"
            )


def _is_at_work(scaler: Any) -> bool:
    return scaler.is_enabled() and getattr(scaler, "_scale", None) is not None
