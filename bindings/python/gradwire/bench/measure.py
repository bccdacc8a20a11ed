"""Runs the trials one after another and fills the report."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, List, Optional, Sequence

from gradwire.bench import sweep
from gradwire.bench.errors import RunError
from gradwire.bench.job import Case, Job, Trial
from gradwire.bench.launch import Run, prepare
from gradwire.bench.links import Network
from gradwire.bench.progress import Progress
from gradwire.bench.report import Report
from gradwire.bench.results import Recorder
from gradwire.bench.types import Event, Row

RESERVE_S = 5.0  # what each later run keeps of the budget, however slow an earlier one is
_MOST_FAILURES = 3  # one after another: then it is the machine and no run


def rehearse(job: Job, cases: List[Case], network: Network, scratch: Path) -> None:
    """One step of each method, in one process: bad specs and data are told before the first run."""
    short = replace(job, transport="in_process", max_steps=1, eval_every=0, stop_at_target=False)
    prepare(job, cases[0], network)  # all of them: the first run is to be no longer than others
    for number, case in enumerate(short.rehearsals(cases)):
        folder = scratch / f"rehearsal-{len(list(scratch.iterdir()))}-{number}"
        with Run(short, case, network, folder, folder / "store") as run:
            run.watch(lambda event: None)


@dataclass
class Session:
    """What all runs share."""

    network: Network
    report: Report
    scratch: Path
    logs: Path
    keep: Callable[[], None] = lambda: None  # called after every run
    keep_going: bool = False
    end_at: Optional[float] = None  # of all runs, on the monotonic clock
    reserve_s: Callable[[Trial], float] = lambda trial: RESERVE_S  # of a later run
    # Below which a run is not begun; without, each is begun and stopped when its time is over.
    least_s: Optional[Callable[[Trial], float]] = None
    runs: int = 0

    def folders(self) -> List[Path]:
        """Of the next run: for its logs, and where its workers meet."""
        self.runs += 1
        return [self.logs / f"run{self.runs}", self.scratch / f"store{self.runs}"]


def measure(trials: Sequence[Trial], session: Session) -> List[Trial]:
    """Adds one row per trial to the report; those for which no time was left are returned.

    A run that would take too much of the time is stopped and says so. A run that fails is in the
    report's ``failures``, and ends the benchmark unless the session keeps going.

    Raises:
        RunError: a run failed; the rows before it, or all the others, are in the report.
    """
    progress = Progress(trials)
    left_out: List[Trial] = []
    failed: List[str] = []
    in_a_row = 0
    try:
        for number, trial in enumerate(trials):
            end_at = _end_of(trials[number + 1 :], session)
            if end_at is not None and session.least_s is not None:
                if time.monotonic() + session.least_s(trial) > end_at:
                    left_out.append(trial)
                    progress.skip(trial)
                    continue
            progress.begin(trial, end_at)
            try:
                row = _measure_one(trial, session, progress, end_at)
                in_a_row, outcome = 0, _outcome(row)
            except RunError as error:
                failed.append(str(error))
                in_a_row += 1
                _note_failure(trial, session, str(error))
                if not session.keep_going or in_a_row == _MOST_FAILURES:
                    raise
                outcome = f"failed: {error}"
            session.keep()
            progress.end(outcome)
    finally:
        progress.close()
    if failed:
        raise RunError(f"{len(failed)} of {len(trials)} runs failed, the first: {failed[0]}")
    return left_out


def _end_of(later: Sequence[Trial], session: Session) -> Optional[float]:
    if session.end_at is None:
        return None
    return session.end_at - sum(session.reserve_s(trial) for trial in later)


def _note_failure(trial: Trial, session: Session, error: str) -> None:
    case = trial.case
    told = {
        "variant": trial.variant,
        "link": case.link.name,
        "method": case.method,
        "seed": case.seed,
        "key": trial.key,
        "error": error,
    }
    session.report.more.setdefault("failures", []).append(told)


def _measure_one(
    trial: Trial, session: Session, progress: Progress, end_at: Optional[float]
) -> Row:
    job, case = trial.job, trial.case
    session.network.set_link(case.link)
    recorder = Recorder(job, case, session.network)

    def observe(event: Event) -> None:
        if event["event"] == "step" and case.link.then and event["step"] == case.link.behind:
            session.network.set_link(case.link.then)
        recorder.observe(event)
        progress.observe(event)

    logs, store = session.folders()
    with Run(job, case, session.network, logs, store) as run:
        run.watch(observe, end_at)
    epoch = recorder.hashes_differ()
    if epoch is not None:
        raise RunError(
            f"{case.describe()}: the workers' parameters differ after epoch {epoch}, "
            "expected the same bits on every worker"
        )
    row = recorder.row(run.stopped_early)
    row.update(workload=job.workload, variant=trial.variant, key=trial.key)
    session.report.add(row, recorder.curve(), recorder.decisions, recorder.timeline())
    return row


def _outcome(row: Row) -> str:
    accuracy = "-" if row["final_accuracy"] is None else f"{row['final_accuracy']:.4f}"
    step = "-" if row["step_ms"] is None else f"{row['step_ms']:.1f}"
    text = f"accuracy {accuracy} after {row['steps']} steps of {step} ms"
    if row["seconds_to_target"] is not None:
        return f"{row['target_accuracy']:g} after {row['seconds_to_target']:.2f} s; {text}"
    return f"{text} (stopped by {row['stopped_by']})"


def rehearse_all(trials: Sequence[Trial], network: Network, scratch: Path) -> None:
    """Every job's methods, once."""
    for job in sweep.jobs(trials):
        rehearse(job, sweep.cases(trials, job), network, scratch)
