"""Live progress on stderr: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Optional

from gradwire.bench.types import Event
from gradwire.streams import note

_EVERY_S = 5.0


class Progress:
    """Follows one run after another; `observe` takes the workers' events."""

    def __init__(self, runs: int):
        self._runs = runs
        self._index = 0
        self._name = ""
        self._epochs = self._max_steps = 0
        self._spent_s = 0.0
        self._steps = 0
        self._accuracy: Optional[float] = None
        self._limit = 0
        self._end_at: Optional[float] = None
        self._shown = time.monotonic()
        self._bar = _Bar() if sys.stderr.isatty() else None

    def begin(self, name: str, epochs: int, max_steps: int, end_at: Optional[float]) -> None:
        """``end_at``: when the budget ends this run, on the monotonic clock."""
        self._index += 1
        self._name, self._steps, self._accuracy = name, 0, None
        self._epochs, self._max_steps, self._limit = epochs, max_steps, max_steps
        self._spent_s, self._end_at = 0.0, end_at
        if self._bar:
            self._bar.begin(self._title())

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
            self._bar.update(self._steps, self._limit, self._state())
        elif time.monotonic() > self._shown + _EVERY_S:
            self.say(f"{self._title()}: {self._state()}")

    def end(self, outcome: str) -> None:
        self.say(f"{self._title()}: {outcome}")

    def say(self, text: str) -> None:
        self._shown = time.monotonic()
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
        if self._steps and self._limit > self._steps:
            left_s = self._spent_s / self._steps * (self._limit - self._steps)
            if self._end_at is not None:
                left_s = max(0.0, min(left_s, self._end_at - time.monotonic()))
            text += f", at most {left_s:.0f} s left in this run"
        return text


class _Bar:
    """rich's progress bar; without rich, one line rewritten in place."""

    def __init__(self) -> None:
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

    def begin(self, title: str) -> None:
        self._title = title
        if self._rich:
            self._rich.reset(self._task, description=title, total=None, state="starting")
        else:
            self._rewrite("starting")

    def update(self, steps: int, limit: int, state: str) -> None:
        if self._rich:
            self._rich.update(self._task, completed=steps, total=limit or None, state=state)
        else:
            self._rewrite(state)

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
