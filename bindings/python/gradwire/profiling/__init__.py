"""Profiles: gradwire.profile(), and the runs behind `gradwire profile` (README.md)."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Callable, Iterable

from ..errors import InvalidArgument
from ..torch_missing import torch_missing

if TYPE_CHECKING:
    from ..torch.profiling import StepProfile

__all__ = ["profile"]


def profile(
    step_fn: Callable[[Any], Any], loader: Iterable[Any], **options: Any
) -> StepProfile:
    """Measures training steps of a PyTorch script layer by layer: gradwire.torch.profile().

        profile = gradwire.profile(train_step, loader, model=model, batch=64)
        profile.save("run.json")                    # what `gradwire simulate --profile` reads

    Args:
        step_fn: takes what the loader gives and makes one step: forward, one backward, update.
        loader: batches; begun anew when it ends early.
        options: model and batch, which must be given; name, warmup, steps, exchange: as of
            gradwire.torch.profile(), which says what they are.

    Raises:
        InvalidArgument: torch is not installed, or as gradwire.torch.profile().
    """
    needs_torch("profile")
    from ..torch import profile as measured

    return measured(step_fn, loader, **options)


def needs_torch(what: str) -> None:
    """Raises InvalidArgument: torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise InvalidArgument(torch_missing(what))
