"""Live progress on stderr: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from gradwire.bench.job import Trial
from gradwire.bench.types import Event
from gradwire.streams import note

_EVERY_S = 5.0


class Left:
    """How long the runs that are left will take, from those that have ended.

    A run takes what the same one took with another seed; else what its method takes beside others of
    the same training and link; else the mean of all.
    """

    def __init__(self, trials: Sequence[Trial]):
        self._left = list(trials)
        self._took: Dict[str, List[float]] = {}

    def ended(self, trial: Trial, seconds: float) -> None:
        self._left.remove(trial)
        for group in self._groups(trial):
            self._took.setdefault(group, []).append(seconds)

    def skipped(self, trial: Trial) -> None:
        self._left.remove(trial)

    def seconds(self, spent_s: float = 0.0, most_s: Optional[float] = None) -> Optional[float]:
        """None as long as no run has ended; ``spent_s`` is what the present one has taken.

        ``most_s``, where it is known: what the present one takes still at most.
        """
        if not self._took:
            return None
        present = [left for left in (self.of_this(spent_s), most_s) if left is not None]
        return min(present, default=0.0) + sum(self._of(trial) for trial in self._left[1:])

    def of_this(self, spent_s: float) -> Optional[float]:
        """Of the present run; None where nothing is known, or it takes longer than was expected."""
        if not self._took or not self._left:
            return None
        left_s = self._of(self._left[0]) - spent_s
        return left_s if left_s > 0 else None

    def _of(self, trial: Trial) -> float:
        for group in self._groups(trial):
            if group in self._took:
                return sum(self._took[group]) / len(self._took[group])
        raise AssertionError("the last group is everybody's")

    @staticmethod
    def _groups(trial: Trial) -> List[str]:
        link = f"{trial.variant}|{trial.case.link.name}"
        return [f"{link}|{trial.case.method}", link, trial.variant, ""]


def duration(seconds: float) -> str:
    """'40 s', '12 min', '2 h 05 min': as exact as an estimate is."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


class Progress:
    """Follows one run after another; `observe` takes the workers' events."""

    def __init__(self, trials: Sequence[Trial], clock: Callable[[], float] = time.monotonic):
        self._runs = len(trials)
        self._several = len({trial.variant for trial in trials}) > 1
        self._left = Left(trials)
        self._clock = clock
        self._index = 0
        self._name = ""
        self._trial: Optional[Trial] = None
        self._epochs = self._max_steps = 0
        self._spent_s = 0.0
        self._steps = 0
        self._accuracy: Optional[float] = None
        self._limit = 0
        self._end_at: Optional[float] = None
        self._began = self._shown = clock()
        self._bar = _Bar(self._runs) if sys.stderr.isatty() else None

    def begin(self, trial: Trial, end_at: Optional[float]) -> None:
        """``end_at``: when the budget ends this run, on the monotonic clock."""
        self._next(trial)
        self._steps, self._accuracy, self._began = 0, None, self._clock()
        self._epochs, self._max_steps = trial.job.epochs, trial.job.max_steps
        self._limit, self._spent_s, self._end_at = self._max_steps, 0.0, end_at
        if self._bar:
            self._bar.begin(self._title(), self._all())

    def skip(self, trial: Trial) -> None:
        """A run that is not made."""
        self._next(trial)
        self._left.skipped(trial)
        self.say(f"{self._title()}: left out, no time is left")

    def _next(self, trial: Trial) -> None:
        self._index += 1
        self._trial = trial
        described = trial.case.describe()
        self._name = f"{trial.variant}: {described}" if self._several else described

    def observe(self, event: Event) -> None:
        kind = event["event"]
        if kind == "start" and event.get("steps_per_epoch"):
            planned = self._epochs * event["steps_per_epoch"]
            self._limit = min(planned, self._max_steps) if self._max_steps else planned
        elif kind == "step":
            self._steps = event["step"]
            self._spent_s = event.get("seconds") or 0.0
        elif kind == "evaluate":
            self._accuracy = event["accuracy"]
        else:
            return
        if self._bar:
            self._bar.update(self._steps, self._limit, self._state(), self._all())
        elif self._clock() > self._shown + _EVERY_S:
            left = self._all()
            self.say(f"{self._title()}: {self._state()}" + (f"; {left}" if left else ""))

    def end(self, outcome: str) -> None:
        assert self._trial is not None
        self._left.ended(self._trial, self._clock() - self._began)
        self._began, self._steps = self._clock(), 0
        left = self._all()
        self.say(f"{self._title()}: {outcome}" + (f"; {left}" if left else ""))

    def say(self, text: str) -> None:
        self._shown = self._clock()
        if self._bar:
            self._bar.say(text)
        else:
            note(text)

    def close(self) -> None:
        if self._bar:
            self._bar.close()
            self._bar = None

    def _title(self) -> str:
        return f"[{self._index}/{self._runs}] {self._name}"

    def _state(self) -> str:
        accuracy = "-" if self._accuracy is None else f"{self._accuracy:.3f}"
        text = f"step {self._steps} of at most {self._limit}, accuracy {accuracy}"
        most_s = self._most_s()
        if most_s is None:
            return text
        # What other runs took, where it is known: "at most" may be more than is left in all.
        expected_s = self._left.of_this(self._clock() - self._began)
        if expected_s is None:
            return f"{text}, at most {duration(most_s)} left in this run"
        return f"{text}, about {duration(min(expected_s, most_s))} left in this run"

    def _most_s(self) -> Optional[float]:
        """That the present run takes still: all of its steps, as long as it is allowed to."""
        if not self._steps or self._limit <= self._steps:
            return None
        left_s = self._spent_s / self._steps * (self._limit - self._steps)
        return left_s if self._end_at is None else max(0.0, min(left_s, self._end_at - self._clock()))

    def _all(self) -> str:
        """Of the runs that are left, empty where nothing is known or nothing is left."""
        seconds = self._left.seconds(self._clock() - self._began, self._most_s())
        return f"about {duration(seconds)} left in all" if seconds else ""


class _Bar:
    """rich's progress bars, of this run and of all; without rich, one line rewritten in place."""

    def __init__(self, runs: int) -> None:
        self._begun = 0
        self._rich: Any = None
        self._title = ""
        try:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as RichProgress
        except ImportError:
            return
        columns = [
            TextColumn("{task.description}"),
            BarColumn(20),
            TextColumn("{task.fields[state]}"),
        ]
        self._rich = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._rich.start()
        self._task = self._rich.add_task("", total=None, state="")
        self._all = self._rich.add_task("all runs", total=runs, state="", visible=runs > 1)

    def begin(self, title: str, left: str) -> None:
        self._title = title
        if self._rich:
            self._rich.update(self._all, completed=self._begun, state=left)
            self._begun += 1
            self._rich.reset(self._task, description=title, total=None, state="starting")
        else:
            self._rewrite("starting")

    def update(self, steps: int, limit: int, state: str, left: str) -> None:
        if self._rich:
            self._rich.update(self._task, completed=steps, total=limit or None, state=state)
            self._rich.update(self._all, state=left)
        else:
            self._rewrite(f"{state}; {left}" if left else state)

    def say(self, text: str) -> None:
        if self._rich:
            self._rich.console.print(text, markup=False, highlight=False)
        else:
            print(f"\r\033[K{text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._rich:
            self._rich.stop()

    def _rewrite(self, state: str) -> None:
        print(f"\r\033[K{self._title}: {state}", end="", file=sys.stderr, flush=True)
