"""What somebody else's collectives must look like to carry a gradwire transport."""

from typing import List, Protocol

__all__ = ["Carrier"]


class Carrier(Protocol):
    """Blocking collectives over bytes, for make_carrier_transport().

    Every rank calls the same methods in the same order with sizes that match; gradwire sees to
    it. Calls come one at a time, from any thread. Memory is lent for the length of a call, and
    what is to be sent is only read: no view of it may be kept. A method gives up
    at the deadline its engine was made with, and reports failures by any exception, whose text
    ends up in gradwire's error.
    """

    rank: int
    world_size: int

    def all_gather(self, mine: memoryview, all: memoryview) -> None:
        """Rank r's `mine` arrives as part r of `all`, whose parts have len(mine) bytes."""

    def all_to_all(
        self,
        send: memoryview,
        send_lengths: List[int],
        receive: memoryview,
        receive_lengths: List[int],
    ) -> None:
        """Parts in rank order: send_lengths[d] bytes go to rank d, receive_lengths[s] come from s."""

    def broadcast(self, data: memoryview, root: int) -> None:
        """`data` of `root` arrives in that of all others."""

    def split(self, groups: List[List[int]]) -> "Carrier":
        """The carrier of that list of ranks which holds this one. Called by all ranks."""

    def interrupt(self) -> None:
        """The world has failed while a call runs: makes it give up, if it can. From any thread."""

    def close(self) -> None:
        """Closes this rank's connections, so that calls of others that wait for it fail now."""
