"""Where the ranks of a process group meet outside of it: a transport of their own."""

import os
import secrets
import socket
from typing import Any, Callable, List, Tuple

import torch.distributed as dist

from .. import _core
from ..errors import Error, InvalidArgument, TransportError

__all__ = ["check_group", "meeting_host", "met"]

_WORDS = 512  # bytes of what a rank says of itself


def check_group(process_group: Any) -> None:
    """Raises InvalidArgument unless this process has a rank in an initialised group."""
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidArgument(
            "torch.distributed: is not initialised, call torch.distributed.init_process_group()"
        )
    if process_group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgument("process_group: this rank is not in it, must be")


def meeting_host(all_gather: Callable[[bytes], List[bytes]], rank: int) -> str:
    """A numeric address of rank 0's machine that all ranks reach, when rank 0 listens there. Collective.

    127.0.0.1 where all share a machine and its network. Else that of an interface which
    GRADWIRE_INTERFACE, GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names, or the one on the way to the
    others, who say from which of their addresses they reach the store of torch.distributed.

    Args:
        all_gather: returns what each rank gave, of one length, in the order of the ranks.
        rank: of this one among them.

    Raises:
        InvalidArgument, TransportError: on all ranks, what went wrong on one.
    """
    interface = _core.socket_interface_from_environment()
    offers = _from_all(all_gather, lambda: _core.address_offer(interface, _store_host()))
    if len(set(offers)) == 1:
        return "127.0.0.1"

    def choose() -> str:
        return _core.chosen_address(offers, 0, interface) if rank == 0 else ""

    return _from_all(all_gather, choose)[0]


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

    host = meeting_host(all_gather, rank)
    where: List[Any] = [None]
    if rank == 0:
        where[0] = (host, _free_port(host), secrets.token_hex(16))
    dist.broadcast_object_list(where, src=dist.get_global_rank(group, 0), group=group)
    place: Tuple[str, int, str] = where[0]
    together = place[0] == "127.0.0.1"
    return _core.make_transport(
        name,
        rank=rank,
        world_size=world_size,
        store=f"tcp:[{place[0]}]:{place[1]}" if ":" in place[0] else f"tcp:{place[0]}:{place[1]}",
        socket_interface="" if together else _core.socket_interface_from_environment(),
        timeout=timeout,
        job_secret=place[2],
        **options,
    )


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, 0))
        port: int = listener.getsockname()[1]
    return port


def _store_host() -> str:
    """A host that all ranks have reached: that of torch's store, where it has one."""
    store: Any = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):  # type: ignore[attr-defined]
        store = store.underlying_store
    host: str = getattr(store, "host", "")  # a folder has none
    return host or os.environ.get("MASTER_ADDR", "")


def _from_all(all_gather: Callable[[bytes], List[bytes]], say: Callable[[], str]) -> List[str]:
    """What say() returned on each rank; where it raised on one, all raise it. Collective."""
    try:
        words = b"+" + say().encode(errors="backslashreplace")
    except Exception as error:
        mark = b"?" if isinstance(error, InvalidArgument) else b"!"
        text = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
        words = mark + text.encode(errors="backslashreplace")
    told = [said.rstrip(b"\0") for said in all_gather(words[:_WORDS].ljust(_WORDS, b"\0"))]
    for rank, said in enumerate(told):
        if not said.startswith(b"+"):
            kind = InvalidArgument if said.startswith(b"?") else TransportError
            raise kind(f"meeting: rank {rank}: {said[1:].decode(errors='replace')}")
    return [said[1:].decode(errors="backslashreplace") for said in told]
