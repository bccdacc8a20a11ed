"""Which transport carries the gradients of a process group's ranks."""

from typing import Any

import torch

from .. import _core
from ..errors import InvalidArgument
from ..registries import transports
from .carrier import transport as torch_transport
from .meeting import met

__all__ = ["check_joining", "join"]

_CPU = torch.device("cpu")


def check_joining(carrier: str, timeout: float, device: torch.device = _CPU) -> None:
    """What join() refuses without asking other ranks: in a group of one rank, too, where nothing joins.

    Raises:
        InvalidArgument: no such carrier, or none for that device; no time to wait.
    """
    known = ("auto", "gloo", "torch", "nccl")
    if carrier not in known:
        raise InvalidArgument(f"carrier: is '{carrier}', must be one of {', '.join(known)}")
    if not timeout > 0:
        raise InvalidArgument(f"timeout: is {timeout}, must be a positive number of seconds")
    if device.type == "cpu" and carrier == "nccl":
        raise InvalidArgument(
            "carrier: is 'nccl', which carries GPU memory, must be 'gloo', 'torch' or 'auto' for "
            "gradients on the CPU"
        )
    if device.type != "cpu" and carrier not in ("auto", "nccl"):
        raise InvalidArgument(
            f"carrier: is '{carrier}', which carries CPU memory, must be 'nccl' or 'auto' for "
            f"gradients on {device}"
        )


def join(
    process_group: Any, carrier: str, timeout: float, device: torch.device = _CPU
) -> _core.Transport:
    """A transport of the ranks of a process group for memory of that device. Collective.

    Args:
        carrier: as of register().

    Raises:
        InvalidArgument: no such carrier, or none for that device.
        TransportError: naming the ranks that did not come, or why rank 0 cannot be reached.
    """
    check_joining(carrier, timeout, device)
    missing = {row.name: row.unavailable_reason for row in transports()}
    if device.type != "cpu":
        if missing["nccl"]:
            raise InvalidArgument(
                f"carrier: gradients on {device} travel over gradwire's nccl, which cannot be used "
                f"here: {missing['nccl']}"
            )
        index = torch.cuda.current_device() if device.index is None else device.index
        return met("nccl", process_group, timeout, device=index)
    if carrier == "gloo" or (carrier == "auto" and not missing["gloo"]):
        return met("gloo", process_group, timeout)
    return torch_transport(process_group, timeout=timeout)
