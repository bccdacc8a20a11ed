"""What gradwire is compared with: DDP as it is, torch's own hooks, and the top-k people write.

Formulas are torch's; only ddp-topk is written here, as plainly as one would.
"""

# DDP compares the hook's annotations as objects: no `from __future__ import annotations` here.

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.algorithms.model_averaging.utils import average_parameters

from gradwire.errors import InvalidArgument

NAMES = ("ddp", "ddp-fp16", "ddp-powersgd:RANK", "ddp-post-local-sgd[:PERIOD]", "ddp-topk:DENSITY")
_POWER_SGD_BEGINS = 2  # the earliest that torch allows with error feedback
_LOCAL_SGD_BEGINS = 10  # steps with averaged gradients before
_USUAL_PERIOD = 4
_ONE_BUCKET_MB = 1 << 14


class Peer:
    """A method of others, beside gradwire's: what it does to a DDP model."""

    peer = True
    exchange = "torch"

    def decisions(self, loss: float) -> List[Dict[str, Any]]:
        """None: nothing is decided."""
        return []

    def __init__(self, name: str, amount: float) -> None:
        self._name = name
        self._amount = amount
        self._averager: Any = None

    def check(self, shapes: Any, device: str) -> None:
        """Nothing that the name has not said."""

    @property
    def moves_parameters(self) -> bool:
        """Whether ranks average parameters, not gradients."""
        return self._name == "ddp-post-local-sgd"

    @property
    def ddp_options(self) -> Dict[str, Any]:
        """Of DistributedDataParallel."""
        # powerSGD_hook begins collectives in callbacks. Over gloo those of two buckets begin in
        # another order on each rank, which ends the process: all gradients are one bucket.
        return {"bucket_cap_mb": _ONE_BUCKET_MB} if self._name == "ddp-powersgd" else {}

    def install(self, ddp: Any, timeout_s: float, seed: int) -> float:
        if self._name == "ddp-fp16":
            ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif self._name == "ddp-powersgd":
            low_rank = power_sgd.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=int(self._amount),
                start_powerSGD_iter=_POWER_SGD_BEGINS,
                random_seed=seed,
            )
            ddp.register_comm_hook(low_rank, power_sgd.powerSGD_hook)
        elif self._name == "ddp-post-local-sgd":
            # Every rank is a group of its own: torch's default is that of a machine.
            own, _ = dist.new_subgroups(group_size=1)  # type: ignore[no-untyped-call]
            begins = _LOCAL_SGD_BEGINS
            state = local_sgd.PostLocalSGDState(  # type: ignore[no-untyped-call]
                process_group=None, subgroup=own, start_localSGD_iter=begins
            )
            ddp.register_comm_hook(state, local_sgd.post_localSGD_hook)
            self._averager = averagers.PeriodicModelAverager(
                period=int(self._amount), warmup_steps=begins
            )
        elif self._name == "ddp-topk":
            ddp.register_comm_hook(HandTopK(self._amount), hand_top_k_hook)
        return 0.0  # nothing of it belongs to the training

    def after_step(self, model: Any) -> None:
        if self._averager is not None:
            self._averager.average_parameters(model.parameters())

    def settle(self, model: Any) -> None:
        """One model on all ranks, as who trains by local steps makes of theirs before it is saved."""
        if self._averager is not None:
            world: Any = dist.group.WORLD
            average_parameters(iter(list(model.parameters())), world)

    def step_counts(self) -> Dict[str, Optional[float]]:
        return {}  # torch counts none of them; the interface does

    def buckets_us(self, waited_us: int) -> List[List[int]]:
        """None: torch tells no times of them."""
        return []

    def close(self) -> None:
        """Holds nothing."""


class HandTopK:
    """State of hand_top_k_hook: what each bucket of this rank still owes."""

    def __init__(self, density: float) -> None:
        self.density = density
        self.owed: Dict[int, torch.Tensor] = {}


def hand_top_k_hook(
    state: HandTopK,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """The largest elements of gradient + residual of each rank, gathered and added by all."""
    gradient: torch.Tensor = bucket.buffer()
    owed = state.owed.get(bucket.index())
    if owed is None or owed.numel() != gradient.numel():  # DDP has made its buckets anew
        owed = state.owed[bucket.index()] = torch.zeros_like(gradient)
    owed += gradient
    kept = max(1, int(owed.numel() * state.density))
    indices = torch.topk(owed.abs(), kept, sorted=False).indices
    values = owed[indices]
    owed[indices] = 0
    world_size = dist.get_world_size()
    all_indices = [torch.empty_like(indices) for _ in range(world_size)]
    all_values = [torch.empty_like(values) for _ in range(world_size)]
    works = [
        dist.all_gather(all_indices, indices, async_op=True),
        dist.all_gather(all_values, values, async_op=True),
    ]

    def add(_: Any) -> torch.Tensor:
        gradient.zero_()
        for of_rank, theirs in zip(all_indices, all_values):
            gradient.index_add_(0, of_rank, theirs)
        return gradient.div_(world_size)

    done: torch.futures.Future[torch.Tensor] = torch.futures.collect_all(
        [work.get_future() for work in works]
    ).then(add)
    return done


def find(method: str) -> Peer:
    """Raises InvalidArgument: no such peer, or an amount that it does not take."""
    name, colon, amount = method.partition(":")
    row = _AMOUNTS.get(name)
    if row is None:
        raise InvalidArgument(f"peer '{method}': unknown, expected one of {', '.join(NAMES)}")
    read, expected = row
    try:
        return Peer(name, read(amount if colon else None))
    except ValueError:
        raise InvalidArgument(f"peer '{method}': must be {expected}") from None


def _none(amount: Optional[str]) -> float:
    if amount is not None:
        raise ValueError
    return 0.0


def _count(most: int, usual: Optional[int]) -> Callable[[Optional[str]], float]:
    def read(amount: Optional[str]) -> float:
        if amount is None and usual is not None:
            return usual
        if amount is None or not amount.isdecimal() or not 1 <= int(amount) <= most:
            raise ValueError
        return int(amount)

    return read


def _density(amount: Optional[str]) -> float:
    text = amount or ""
    density = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    if not 0 < density <= 1:
        raise ValueError
    return density


_Read = Callable[[Optional[str]], float]
_AMOUNTS: Dict[str, Tuple[_Read, str]] = {
    "ddp": (_none, "'ddp' alone"),
    "ddp-fp16": (_none, "'ddp-fp16' alone"),
    "ddp-powersgd": (_count(128, None), "followed by a rank of 1 to 128: ddp-powersgd:1"),
    "ddp-post-local-sgd": (
        _count(1 << 20, _USUAL_PERIOD),
        f"alone (averages every {_USUAL_PERIOD} steps) or followed by the steps between averages",
    ),
    "ddp-topk": (_density, "followed by a density in (0, 1]: ddp-topk:1%"),
}

__all__: List[str] = ["NAMES", "HandTopK", "Peer", "find", "hand_top_k_hook"]
