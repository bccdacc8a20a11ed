"""Where workers in Python meet: torch.distributed's default process group."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from datetime import timedelta
from pathlib import Path
from typing import Any, Iterator

import torch
import torch.distributed as dist

_SIOCGIFADDR = 0x8915


@contextlib.contextmanager
def process_group(options: Any) -> Iterator[None]:
    """All ranks over the given interface; they meet in a file, so that no address is agreed on.

    Connections over gloo end with the process (process.leave()). To destroy them could wait for
    peers, and, where a model still holds the group, for ever: DDP's reducer (torch 2.13) joins the
    group's threads with the GIL, which the last tensor of one of them may need.
    """
    folder = options.store.partition(":")[2]
    store = dist.FileStore(str(Path(folder) / "torch"), options.world_size)  # type: ignore[attr-defined]
    if options.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = options.interface
    if options.rank == 0:
        store.set("address", _address(options.interface or "lo"))
    store.set_timeout(timedelta(seconds=options.timeout_s))
    os.environ["MASTER_ADDR"] = store.get("address").decode()
    if options.device == "cuda":
        torch.cuda.set_device(int(options.rank))
    dist.init_process_group(
        "nccl" if options.device == "cuda" else "gloo", store=store, rank=options.rank,
        world_size=options.world_size, timeout=timedelta(seconds=options.timeout_s),
    )  # fmt: skip
    yield
    dist.barrier()
    if options.device == "cuda":
        dist.destroy_process_group()


def _address(interface: str) -> str:
    """The IPv4 address of a network interface of this process."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        answer: bytes = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    return socket.inet_ntoa(answer[20:24])
