"""What a run will take, from a few steps of each method."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, List, Optional, Sequence

from gradwire.bench.arguments import Link
from gradwire.bench.job import Case, Job, Trial
from gradwire.bench.launch import Run
from gradwire.bench.links import Network
from gradwire.bench.types import Event

PROBE_STEPS = 4
_MARGIN = 1.15  # of the steps: they vary, and nothing may last longer than was allowed
_USUAL_STEPS = 24  # of a training that has no examples to count


@dataclass(frozen=True)
class Cost:
    """Of one job and method, in wall seconds."""

    start_s: float  # of a run, before its first step and after its last
    step_s: float  # on the link it was measured on
    evaluation_s: float
    bytes_per_step: float  # that a worker sends
    link: Link
    steps_per_epoch: Optional[int]

    def step_on(self, link: Link) -> float:
        """A step on another link: the bytes take longer there, whatever hides them here."""
        return max(0.0, self.step_s + 8 * self.bytes_per_step * (_per_bit(link) - _per_bit(self.link)))

    def run_s(self, trial: Trial, steps: int) -> float:
        evaluations = 1 + (steps // trial.job.eval_every if trial.job.eval_every else 0)
        own = steps * self.step_on(trial.case.link) + evaluations * self.evaluation_s
        return self.start_s + _MARGIN * own

    def steps(self, job: Job) -> int:
        """The most that a run of the job makes."""
        planned = (self.steps_per_epoch or 0) * job.epochs or job.max_steps or _USUAL_STEPS
        return min(planned, job.max_steps or planned)


def fastest(links: Sequence[Link]) -> Link:
    return max(links, key=lambda link: link.bits_per_s or math.inf)


def _per_bit(link: Link) -> float:
    return 1 / link.bits_per_s if link.bits_per_s else 0.0


class Watch:
    """Notes when the events of a run arrive, and makes a Cost of that."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._steps: List[float] = []
        self._evaluated: Optional[float] = None
        self._sent: List[float] = []
        self._per_epoch: Optional[int] = None

    def observe(self, event: Event) -> None:
        kind = event["event"]
        if kind == "start" and event.get("steps_per_epoch"):
            self._per_epoch = event["steps_per_epoch"]
        elif kind == "step":
            self._steps.append(self._clock())
            sent = event.get("interface_bytes_sent") or event.get("bytes_sent")
            self._sent.append(float(sent or 0))
        elif kind == "evaluate":
            self._evaluated = self._clock()

    def cost(self, link: Link) -> Cost:
        ended = self._clock()
        if not self._steps:  # nothing was told: all of it may come again
            return Cost(ended - self._began, 0.0, 0.0, 0.0, link, self._per_epoch)
        first, last = self._steps[0], self._steps[-1]
        between = len(self._steps) - 1
        step_s = (last - first) / between if between else first - self._began
        evaluation_s = max(0.0, self._evaluated - last) if self._evaluated is not None else 0.0
        start_s = max(0.0, ended - self._began - len(self._steps) * step_s - evaluation_s)
        sent = sum(self._sent) / len(self._sent)
        return Cost(start_s, step_s, evaluation_s, sent, link, self._per_epoch)


def probe(
    trial: Trial,
    network: Network,
    folder: Path,
    clock: Callable[[], float] = time.monotonic,
) -> Cost:
    """A run of a few steps, in the workers and on the link of the trial.

    Raises:
        RunError: it failed, as the run itself would.
    """
    short = replace(
        trial.job, max_steps=PROBE_STEPS, eval_every=0, epochs=1, stop_at_target=False
    )
    case: Case = trial.case
    network.set_link(case.link)
    watch = Watch(clock)
    with Run(short, case, network, folder, folder / "store") as run:
        run.watch(watch.observe)
    return watch.cost(case.link)
