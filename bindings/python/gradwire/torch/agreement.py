"""What each rank finds for itself and all must find alike, between the steps of a transport."""

import hashlib
import json
from typing import Any, Callable, Optional

from .. import _core
from ..errors import InvalidArgument

__all__ = ["agree"]

_WORDS = 512  # bytes a rank may say about what is wrong


def agree(transport: _core.Transport, load: Callable[[], Any], what: str) -> Any:
    """Calls load(), compares what it returned (anything JSON has) over ranks, and returns it. Collective.

    Raises:
        InvalidArgument: on every rank, where load() raised on some or returned different values.
    """
    found: Any = None
    problem: Optional[InvalidArgument] = None
    try:
        found = load()
        words = b"+" + hashlib.sha256(json.dumps(found).encode()).hexdigest().encode()
    except Exception as error:
        problem = (
            error
            if isinstance(error, InvalidArgument)
            else InvalidArgument(f"{what}: {type(error).__name__}: {error}")
        )
        words = f"-{problem}".encode(errors="backslashreplace")[:_WORDS]
    told = transport.all_gather(words, capacity=_WORDS, what=what)
    if problem is not None:
        raise problem
    for rank, said in enumerate(map(bytes, told)):
        if said.startswith(b"-"):
            reason = said[1:].decode(errors="replace")
            raise InvalidArgument(f"{what}: rank {rank} cannot use its own: {reason}")
        if said != words:
            raise InvalidArgument(
                f"{what}: rank {rank}'s differs from that of rank {transport.rank}, must be of the "
                "same step of the same run"
            )
    return found
