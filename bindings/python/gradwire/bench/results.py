"""Turns the events of one run into a row of the report and a learning curve."""

from __future__ import annotations

from statistics import median
from typing import Dict, List, Optional

from gradwire.bench import local
from gradwire.bench.intervals import mean, mean_interval
from gradwire.bench.job import Case, Job
from gradwire.bench.links import Network
from gradwire.bench.timeline import Steps
from gradwire.bench.types import Document, Event, Row

_TIMES = (
    "step_ms",
    "compute_ms",
    "exposed_exchange_ms",
    "compression_ms",
    "transfer_ms",
    "backward_ms",
)
# Row name, name per step in `done`, name in `step`.
_BYTES = (
    ("wire_bytes_per_step", "bytes_sent_per_step", "bytes_sent"),
    ("predicted_bytes_per_step", "predicted_bytes_per_step", "predicted_bytes_sent"),
    ("interface_bytes_per_step", "interface_bytes_per_step", "interface_bytes_sent"),
)


class Recorder:
    """Keeps the events of one run; `row()` may be asked at any time, also of a run cut short."""

    def __init__(self, job: Job, case: Case, network: Network):
        self._job = job
        self._case = case
        self._network = network
        self.start: Optional[Event] = None
        self.steps: List[Event] = []
        self.evaluations: List[Event] = []
        self.target: Optional[Event] = None
        self.epochs: List[Event] = []
        self.decisions: List[Event] = []  # of 'auto'
        self._timelines = Steps()
        self._done: Dict[int, Event] = {}
        self._sent = 0

    def observe(self, event: Event) -> None:
        kind, rank = event["event"], event["rank"]
        if kind == "start" and rank == 0:
            self.start = event
        elif kind == "step":
            self.steps.append(event)
            self._sent += event.get(self._job.curve_bytes) or 0
        elif kind == "timeline" and rank == 0:
            self._timelines.observe(event, self.steps[-1].get("step_ms") if self.steps else None)
        elif kind == "evaluate":
            self.evaluations.append(dict(event, bytes=self._sent))
        elif kind == "target":
            self.target = event
        elif kind == "epoch":
            self.epochs.append(event)
        elif kind == "decision":
            names = ("step", "what", "from", "to", "reason", "numbers")
            self.decisions.append({name: event.get(name) for name in names})
        elif kind == "done":
            self._done[rank] = event

    def hashes_differ(self) -> Optional[int]:
        """The first epoch after which the ranks' parameters were not equal."""
        return next((e["epoch"] for e in self.epochs if e.get("hashes_equal") is False), None)

    def row(self, stopped_early: bool) -> Row:
        job, case, start = self._job, self._case, self.start or {}
        alone = local.read(case.method)
        last = self._done.get(0) or (self.steps[-1] if self.steps else {})
        row = {
            "method": case.method if alone else start.get("method", case.method),
            "peer": bool((self.start or {}).get("peer")),
            "link": case.link.name,
            "link_mbit_per_s": case.link.mbit_per_s,
            "link_mode": self._network.mode,
            "transport": job.transport,
            "world_size": job.workers,
            "threads": job.threads,
            "seed": case.seed,
            "exchange": (self.start or {}).get("exchange", job.exchange),
            "optimizer": (self.start or {}).get("optimizer", job.optimizer),
            "learning_rate": (self.start or {}).get("learning_rate", job.learning_rate),
            "batch_size": job.batch_size,
            "local_steps": alone.steps if alone else job.local_steps,
            "parameters": (self.start or {}).get("parameters"),
            "target_accuracy": job.target_accuracy or None,
            "seconds_to_target": self.target["seconds"] if self.target else None,
            "steps_to_target": self.target["step"] if self.target else None,
            "final_accuracy": self.evaluations[-1]["accuracy"] if self.evaluations else None,
            "accuracy_by_epoch": self._by_epoch(),
            "best_accuracy": max((e["accuracy"] for e in self.evaluations), default=None),
            "steps": len(self.steps),
            "epochs": last.get("epochs", last.get("epoch")),
            "seconds": last.get("seconds"),
            "skipped_steps": last.get("skipped_steps"),
            "stopped_by": self._stopped_by(stopped_early),
        }
        row.update(self._times())
        row.update(self._bytes())
        return row

    def curve(self) -> List[Event]:
        """Accuracy against steps, training seconds and bytes sent by rank 0 so far."""
        return [
            {name: event[name] for name in ("step", "seconds", "bytes", "accuracy")}
            for event in self.evaluations
        ]

    def timeline(self) -> Optional[Document]:
        """One step of rank 0, None where the workers told of none."""
        return self._timelines.document()

    def _by_epoch(self) -> List[Optional[float]]:
        """Accuracy at the end of each complete epoch; None where nothing was evaluated there."""
        per_epoch = (self.start or {}).get("steps_per_epoch")
        if not per_epoch:
            return []
        at_step = {event["step"]: event["accuracy"] for event in self.evaluations}
        complete = len(self.steps) // per_epoch
        return [at_step.get(epoch * per_epoch) for epoch in range(1, complete + 1)]

    def _stopped_by(self, stopped_early: bool) -> str:
        if stopped_early:
            return "time budget"
        if self.target and self._job.stop_at_target:
            return "target"
        return "epochs" if not self._job.max_steps else "epochs or max steps"

    def _times(self) -> Row:
        """Means over the steps but the first, which pays for memory and connections."""
        steps = self.steps[1:] or self.steps
        if self._done:
            times = {name: mean([d.get(name) for d in self._done.values()]) for name in _TIMES}
        else:
            times = {name: mean([step.get(name) for step in steps]) for name in _TIMES}
        samples = [step["step_ms"] for step in steps if step.get("step_ms") is not None]
        interval = mean_interval(samples)
        times["step_ms_interval"] = interval.half_width if interval else None
        times["step_ms_median"] = median(samples) if samples else None
        times["step_ms_least"] = min(samples, default=None)
        return times

    def _bytes(self) -> Row:
        """Per rank and step: over all ranks where all ended, else those of rank 0."""
        counts = {}
        for row_name, done_name, step_name in _BYTES:
            if self._done:
                counts[row_name] = mean([done.get(done_name) for done in self._done.values()])
            else:
                counts[row_name] = mean([step.get(step_name) for step in self.steps[1:]])
        if not self._network.counts_interface_bytes:
            counts["interface_bytes_per_step"] = None
        return counts
