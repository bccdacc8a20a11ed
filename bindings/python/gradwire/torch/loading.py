"""What GradientExchange.load_state_dict() does."""

import copy
from typing import TYPE_CHECKING

from ..errors import InvalidArgument
from .checkpoint import States, agreed_buckets, agreed_words, bytes_of, check_alone, lookup_of
from .refused import RefusedByAll

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["load_states"]


def load_states(exchange: "GradientExchange", states: States) -> None:
    """Collective, between steps."""
    transport, reducer = exchange._transport, exchange._reducer
    if transport is None or reducer is None:
        check_alone(states)
        return
    lookup = lookup_of(states, transport.world_size)
    before, auto, spec = exchange._buckets, copy.copy(exchange._auto), exchange._spec
    # The same buckets, so that what compressors learned of them is of use.
    exchange._travel_in(agreed_buckets(lookup, transport, len(exchange._named)))
    try:
        if exchange._auto is not None:
            exchange._auto.resume(agreed_words(lookup, transport))
        exchange._set_waiting_plan()
        reducer.load(lambda rank: bytes_of(lookup(rank), rank))
    except RefusedByAll as refused:  # its plan: the reducer has the one before
        exchange._auto = auto
        raise refused.error from None
    except InvalidArgument:  # on all ranks
        exchange._auto, exchange._spec, exchange._buckets = auto, spec, before
        exchange._plan_to_set = exchange._make_plan()  # the reducer may have that of the states by now
        raise
