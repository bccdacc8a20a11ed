"""How the workers' links get their bandwidth: namespaces with shaped links, or pacing.

A network answers what the launcher needs to start rank r of n on a link: a command prefix, options
of the trainer, and one line for the report. Both kinds use the burst of :class:`Link`.
"""

from __future__ import annotations

from typing import List, Optional, Protocol

from gradwire.bench.arguments import Link
from gradwire.bench.errors import RunError, UsageError
from gradwire.bench.forked import ForkServers
from gradwire.bench.netns import Namespaces, Unavailable
from gradwire.bench.processes import die_with_launcher

MODES = ("auto", "netns", "pacing")


class Network(Protocol):
    """What the launcher and the report ask of either kind."""

    mode: str
    interface: str
    counts_interface_bytes: bool  # whether what the interface counts is one worker's own
    servers: ForkServers  # of its workers, which end with it

    def set_link(self, link: Link) -> None:
        """Makes every worker's link this wide, before its run starts."""

    def prefix(self, rank: int) -> List[str]:
        """What stands before the trainer's command."""

    def options(self, link: Link) -> List[str]:
        """What the trainer must be told about the link."""

    def describe(self) -> str:
        """One line for the report."""

    def close(self) -> None:
        """Leaves nothing behind."""


class Pacing:
    """All workers on the loopback; a token bucket inside the transport keeps each to its rate."""

    mode = "pacing"
    interface = "lo"
    counts_interface_bytes = False  # the loopback carries every worker's bytes

    def __init__(self, why: str):
        self._why = why
        self.servers = ForkServers()

    def set_link(self, link: Link) -> None:
        """Nothing to do: each worker is told its rate."""

    def prefix(self, rank: int) -> List[str]:
        return die_with_launcher()

    def options(self, link: Link) -> List[str]:
        return ["--pace", link.name]

    def describe(self) -> str:
        return f"links: token-bucket pacing inside the transport, on the loopback ({self._why})"

    def close(self) -> None:
        self.servers.close()


class Shaped:
    """Every worker in a network namespace of its own, its link shaped by the kernel."""

    mode = "netns"
    interface = "eth0"
    counts_interface_bytes = True

    def __init__(self, namespaces: Namespaces):
        self._namespaces = namespaces
        self.servers = ForkServers()

    def set_link(self, link: Link) -> None:
        self._namespaces.shape(link)

    def prefix(self, rank: int) -> List[str]:
        return die_with_launcher() + self._namespaces.enter(rank)

    def options(self, link: Link) -> List[str]:
        return ["--pace", "none"]

    def describe(self) -> str:
        return (
            "links: one network namespace per worker on a bridge, shaped both ways by the kernel "
            "(tbf, queue 50 ms)"
        )

    def close(self) -> None:
        self.servers.close()
        self._namespaces.close()


def open_network(mode: str, workers: int, transport: str, links: List[Link]) -> Network:
    """The network asked for; 'auto' takes namespaces where the machine allows them.

    :raises UsageError: namespaces asked for with ranks that are threads of one process.
    :raises RunError: namespaces asked for on a machine that cannot have them.
    """
    changing = next((link.name for link in links if link.then), None)
    if changing and (transport == "in_process" or mode == "pacing"):
        raise UsageError(
            f"--links {changing}: a link that changes needs network namespaces, expected --transport "
            "gloo and --link-mode netns"
        )
    if transport == "in_process":
        if mode == "netns":
            raise UsageError(
                "--link-mode netns needs one process per worker, expected --transport gloo"
            )
        return Pacing("the workers are threads of one process")
    if mode == "pacing":
        return Pacing("as asked by --link-mode")
    namespaces: Optional[Namespaces] = None
    try:
        namespaces = Namespaces(workers)
        namespaces.shape(next((link for link in links if link.bits_per_s), links[0]))
        return Shaped(namespaces)
    except Unavailable as error:
        if namespaces:
            namespaces.close()
        if mode == "netns" or changing:
            raise RunError(f"--link-mode netns: {error}") from error
        return Pacing(f"no namespaces: {error}")
