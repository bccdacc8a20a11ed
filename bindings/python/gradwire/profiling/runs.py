"""The runs that differ in one thing, made in turn, and the stalls that follow from them."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from gradwire import planner
from gradwire.bench.arguments import Link
from gradwire.bench.errors import RunError
from gradwire.bench.job import Case
from gradwire.bench.launch import Run
from gradwire.bench.links import Network
from gradwire.bench.netns import Unavailable
from gradwire.bench.types import Document, Event
from gradwire.profiling.hosts import OneHost, TwoHosts
from gradwire.profiling.worker import NAME as WORKER

__all__ = ["Asked", "Found", "RUNS", "measure"]

#: name of planner.find_stalls(), what the worker is told, how a table calls it.
RUNS: Tuple[Tuple[str, str, str], ...] = (
    ("one_gpu", "synthetic", "one worker, synthetic data"),
    ("all_gpus", "synthetic", "all workers, synthetic data"),
    ("cold_data", "cold", "all workers, real data, nothing cached"),
    ("cached_data", "cached", "all workers, real data, cached"),
    ("two_hosts", "synthetic", "all workers on two hosts, synthetic data"),
)
_STILL_CACHED = 0.01  # of the bytes: more than that is no cold run


@dataclass(frozen=True)
class Asked:
    """What is profiled, and how."""

    what: str
    batch: Optional[int]
    workers: int
    link: Link
    spec: str
    files: List[Path]
    warmup: int
    steps: int
    rounds: int
    threads: int
    timeout_s: float


@dataclass
class Found:
    """What came out of the runs."""

    profile: Document = field(default_factory=dict)
    #: seconds of a step by run, one value per round
    seconds: Dict[str, List[float]] = field(default_factory=dict)
    #: why a run was left out
    left_out: Dict[str, str] = field(default_factory=dict)

    def medians(self) -> Dict[str, float]:
        return {name: statistics.median(values) for name, values in self.seconds.items() if values}

    def stalls(self) -> Dict[str, Tuple[float, float]]:
        """Seconds of a step and share by name, of those that the runs tell; none for one run."""
        runs = self.medians()
        known = set(runs)
        pairs = ({"one_gpu", "all_gpus"}, {"all_gpus", "two_hosts"}, {"all_gpus", "cached_data"},
                 {"cached_data", "cold_data"})  # fmt: skip
        if not any(pair <= known for pair in pairs):
            return {}
        return dict(planner.find_stalls(**runs))


@dataclass(frozen=True)
class _Workers:
    """What launch.Run asks of a job."""

    asked: Asked
    run: str
    workers: int
    kept: Path
    transport: str = "gloo"

    forked = False

    @property
    def processes(self) -> int:
        return self.workers

    @property
    def threads(self) -> int:
        return self.asked.threads

    @property
    def timeout_s(self) -> float:
        return self.asked.timeout_s

    def command(self, case: Case) -> List[str]:
        asked = self.asked
        options: Dict[str, Any] = {
            "run": self.run, "what": asked.what, "batch": asked.batch, "spec": asked.spec,
            "kept": self.kept, "warmup": asked.warmup, "steps": asked.steps,
            "world-size": self.workers, "threads": asked.threads, "timeout-s": asked.timeout_s,
        }  # fmt: skip
        words = [sys.executable, "-m", WORKER]
        for name, value in options.items():
            words += [] if value is None else [f"--{name}", str(value)]
        return [*words, *(["--files", *map(str, asked.files)] if asked.files else [])]


@dataclass(frozen=True)
class _Named(Case):
    """A run by its name, for messages."""

    def describe(self) -> str:
        return self.method


def measure(
    asked: Asked,
    scratch: Path,
    tell: Callable[[str], None],
    keep: Callable[[Document], None],
) -> Found:
    """Profiles one worker, hands the profile to `keep`, then makes every run `rounds` times in turn.

    Raises:
        UsageError, RunError: what a worker met. Runs that this machine cannot make are left out,
        and `left_out` says why.
    """
    found = Found(seconds={name: [] for name, _, _ in RUNS})
    maker = _Maker(asked, scratch, found)
    here = OneHost()
    tell("profile of one worker")
    maker.make("profile", "profile", 1, here)
    keep(found.profile)
    if asked.workers == 1:
        for name in ("all_gpus", "two_hosts"):
            found.left_out[name] = "there is one worker (--workers)"
    if not asked.files:
        found.left_out["cold_data"] = "which files the loader reads is not known (--data)"
    hosts = _two_hosts(asked, found)
    try:
        for number in range(asked.rounds):
            for name, run, text in RUNS:
                if name in found.left_out:
                    continue
                tell(f"round {number + 1} of {asked.rounds}: {text}")
                network: Network = hosts if name == "two_hosts" and hosts else here
                maker.make(name, run, 1 if name == "one_gpu" else asked.workers, network)
    finally:
        if hosts is not None:
            hosts.close()
    if asked.workers == 1:
        # Its data runs are of one worker, and so is what they are compared with.
        found.seconds["all_gpus"] = found.seconds.pop("one_gpu")
        found.left_out["one_gpu"] = found.left_out.pop("all_gpus")
    return found


def _two_hosts(asked: Asked, found: Found) -> Optional[TwoHosts]:
    if "two_hosts" in found.left_out:
        return None
    hosts: Optional[TwoHosts] = None
    try:
        hosts = TwoHosts(asked.workers)
        hosts.set_link(asked.link)
        return hosts
    except Unavailable as error:
        if hosts is not None:
            hosts.close()
        found.left_out["two_hosts"] = f"no network namespaces: {error}"
        return None


class _Maker:
    def __init__(self, asked: Asked, scratch: Path, found: Found) -> None:
        self._asked = asked
        self._scratch = scratch
        self._found = found
        self._made = 0

    def make(self, name: str, run: str, workers: int, network: Network) -> None:
        self._made += 1
        folder = self._scratch / f"run{self._made}"
        job = _Workers(self._asked, run, workers, self._scratch / "first-batch")
        case = _Named(self._asked.link, f"run '{name}'", 1)
        events: List[Event] = []
        with Run(job, case, network, folder, folder / "store") as started:
            started.watch(events.append)
        told = {event["event"]: event for event in events}
        if run == "profile":
            self._found.profile = told["profile"]["document"]
            return
        cached = told.get("evicted")
        if cached is not None and cached["resident"] > _STILL_CACHED * cached["total"]:
            self._found.left_out[name] = (
                f"the kernel kept {cached['resident']} of the files' {cached['total']} bytes"
            )
            self._found.seconds[name] = []
            return
        if "timed" not in told:
            raise RunError(f"run '{name}': rank 0 told no times, expected them before its end")
        self._found.seconds[name].append(float(told["timed"]["step_s"]))
