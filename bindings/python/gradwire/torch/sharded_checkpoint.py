"""A rank's compressed slices as a state_dict, and what ranks must agree on about them."""

import hashlib
import json
from typing import Any, Dict, List, Mapping

from .. import _core
from ..errors import InvalidArgument
from ..feedback import Feedback
from .plain_state import as_arrays, as_tensors

__all__ = ["compare", "load_slices", "state_of"]

Slices = Mapping[str, List[Feedback]]  # by group: one for each rank

_FORMAT = 1


def state_of(slices: Slices, spec: str, rank: int, world_size: int) -> Dict[str, Any]:
    """'format', 'spec', 'rank', 'world_size', and 'slices': by group, those of Feedback.state_dict()
    with tensors in the place of arrays."""
    kept = {name: [as_tensors(each.state_dict()) for each in parts] for name, parts in slices.items()}
    return {"format": _FORMAT, "spec": spec, "rank": rank, "world_size": world_size, "slices": kept}


def load_slices(
    state: Mapping[str, Any], into: Slices, spec: str, rank: int, world_size: int
) -> List[int]:
    """Fills slices that are new. Returns their steps.

    Raises:
        InvalidArgument: the state is not of this rank, spec and module.
    """
    wanted = {"format": _FORMAT, "spec": spec, "rank": rank, "world_size": world_size}
    for key, mine in wanted.items():
        if key not in state:
            raise InvalidArgument(f"state['{key}']: is missing, must be there")
        if state[key] != mine:
            raise InvalidArgument(f"state['{key}']: is {state[key]!r}, must be {mine!r}")
    kept = state.get("slices")
    if not isinstance(kept, Mapping) or set(kept) != set(into):
        raise InvalidArgument(
            f"state['slices']: must hold those of {', '.join(repr(name) for name in into)}"
        )
    for name, parts in into.items():
        if len(kept[name]) != len(parts):
            raise InvalidArgument(
                f"state['slices']['{name}']: holds {len(kept[name])}, must hold {len(parts)}"
            )
        for saved, part in zip(kept[name], parts):
            part.load_state_dict(as_arrays(saved))
    return [part.step for parts in into.values() for part in parts]


def compare(transport: _core.Transport, mine: Any) -> None:
    """Raises InvalidArgument on every rank where ranks have been given different things."""
    digest = hashlib.sha256(json.dumps(mine).encode()).digest()
    for rank, other in enumerate(transport.all_gather(digest, what="arguments")):
        if bytes(other) != digest:
            raise InvalidArgument(
                f"register_fsdp: rank {rank} has another module, spec, seed, scaler or on_nonfinite "
                f"than rank {transport.rank}, must be the same"
            )
