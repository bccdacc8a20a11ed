"""Gradients that a GradScaler has scaled: residuals stay those of the gradients themselves."""

import gc
import weakref
from typing import Any, Dict, Iterable, List, Sequence, Tuple, Union

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..errors import InvalidArgument

__all__ = ["Scaler", "check_scaler", "find_scaler", "is_enabled", "own_scaler"]

# The scaler of the loss; False: there is none, or it is that of other losses; None: not known.
Scaler = Union["torch.amp.GradScaler", bool, None]

_owned: "weakref.WeakSet[torch.amp.GradScaler]" = weakref.WeakSet()


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


def own_scaler(scaler: Any) -> None:
    """It is that of the loss of an exchange: another one's find_scaler() does not take it for its own."""
    if isinstance(scaler, torch.amp.GradScaler):
        _owned.add(scaler)


def find_scaler(parameters: Iterable[torch.Tensor]) -> None:
    """Raises InvalidArgument when a GradScaler is at work in this process and belongs to no exchange.

    Residuals would be of scaled gradients, and wrong by the ratio when the scale changes. A scaler
    is not told apart from that of another model: who has one says scaler=False. One that an exchange
    was given, an open or a closed one, is its own; should it step these parameters all the same,
    their optimizer's step() raises.
    """
    others: List[Any] = []
    for found in gc.get_objects():
        # type(), because isinstance() asks the object, which may be a proxy that acts on it.
        if issubclass(type(found), torch.amp.GradScaler) and _is_at_work(found):
            if found not in _owned:
                raise InvalidArgument(
                    "scaler: a GradScaler is in use, must be given: scaler=it; or scaler=False when it "
                    "does not scale this model's loss"
                )
            others.append(found)
    if others:
        _watch(parameters, others)


_Watched = Tuple[Dict[int, "weakref.ref[torch.Tensor]"], "weakref.WeakSet[torch.amp.GradScaler]"]
_watched: List[_Watched] = []


def _watch(parameters: Iterable[torch.Tensor], scalers: Iterable[Any]) -> None:
    """Until an optimizer has stepped one of the parameters, which shows whose scaler it is."""
    global _hook
    if _hook is None:
        _hook = register_optimizer_step_pre_hook(_before_step)
    _watched.append(({id(p): weakref.ref(p) for p in parameters}, weakref.WeakSet(scalers)))


_hook: Any = None


def _before_step(optimizer: Any, *_: Any) -> None:
    for watched in list(_watched):
        refs, scalers = watched
        if all(ref() is None for ref in refs.values()):
            _watched.remove(watched)
            continue
        stepped = (p for group in optimizer.param_groups for p in group["params"])
        if not any(id(p) in refs and refs[id(p)]() is p for p in stepped):
            continue
        if any(_steps(scaler, optimizer) for scaler in scalers):
            raise InvalidArgument(
                "scaler: a GradScaler that was given to another exchange steps parameters of this one, "
                "must be given here, too: scaler=it; residuals are of scaled gradients by now"
            )
        _watched.remove(watched)


def _steps(scaler: Any, optimizer: Any) -> bool:
    """Whether this is within scaler.step(optimizer)."""
    states = getattr(scaler, "_per_optimizer_states", {})
    return id(optimizer) in states and bool(states[id(optimizer)].get("found_inf_per_device"))


def _is_at_work(scaler: Any) -> bool:
    return scaler.is_enabled() and getattr(scaler, "_scale", None) is not None
