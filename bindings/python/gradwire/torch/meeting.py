"""Where the ranks of a process group meet outside of it: a transport of their own."""

import hashlib
import os
import secrets
import socket
from typing import Any, Callable, List, Tuple

import torch.distributed as dist

from .. import _core
from ..errors import InvalidArgument

__all__ = ["check_group", "meeting_host", "met"]


def check_group(process_group: Any) -> None:
    """Raises InvalidArgument unless this process has a rank in an initialised group."""
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidArgument(
            "torch.distributed: is not initialised, call torch.distributed.init_process_group()"
        )
    if process_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgument("process_group: this rank is not in it, must be")


def meeting_host(all_gather: Callable[[bytes], List[bytes]]) -> str:
    """A numeric address of this machine that all ranks reach, when this rank listens there.

    127.0.0.1 where all share a machine and its network, else the address on the way to MASTER_ADDR.

    Args:
        all_gather: returns what each rank gave, of one length.
    """
    own = hashlib.sha256(f"{socket.gethostname()} {_boot_id()} {_network()}".encode()).digest()
    if all(other == own for other in all_gather(own)):
        return "127.0.0.1"
    master = socket.gethostbyname(os.environ.get("MASTER_ADDR", socket.gethostname()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))  # sends nothing: the kernel picks the way
        address: str = probe.getsockname()[0]
    return address


def met(name: str, process_group: Any, timeout: float, **options: Any) -> _core.Transport:
    """Joins the ranks of a group in a transport of the library's own. Collective among them.

    Args:
        name, options: as of gradwire.make_transport().

    Raises:
        TransportError: naming the ranks that did not come, or why rank 0 cannot be reached.
    """
    group: Any = process_group or dist.group.WORLD
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)

    def all_gather(own: bytes) -> List[bytes]:
        everyone: List[Any] = [None] * world_size
        dist.all_gather_object(everyone, own, group=group)
        return everyone

    host = meeting_host(all_gather)
    where: List[Any] = [None]
    if rank == 0:
        where[0] = (host, _free_port(host), secrets.token_hex(16))
    dist.broadcast_object_list(where, src=dist.get_global_rank(group, 0), group=group)
    place: Tuple[str, int, str] = where[0]
    return _core.make_transport(
        name,
        rank=rank,
        world_size=world_size,
        store=f"tcp:{place[0]}:{place[1]}",
        timeout=timeout,
        job_secret=place[2],
        **options,
    )


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
    return port


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _network() -> str:
    # Ranks of one machine may be in networks of their own, where 127.0.0.1 is another place.
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""
