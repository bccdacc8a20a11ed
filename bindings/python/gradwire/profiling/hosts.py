"""Where the workers of a profiled job run: all on this host, or on two that a link joins."""

from __future__ import annotations

from typing import List

from gradwire.bench.arguments import Link
from gradwire.bench.forked import ForkServers
from gradwire.bench.netns import Namespaces
from gradwire.bench.processes import die_with_launcher

__all__ = ["OneHost", "TwoHosts"]


class OneHost:
    """All workers on this machine, over its loopback: a network of gradwire.bench.links."""

    mode = "host"
    interface = "lo"
    counts_interface_bytes = False

    def __init__(self) -> None:
        self.servers = ForkServers()

    def set_link(self, link: Link) -> None:
        """There is none."""

    def prefix(self, rank: int) -> List[str]:
        return die_with_launcher()

    def options(self, link: Link) -> List[str]:
        return []

    def describe(self) -> str:
        return "one host: the loopback"

    def close(self) -> None:
        self.servers.close()


class TwoHosts:
    """Two network namespaces that a shaped link joins; the first half of the workers in one, the
    other half in the other. Needs root and iproute2: netns.Unavailable says what is missing."""

    mode = "netns"
    interface = "eth0"
    counts_interface_bytes = False  # workers of a host share it

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._namespaces = Namespaces(2)
        self.servers = ForkServers()

    def set_link(self, link: Link) -> None:
        self._namespaces.shape(link)

    def prefix(self, rank: int) -> List[str]:
        return die_with_launcher() + self._namespaces.enter(2 * rank // self._workers)

    def options(self, link: Link) -> List[str]:
        return []

    def describe(self) -> str:
        return "two hosts: network namespaces, shaped both ways by the kernel"

    def close(self) -> None:
        self.servers.close()
        self._namespaces.close()
