"""DDP's buckets: which parameters travel together in them, and where those are in the plan."""

from array import array
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist

from .._core import Plan, Transport, move_elements
from .memory_order import Part

__all__ = ["Mapped", "ReadyOrder", "Slice", "cut", "slices_like"]


class Slice(NamedTuple):
    """A part of a buffer of DDP that holds the gradients of one bucket of the plan."""

    bucket: int
    begin: int
    numels: List[int]  # of the gradients, as DDP has them
    order: List[int]  # the i-th gradient in the plan's bucket is DDP's order[i]-th

    def address(self, buffer: torch.Tensor) -> int:
        return int(buffer.data_ptr()) + self.begin * buffer.element_size()

    def to_plan_order(self, buffer: torch.Tensor) -> None:
        """Moves the gradients to where the plan's bucket has them."""
        if self.is_moved():
            move_elements(self.address(buffer), buffer.element_size(), self.numels, self.order)

    def to_ddp_order(self, buffer: torch.Tensor) -> None:
        """The way back."""
        if self.is_moved():
            numels = [self.numels[i] for i in self.order]
            back = sorted(range(len(self.order)), key=self.order.__getitem__)
            move_elements(self.address(buffer), buffer.element_size(), numels, back)

    def is_moved(self) -> bool:
        return self.order != sorted(self.order)


class Mapped(NamedTuple):
    """A bucket of DDP, and where its parameters are in the plan."""

    buffer: Callable[[], Optional[torch.Tensor]]  # weak: DDP makes another with other buckets
    parameters: List[int]
    slices: List[Slice]  # buckets of the plan that lie in it, all of it; else none, and it is copied
    parts: List[Part]  # of the parameters
    dense: bool = False  # of a dtype that no compressor takes, and not in the plan


def slices_like(plan: Plan, parameters: Sequence[int], numels: Sequence[int], may_move: bool) -> List[Slice]:
    """Of a bucket of DDP with these parameters, one behind another. Empty where buckets of the plan have
    others with some of them, or, unless gradients `may_move`, have them in another order."""
    of_plan = [[p for group in row["groups"] for p in group["parameters"]] for row in plan.layout]
    bucket_of = {p: b for b, row in enumerate(of_plan) for p in row}
    slices: List[Slice] = []
    at = begin = 0
    while at < len(parameters):
        bucket = bucket_of[parameters[at]]
        end = at + len(of_plan[bucket])
        places = {p: i for i, p in enumerate(parameters[at:end])}
        if set(places) != set(of_plan[bucket]):
            return []
        row = Slice(bucket, begin, list(numels[at:end]), [places[p] for p in of_plan[bucket]])
        if row.is_moved() and not may_move:
            return []
        slices.append(row)
        begin += sum(row.numels)
        at = end
    return slices


def cut(bucket: Sequence[torch.Tensor], bucket_bytes: int) -> List[List[torch.Tensor]]:
    """A bucket of DDP in pieces, each of which ends where bucket_bytes are full: in its first step DDP has
    all parameters in one."""
    pieces: List[List[torch.Tensor]] = []
    room = 0
    for parameter in bucket:
        if room == 0:
            pieces.append([])
        pieces[-1].append(parameter)
        room += parameter.numel() * parameter.element_size()
        room = 0 if room >= bucket_bytes else room
    return pieces


class ReadyOrder:
    """In which order gradients of DDP's first step appear. From rank 0's it makes the buckets of all later
    ones; known before, they need no copies in the second step. Where this DDP makes them in another way
    the plan follows behind that step."""

    def __init__(
        self, ddp: Any, buckets: Sequence[Sequence[torch.Tensor]], numbers: Mapping[int, int]
    ) -> None:
        every = [p for bucket in buckets for p in bucket]
        self._parameters = [p for p in every if id(p) in numbers]
        self._numbers = numbers  # in the plan, by id()
        self._limits = _later_limits(ddp)
        self._order: List[torch.Tensor] = []
        # DDP begins with a bucket for each dtype; where there are more it has made them anew already.
        one_each = len(buckets) == len({p.dtype for p in every})
        self._known = bool(self._limits and self._parameters) and one_each  # the same on all ranks
        # One that is frozen takes no hook: then the order is known where it stays incomplete.
        watched: List[Any] = [p for p in self._parameters if self._known and p.requires_grad]
        self._hooks = [p.register_post_accumulate_grad_hook(self._order.append) for p in watched]

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def next_buckets(self, transport: Transport) -> List[List[int]]:
        """At the end of DDP's first step, by numbers in the plan. Collective. Empty where they are not
        known."""
        if not self._known:
            return []
        self.stop()
        places = {id(p): i for i, p in enumerate(self._parameters)}
        last = [places[id(p)] for p in self._order[-len(places) :]]  # those before are of no_sync()
        self._order.clear()
        if sorted(last) != list(range(len(places))):
            last = [-1] * len(places)
        words = array("i", last).tobytes()
        own = words if transport.rank == 0 else b""
        told = transport.all_gather(own, capacity=len(words), what="order of gradients")[0]
        ready = [self._parameters[i] for i in array("i", bytes(told)) if i >= 0]
        if not ready:
            return []
        # In the order they are given in, because they have numbers.
        torch_own: Any = dist
        buckets, _ = torch_own._compute_bucket_assignment_by_size(
            ready, self._limits, [False] * len(ready), list(range(len(ready)))
        )
        return [[self._numbers[id(ready[i])] for i in bucket] for bucket in buckets]


def _later_limits(ddp: Any) -> List[int]:
    """Bytes of the buckets that DDP makes behind its first step; empty where it keeps those it has, or does
    not say."""
    config = getattr(ddp, "_bucket_config", None)
    if config is None or (ddp.find_unused_parameters and not ddp.static_graph):
        return []
    _, limits = config.compute_bucket_size_limits(
        static_graph=ddp.static_graph, find_unused_parameters=ddp.find_unused_parameters
    )
    return limits or [config.first_bucket_bytes_cap, config.bucket_bytes_cap]
