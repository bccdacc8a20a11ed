"""The place of an exchange in a DDP model, what becomes of it in copies of the model, and what DDP has."""

import logging
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import InvalidArgument
from .checks import refuse_sparse_layers

if TYPE_CHECKING:
    from .ddp import DDPHook

__all__ = ["Slot", "buckets_of", "closed_slot", "forget_lost", "refuse_other_hooks"]

_log = logging.getLogger("gradwire")


class Slot:
    """What DDP keeps for good: it takes one hook in its life, which may be closed and followed.

    It is the state of that hook and a forward pre-hook of the model. A copy of the model (deepcopy, pickle)
    has another reducer without hooks, and a slot without an exchange, which says so.
    """

    def __init__(self, hook: "Optional[DDPHook]" = None) -> None:
        self.hook = hook
        self._said = False

    def __call__(self, module: torch.nn.Module, args: Tuple[Any, ...]) -> None:
        """Before a forward pass."""
        if self.hook is None and not self._said and module.training and torch.is_grad_enabled():
            self._said = True
            _log.warning(
                "gradwire: this model is a copy of one with an exchange and has none itself: its gradients "
                "are averaged by DistributedDataParallel alone, without compression; "
                "gradwire.torch.register() gives it one"
            )

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Slot":
        return Slot()

    def __reduce__(self) -> Any:
        return Slot, ()


def closed_slot(ddp: DistributedDataParallel) -> Optional[Slot]:
    """Of an exchange there was."""
    hooks = getattr(ddp, "_comm_hooks", [])
    if len(hooks) == 1 and isinstance(hooks[0][1], Slot):
        slot = hooks[0][1]
        return slot if slot.hook is not None and slot.hook._closed else None
    return None


def forget_lost(ddp: DistributedDataParallel) -> None:
    """Of a copy: what its original had, since DDP lists hooks that the copy's reducer does not know."""
    hooks = getattr(ddp, "_comm_hooks", [])
    hooks[:] = [each for each in hooks if not (isinstance(each[1], Slot) and each[1].hook is None)]
    before = ddp._forward_pre_hooks
    for key in [k for k, each in before.items() if isinstance(each, Slot) and each.hook is None]:
        del before[key]


def buckets_of(
    ddp: DistributedDataParallel, named: List[Tuple[str, torch.Tensor]]
) -> List[List[torch.Tensor]]:
    """The parameters in each of its buckets: those that required gradients when it was made."""
    reducer: Any = ddp.reducer
    try:
        buckets = reducer._get_zeros_like_grad_buckets()
    except RuntimeError:  # one of sparse gradients has none
        refuse_sparse_layers(ddp.module, named, frozen_too=True)
        raise
    return [list(bucket.parameters()) for bucket in buckets]


def refuse_other_hooks(ddp: DistributedDataParallel) -> None:
    """Raises InvalidArgument for a DDP that has one."""
    # DDP keeps no list of those that are built in, but their name for its log.
    logged: Any = ddp
    name = logged._get_ddp_logging_data().get("comm_hook", "")
    if getattr(ddp, "_comm_hooks", None) or name:
        raise InvalidArgument(
            f"ddp: has a communication hook already{name and ', '}{name}, must have none; the "
            "compressor of gradwire's is changed by set_spec(), and close() makes room for another"
        )
