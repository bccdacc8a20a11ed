"""A private network on one machine: unnamed namespaces, a bridge, and shaped links.

Each namespace lives exactly as long as the process that holds it, and the kernel kills that process
with the launcher: whatever happens to the launcher, nothing is left. Nothing is named, so nothing
can clash, and no interface of the machine's own namespace is touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import List, Optional

from gradwire.bench.arguments import Link
from gradwire.bench.processes import die_with_launcher, stop

NETWORK = "10.77.0"  # exists only inside the namespaces
QUEUE_MS = 50  # what a shaped link holds before it drops
_TOOLS = ("setpriv", "unshare", "nsenter", "ip", "tc")
_START_S = 5.0

# No neighbour discovery in the byte counts; no run inherits the congestion window of the last one.
_HOLD = """
for setting in ipv6/conf/all/disable_ipv6 ipv4/tcp_no_metrics_save; do
  [ -w /proc/sys/net/$setting ] && echo 1 > /proc/sys/net/$setting
done
hostname "$1"
exec sleep infinity
"""


class Unavailable(Exception):
    """Why this machine cannot have the namespaces, in one line."""


class Namespaces:
    """One namespace per worker and one with the bridge that joins them."""

    def __init__(self, workers: int):
        self._holders: List[subprocess.Popen[str]] = []
        self._workers = workers
        self._shapes = 0  # so far; each is a qdisc of its own
        if os.geteuid() != 0:
            raise Unavailable("not root")
        missing = [tool for tool in _TOOLS if not _find(tool)]
        if missing:
            raise Unavailable(f"{', '.join(missing)} not found (packages iproute2, util-linux)")
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def pids(self) -> List[int]:
        """Of the holders: the bridge's, then each worker's."""
        return [holder.pid for holder in self._holders]

    def address(self, rank: int) -> str:
        return f"{NETWORK}.{rank + 1}"

    def enter(self, rank: int) -> List[str]:
        """A command prefix that runs what follows in the namespaces (net, uts) of ``rank``."""
        return [_find("nsenter"), "-t", str(self._holders[rank + 1].pid), "-n", "-u", "--"]

    def shape(self, link: Link) -> None:
        """Gives every link this bandwidth in both directions. What waits in a queue then is lost.

        A bucket that is made smaller in place keeps packets that it can never let through, up to
        64 KiB each, and stands still behind them: so every shape is a bucket of its own.
        """
        if link.bits_per_s is None:
            if self._shapes:
                self._shape_all("qdisc del dev {dev} root")
            self._shapes = 0
            return
        self._shapes += 1
        self._shape_all(
            f"qdisc replace dev {{dev}} root handle {self._shapes:x}: tbf rate {link.bits_per_s}bit "
            f"burst {link.burst_bytes} latency {QUEUE_MS}ms"
        )

    def close(self) -> None:
        """Ends the holders, and the namespaces with them."""
        stop(self._holders)
        self._holders = []

    def _build(self) -> None:
        for name in ["bridge"] + [f"worker{rank}" for rank in range(self._workers)]:
            self._holders.append(_hold(name))
        bridge = ["link add br0 type bridge stp_state 0 forward_delay 0", "link set br0 up"]
        for rank in range(self._workers):
            port, pid = f"p{rank}", self._holders[rank + 1].pid
            bridge.append(f"link add {port} type veth peer name eth0 netns {pid}")
            bridge.append(f"link set {port} master br0 up")
        self._batch(self._holders[0], "ip", bridge)
        for rank in range(self._workers):
            self._batch(
                self._holders[rank + 1],
                "ip",
                [
                    f"addr add {self.address(rank)}/24 dev eth0",
                    "link set lo up",
                    "link set eth0 up",
                ],
            )

    def _shape_all(self, line: str) -> None:
        ports = [line.format(dev=f"p{rank}") for rank in range(self._workers)]
        self._batch(self._holders[0], "tc", ports)
        for rank in range(self._workers):
            self._batch(self._holders[rank + 1], "tc", [line.format(dev="eth0")])

    def _batch(self, holder: subprocess.Popen[str], tool: str, lines: List[str]) -> None:
        command = [_find("nsenter"), "-t", str(holder.pid), "-n", _find(tool), "-batch", "-"]
        done = subprocess.run(
            command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Unavailable(f"{tool} refused: {_first_line(done.stderr)}")


def _hold(name: str) -> subprocess.Popen[str]:
    """Starts a process in new net and uts namespaces; returns when it is in them."""
    command = die_with_launcher() + [_find("unshare"), "--net", "--uts", "/bin/sh", "-c", _HOLD]
    process = subprocess.Popen(
        command + ["sh", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _await_namespace(process)
    except BaseException:
        stop([process])
        raise
    return process


def _await_namespace(process: subprocess.Popen[str]) -> None:
    """The holder is ready once it is `sleep`: before that, its settings may not be written yet."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Unavailable(f"unshare refused: {_first_line(process.communicate()[1])}")
        if _program(process.pid) == "sleep":
            return
        time.sleep(0.002)
    raise Unavailable(f"a namespace was not ready within {_START_S:.0f} s")


def _program(pid: int) -> Optional[str]:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return None


def _find(tool: str) -> str:
    """The tool's path or ''; root's tools are often outside the PATH of a shell."""
    return shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/sbin:/usr/bin:/bin") or ""


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0].strip() if lines else "no message"
