"""What a rank keeps of its compressed slices as a state_dict."""

from typing import Any, Dict, List, Mapping, Optional

from .. import _core
from ..errors import InvalidArgument
from .plain_state import as_arrays, as_tensors

__all__ = ["load_slices", "state_of"]

_FORMAT = 1
_IDENTITY = ("spec", "numel", "dtype", "seed", "rank", "shapes")

Places = Mapping[str, int]  # of the reducer's groups, by name


def state_of(
    reducer: Optional[_core.ShardedReducer], places: Places, spec: str, rank: int, world_size: int
) -> Dict[str, Any]:
    """'format', 'spec', 'rank', 'world_size', and 'slices': by group, those of ShardedReducer.state()
    with tensors in the place of arrays."""
    states = {name: [] if reducer is None else reducer.state(g) for name, g in places.items()}
    kept = {name: [as_tensors(each) for each in slices] for name, slices in states.items()}
    return {"format": _FORMAT, "spec": spec, "rank": rank, "world_size": world_size, "slices": kept}


def load_slices(
    state: Mapping[str, Any],
    into: Optional[_core.ShardedReducer],
    places: Places,
    spec: str,
    rank: int,
    world_size: int,
) -> List[int]:
    """Fills a reducer that is new; a group of one rank has none, and keeps nothing. Returns the steps of
    its groups.

    Raises:
        InvalidArgument: the state is not of this rank, spec and module.
    """
    wanted = {"format": _FORMAT, "spec": spec, "rank": rank, "world_size": world_size}
    _compare(state, wanted)
    kept = state.get("slices")
    if not isinstance(kept, Mapping) or set(kept) != set(places):
        raise InvalidArgument(
            f"state['slices']: must hold those of {', '.join(repr(name) for name in places)}"
        )
    for name, g in places.items():
        own = [] if into is None else into.state(g)
        if not isinstance(kept[name], list) or len(kept[name]) != len(own):
            raise InvalidArgument(
                f"state['slices']['{name}']: holds {kept[name]!r:.80}, must hold a list of {len(own)}"
            )
        for saved, mine in zip(kept[name], own):
            _compare(saved, {key: mine[key] for key in _IDENTITY})
        if into is not None:
            into.load(g, [as_arrays(each) for each in kept[name]])
    return [] if into is None else [into.step(g) for g in places.values()]


def _compare(state: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping):
        raise InvalidArgument(f"state: is a {type(state).__name__}, must be what state_dict() returned")
    for key, mine in wanted.items():
        if key not in state:
            raise InvalidArgument(f"state['{key}']: is missing, must be there")
        if state[key] != mine:
            raise InvalidArgument(f"state['{key}']: is {state[key]!r}, must be {mine!r}")
