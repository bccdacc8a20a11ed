"""Runs the cases one after another and fills the report."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import List, Optional, Tuple

from gradwire.bench.errors import RunError
from gradwire.bench.job import Case, Job
from gradwire.bench.launch import Run
from gradwire.bench.links import Network, Pacing
from gradwire.bench.progress import Progress
from gradwire.bench.report import Report
from gradwire.bench.results import Recorder
from gradwire.bench.types import Event, Row

_RESERVE_S = 5.0  # what each later run keeps of the budget, however slow an earlier one is


def rehearse(job: Job, cases: List[Case], scratch: Path) -> None:
    """One step of each method, in one process: bad specs and data are told before the first run."""
    short = replace(job, transport="in_process", max_steps=1, eval_every=0, stop_at_target=False)
    network = Pacing("rehearsal")
    for number, case in enumerate(short.rehearsals(cases)):
        folder = scratch / f"rehearsal{number}"
        with Run(short, case, network, folder, folder / "store") as run:
            run.watch(lambda event: None)


def measure(
    job: Job,
    cases: List[Case],
    network: Network,
    report: Report,
    scratch: Path,
    logs: Path,
    budget_s: Optional[float],
) -> None:
    """Adds one row per case to the report.

    :param budget_s: for all cases; a run that would take too much of it is stopped and says so.
    :raises RunError: a run failed; the rows before it are in the report.
    """
    end_at = time.monotonic() + budget_s if budget_s else None
    progress = Progress(len(cases))
    try:
        for number, case in enumerate(cases):
            later = len(cases) - number - 1
            row = _measure_one(
                job,
                case,
                network,
                report,
                progress,
                (logs / f"run{number + 1}", scratch / f"store{number + 1}"),
                end_at - later * _RESERVE_S if end_at else None,
            )
            progress.end(_outcome(row))
    finally:
        progress.close()


def _measure_one(
    job: Job,
    case: Case,
    network: Network,
    report: Report,
    progress: Progress,
    folders: Tuple[Path, Path],
    end_at: Optional[float],
) -> Row:
    network.set_link(case.link)
    recorder = Recorder(job, case, network)
    progress.begin(case.describe(), job.epochs, job.max_steps, end_at)

    def observe(event: Event) -> None:
        recorder.observe(event)
        progress.observe(event)

    with Run(job, case, network, *folders) as run:
        run.watch(observe, end_at)
    epoch = recorder.hashes_differ()
    if epoch is not None:
        raise RunError(
            f"{case.describe()}: the workers' parameters differ after epoch {epoch}, "
            "expected the same bits on every worker"
        )
    row = recorder.row(run.stopped_early)
    report.add(row, recorder.curve())
    return row


def _outcome(row: Row) -> str:
    accuracy = "-" if row["final_accuracy"] is None else f"{row['final_accuracy']:.4f}"
    step = "-" if row["step_ms"] is None else f"{row['step_ms']:.1f}"
    text = f"accuracy {accuracy} after {row['steps']} steps of {step} ms"
    if row["seconds_to_target"] is not None:
        return f"{row['target_accuracy']:g} after {row['seconds_to_target']:.2f} s; {text}"
    return f"{text} (stopped by {row['stopped_by']})"
