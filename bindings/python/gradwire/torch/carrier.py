"""Collectives of a torch.distributed process group as a gradwire carrier."""

import atexit
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, List, Optional

import torch
import torch.distributed as dist

from .. import _core
from ..errors import InvalidArgument
from .meeting import check_group, meeting_host

__all__ = ["transport"]

_POLL_SECONDS = 50e-6

_open: "weakref.WeakSet[_core.Transport]" = weakref.WeakSet()


def transport(
    process_group: Any = None,
    *,
    timeout: float = 30.0,
    backend: Optional[str] = None,
    control_host: Optional[str] = None,
) -> _core.Transport:
    """Joins the ranks of a process group in a gradwire transport. Collective among them.

    Makes a new group of the same ranks for itself, so that its calls never meet those of others,
    and a small control group over TCP beside it, which carries aborts and the name of a rank that
    died. Payloads are handed to torch as uint8 tensors over gradwire's own memory; a group whose
    backend works on a device only (nccl) is given copies on that device. That path has been tested
    with CPU tensors alone, never on a GPU.

    Args:
        process_group: an initialised group; by default the world's.
        timeout: seconds a peer may stay silent inside one call.
        backend: of the new group; by default that of process_group.
        control_host: numeric address of rank 0's machine at which its part of the control group
            listens; by default 127.0.0.1 where all ranks share a machine, else that of an interface
            which GRADWIRE_INTERFACE, GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names, or the one on
            the way to the others.

    Raises:
        InvalidArgument: torch.distributed is not initialised, or this rank is not in the group.
        TransportError: naming the ranks that did not come.
    """
    check_group(process_group)
    if not timeout > 0:
        raise InvalidArgument(f"timeout: is {timeout} seconds, must be above 0")
    ranks = sorted(dist.get_process_group_ranks(process_group or dist.group.WORLD))
    name = backend or dist.get_backend(process_group)
    carrier = _Carrier(_new_groups([ranks], timeout, _known(name)), ranks, timeout)
    made = _core.make_carrier_transport(
        "torch", carrier, timeout=timeout, control_host=control_host or _control_host(carrier)
    )
    _open.add(made)
    return made


class _Carrier:
    """One group: gradwire.Carrier over torch.distributed."""

    def __init__(self, group: Any, ranks: List[int], timeout: float) -> None:
        self._group = group
        self._ranks = ranks  # in the world of torch.distributed
        self._timeout = timeout
        self._interrupted = threading.Event()
        self.device = _device_of(group)
        self._staged = _needs_staging(self.device)
        self.rank: int = group.rank()
        self.world_size: int = group.size()

    def all_gather(self, mine: memoryview, all: memoryview) -> None:
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        self._run(gather, _tensor(all), _tensor(mine))

    def all_to_all(
        self,
        send: memoryview,
        send_lengths: List[int],
        receive: memoryview,
        receive_lengths: List[int],
    ) -> None:
        self._run(
            dist.all_to_all_single, _tensor(receive), _tensor(send), receive_lengths, send_lengths
        )

    def broadcast(self, data: memoryview, root: int) -> None:
        tensor = _tensor(data)
        # In place: what is sent is what is received into.
        self._run(lambda out, _, **how: dist.broadcast(out, self._ranks[root], **how), tensor, tensor)

    def split(self, groups: List[List[int]]) -> "_Carrier":
        worlds = [[self._ranks[place] for place in group] for group in groups]
        mine = next(ranks for ranks in worlds if dist.get_rank() in ranks)
        name = _known(dist.get_backend(self._group))
        return _Carrier(_new_groups(worlds, self._timeout, name), mine, self._timeout)

    def interrupt(self) -> None:
        """From any thread: a call on a device gives up. On the CPU, torch's calls cannot."""
        self._interrupted.set()

    def close(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        if self.device.type != "cpu" and hasattr(group, "abort"):
            group.abort()
        try:
            dist.destroy_process_group(group)
        except (ValueError, AssertionError):
            pass  # torch.distributed has been shut down before: the group is gone

    def _run(self, call: Callable[..., Any], out: Any, data: Any, *lengths: Any) -> None:
        if self._group is None:
            raise RuntimeError("the process group has been destroyed")
        if not self._staged:
            call(out, data, *lengths, group=self._group)
            return
        staged_in = data.to(self.device, copy=True)
        staged_out = torch.empty_like(out, device=self.device)
        if out is data:
            staged_out = staged_in
        self._finish(call(staged_out, staged_in, *lengths, group=self._group, async_op=True))
        out.copy_(staged_out)

    def _finish(self, work: Any) -> None:
        # Not by waiting in torch: on a device that would wait for a dead peer for ever.
        deadline = time.monotonic() + self._timeout
        while not work.is_completed():
            if self._interrupted.is_set():
                raise RuntimeError("the call was interrupted")
            if time.monotonic() >= deadline:
                raise RuntimeError("the call did not end before its deadline")
            time.sleep(_POLL_SECONDS)
        work.wait()


def _tensor(data: memoryview) -> Any:
    if len(data) == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(data, dtype=torch.uint8)


def _known(backend: str) -> Optional[str]:
    # A group with a backend for each kind of device has no single name: then as the world has it.
    return backend if backend not in ("undefined", "custom") and ":" not in backend else None


def _device_of(group: Any) -> Any:
    kinds = {device.type for device in group._device_types}
    if not kinds or "cpu" in kinds:
        return torch.device("cpu")
    kind = sorted(kinds)[0]
    return torch.device(kind, getattr(torch, kind).current_device())


def _needs_staging(device: Any) -> bool:
    return bool(device.type != "cpu")


def _new_groups(groups: List[List[int]], timeout: float, backend: Optional[str]) -> Any:
    """The group of this rank, of the lists of world ranks that its carrier is made of."""
    members = sorted(rank for ranks in groups for rank in ranks)
    limit = timedelta(seconds=timeout)
    if members == list(range(dist.get_world_size())):
        # All processes make all groups, in one order: torch numbers them.
        made = [dist.new_group(ranks, timeout=limit, backend=backend) for ranks in groups]
        return next(g for g, ranks in zip(made, groups) if dist.get_rank() in ranks)
    mine = next(ranks for ranks in groups if dist.get_rank() in ranks)
    return dist.new_group(mine, timeout=limit, backend=backend, use_local_synchronization=True)


def _control_host(carrier: _Carrier) -> str:
    def all_gather(own: bytes) -> List[bytes]:
        everyone = bytearray(len(own) * carrier.world_size)
        carrier.all_gather(memoryview(bytearray(own)), memoryview(everyone))
        return [
            bytes(everyone[r * len(own) : (r + 1) * len(own)]) for r in range(carrier.world_size)
        ]

    return meeting_host(all_gather, carrier.rank)


@atexit.register
def _close_all() -> None:
    # Before the interpreter ends: afterwards nobody can close a process group.
    for made in list(_open):
        made.close()
