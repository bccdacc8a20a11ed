"""How peers.py and optimizer_peers.py measure: ours and others' ways in interleaved rounds, beside the
memory's own speed in the same rounds, and a line of text for each.
"""

import os
import platform
import statistics
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Tuple

import numpy as np

import gradwire

try:
    import torch
except ImportError:
    torch = None


@dataclass
class Case:
    """One operation: what we do, what others do instead, and the bytes that nobody can avoid."""

    name: str
    run: Callable[[], object]
    numel: int
    bytes: float
    floor_goal: Optional[float] = None
    peers: Dict[str, Tuple[Callable[[], object], Optional[float]]] = field(default_factory=dict)


class Memory:
    """Two arrays that no cache holds and room for a third, to measure what memory can do."""

    def __init__(self, numel: int):
        random = np.random.default_rng(42)
        self.a = random.standard_normal(numel, np.float32) * np.float32(1e-3)
        self.b = np.roll(self.a, 12345) * np.float32(0.5)
        self.out = np.empty_like(self.a)

    def best_rate(self) -> float:
        """Bytes per second of the better of two loops."""
        loops = (lambda: np.add(self.a, self.b, out=self.out),
                 lambda: np.add(self.out, self.a, out=self.out))
        return max(12.0 * self.a.size / seconds(loop) for loop in loops)


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of the process: fair to both sides on a machine that others use too."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def measure(case: Case, memory: Memory, rounds: int) -> dict:
    calls = {"ours": case.run, **{name: call for name, (call, _) in case.peers.items()}}
    times: Dict[str, List[float]] = {name: [] for name in calls}
    rates: List[float] = []
    for call in calls.values():
        call()
    for _ in range(rounds):
        rates.append(memory.best_rate())
        for name, call in calls.items():
            times[name].append(seconds(call))
    medians = {name: statistics.median(values) for name, values in times.items()}
    floor = case.bytes / statistics.median(rates)
    return {
        "op": case.name, "numel": case.numel, "ms": 1e3 * medians["ours"], "bytes": case.bytes,
        "of_floor": floor / medians["ours"], "floor_goal": case.floor_goal,
        "peers": {name: {"ms": 1e3 * medians[name], "ratio": medians[name] / medians["ours"],
                         "goal": goal} for name, (_, goal) in case.peers.items()},
    }


def with_goal(value: float, goal: Optional[float], digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text if goal is None else f"{text} (goal {goal:g}{'' if value >= goal else ', missed'})"


HEADING = f"{'operation':<31}{'ms':>9}  {'of the floor':<26}{'peer':<19}{'ms':>9}  peer / ours"


def show(result: dict) -> None:
    """Prints a result: a line per peer."""
    lead = f"{result['op']:<31}{result['ms']:9.1f}  " \
           f"{with_goal(result['of_floor'], result['floor_goal'], 2):<26}"
    for name, peer in result["peers"].items() or [("", None)]:
        print((lead + f"{name:<19}" + (f"{peer['ms']:9.1f}  "
               + with_goal(peer["ratio"], peer["goal"], 1) if peer else "")).rstrip(), flush=True)
        lead = " " * len(lead)


def about(what: str) -> str:
    """The machine, its load and the versions: a line above the results."""
    info = gradwire.build_info()
    return (f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}; gradwire {info['version']}, numpy {np.__version__}, "
            f"torch {torch.__version__ if torch else 'not installed'}; {what}")
