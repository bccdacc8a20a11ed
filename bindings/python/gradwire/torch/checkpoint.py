"""A rank's exchange as a state_dict."""

import io
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import torch

from .. import _core
from ..errors import InvalidArgument
from ..reducer import Reducer
from .agreement import agree

__all__ = [
    "States", "agreed_buckets", "agreed_words", "bytes_of", "check_alone", "lookup_of", "state_of"
]  # fmt: skip

State = Mapping[str, Any]
States = Union[State, Sequence[State], Mapping[int, State], Callable[[int], Optional[State]]]
Buckets = Optional[List[List[int]]]
Lookup = Callable[[int], Optional[State]]

_FORMAT = 1
_AUTO = ("spec", "buckets", "exchanges", "specs")  # of a plan
_LATER = {"chosen", "age"}  # that older checkpoints do not have


def state_of(
    reducer: Optional[Reducer], transport: Optional[_core.Transport], buckets: Buckets
) -> Dict[str, Any]:
    """'format', 'rank', 'world_size', 'buckets', and 'reducer': its checkpoint as uint8."""
    kept = io.BytesIO()
    if reducer is not None:
        reducer.save(kept)
    file = bytearray(kept.getvalue())
    return {
        "format": _FORMAT,
        "rank": 0 if transport is None else transport.rank,
        "world_size": 1 if transport is None else transport.world_size,
        "buckets": buckets,
        "reducer": torch.frombuffer(file, dtype=torch.uint8)
        if file
        else torch.empty(0, dtype=torch.uint8),
    }


def check_alone(states: States) -> None:
    """What a group of one rank loads: its own state, which holds nothing.

    Raises:
        InvalidArgument: it is no state, or one of several ranks.
    """
    own = isinstance(states, Mapping) and "reducer" in states
    state: Any = states if own else lookup_of(states, 1)(0)
    _check(state)
    if state["world_size"] != 1:
        raise InvalidArgument(
            f"states: is of {state['world_size']} ranks, must be of one: the group has 1 rank, which keeps "
            "nothing, and what they kept would be lost"
        )


def lookup_of(states: States, world_size: int) -> Lookup:
    """The state of each old rank; of one state, where there are as many ranks as there were.

    What is wrong with them is said when one is asked for.
    """
    if callable(states):
        return states
    if isinstance(states, Mapping):
        known: Dict[Any, Any] = dict(states)
        if "reducer" in known:
            return lambda rank: _own(known, world_size)
        if any(not isinstance(rank, int) for rank in known):
            return lambda rank: _none_of(known)
        return lambda rank: known.get(rank)
    if not isinstance(states, Sequence) or isinstance(states, (str, bytes)):
        return lambda rank: _refused(states)
    in_order = list(states)
    return lambda rank: in_order[rank] if rank < len(in_order) else None


def agreed_buckets(lookup: Lookup, transport: _core.Transport, parameters: int) -> Buckets:
    """Which parameters travelled together. Collective, between steps.

    Raises:
        InvalidArgument: on every rank, where some rank's states are none or have other buckets.
    """

    def find() -> Buckets:
        # Its own, or that of rank 0 where it is new: as the Reducer asks for them.
        state = lookup(transport.rank) or lookup(0)
        if state is None:
            raise InvalidArgument("states: there is none of rank 0, must be there")
        _check(state)
        return _buckets_of(state, parameters)

    buckets: Buckets = agree(transport, find, "states")
    return buckets


def agreed_words(lookup: Lookup, transport: _core.Transport) -> Optional[Dict[str, Any]]:
    """The plan that 'auto' had chosen; None where it was not asked. Collective, between steps.

    Raises:
        InvalidArgument: on every rank, where some rank's is none or another.
    """

    def find() -> Optional[Dict[str, Any]]:
        state = lookup(transport.rank) or lookup(0)
        words = None if state is None else state.get("auto")
        if words is None:
            return None
        if not isinstance(words, Mapping) or set(words) - _LATER != set(_AUTO):
            raise InvalidArgument(f"states: 'auto' is {words!r}, must have {', '.join(_AUTO)}")
        age = words.get("age", 0)
        if not isinstance(age, int) or age < 0:
            raise InvalidArgument(f"states: 'age' of 'auto' is {age!r}, must be a number of steps")
        return dict(words)

    words: Optional[Dict[str, Any]] = agree(transport, find, "states")
    return words


def bytes_of(state: Optional[State], rank: int) -> Optional[bytes]:
    """The checkpoint in the state of that rank; None where there was no such rank."""
    if state is None:
        return None
    _check(state)
    if state["rank"] != rank:
        raise InvalidArgument(
            f"states: that of rank {rank} was written by rank {state['rank']}, must be its own"
        )
    if state["reducer"].numel() == 0:
        raise InvalidArgument(
            "states: is of a group of one rank, which keeps nothing, must be of one that exchanged: begin "
            "without it"
        )
    kept: bytes = state["reducer"].cpu().numpy().tobytes()
    return kept


def _refused(states: Any) -> State:
    raise InvalidArgument(
        f"states: is a {type(states).__name__}, must be a state_dict(), those of all ranks in a list "
        "or a dict, or a function of the rank"
    )


def _none_of(state: Mapping[Any, Any]) -> State:
    keys = ", ".join(repr(key) for key in list(state)[:5])
    raise InvalidArgument(
        f"states: a dict with the keys {keys} is no state of an exchange, must be what its state_dict() "
        "returned, or have those of all ranks by their number"
    )


def _own(state: State, world_size: int) -> State:
    _check(state)
    if state["world_size"] != world_size:
        raise InvalidArgument(
            f"states: is that of one of {state['world_size']} ranks, must be those of all of them "
            f"now that there are {world_size}"
        )
    return state


def _check(state: Any) -> None:
    if not isinstance(state, Mapping):
        raise InvalidArgument(f"states: holds a {type(state).__name__}, must be a state_dict()")
    for key in ("format", "rank", "world_size", "buckets", "reducer"):
        if key not in state:
            raise InvalidArgument(f"states: '{key}' is missing, must be there")
    if state["format"] != _FORMAT:
        raise InvalidArgument(f"states: format is {state['format']}, must be {_FORMAT}")
    kept = state["reducer"]
    if not isinstance(kept, torch.Tensor) or kept.dtype != torch.uint8:
        raise InvalidArgument("states: 'reducer' must be a uint8 tensor")


def _buckets_of(state: State, parameters: int) -> Buckets:
    if state["buckets"] is None:
        return None
    buckets = [[int(p) for p in bucket] for bucket in state["buckets"]]
    if sorted(p for bucket in buckets for p in bucket) != list(range(parameters)):
        raise InvalidArgument(
            f"states: its buckets are not of the {parameters} parameters that are exchanged here"
        )
    return buckets
