"""What to train (a Job, the same for every row) and one row's variables (a Case)."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Tuple

from gradwire.bench import local
from gradwire.bench.arguments import Link
from gradwire.bench.errors import UsageError

TRAINER = "gradwire-trainer"


@dataclass(frozen=True)
class Job:
    trainer: Path
    data: Optional[Path]
    workers: int
    threads: int
    transport: str
    hidden: List[int]
    exchange: str
    bucket_kib: int
    overlap: bool
    optimizer: str
    learning_rate: Optional[float]  # None: the trainer's, by optimizer
    local_steps: int
    outer: str
    outer_rate: Optional[float]  # None: the trainer's, by optimizer
    schedule: str
    warmup_steps: int
    batch_size: int
    epochs: int
    max_steps: int
    eval_every: int
    target_accuracy: float
    stop_at_target: bool
    timeout_s: float
    streams: int = 1  # exchanges in flight at once
    compute_only: bool = False  # no exchange: each worker trains alone, for its times
    workload: str = "mlp"
    convolutions: Tuple[int, ...] = ()  # channels, before the hidden layers

    # Bytes that a curve runs along, an event's field.
    curve_bytes = "bytes_sent"

    # Whether workers come out of a fork server: of programs in Python that import much.
    forked = False

    @property
    def processes(self) -> int:
        return 1 if self.transport == "in_process" else self.workers

    @property
    def variant(self) -> str:
        """What is trained: rows of other variants have trained something else."""
        return f"{self.workload}, {self.optimizer}, batch {self.batch_size}"

    def command(self, case: Case) -> List[str]:
        """The worker's program and all of its options that no network and no rank decide."""
        return trainer_arguments(self, case)

    def rehearsals(self, cases: List[Case]) -> List[Case]:
        """What one process must be able to begin before anything is measured: every method."""
        methods = dict.fromkeys(case.method for case in cases)
        return [Case(Link("none", None), method, cases[0].seed) for method in methods]

    def describe(self) -> str:
        """What is trained, for the first lines."""
        return f"data {self.data}"


@dataclass(frozen=True)
class Case:
    link: Link
    method: str
    seed: int

    def describe(self) -> str:
        where = "unshaped links" if self.link.name == "none" else self.link.name
        return f"{self.method} on {where}, seed {self.seed}"


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: a job and the variables of its row."""

    job: Job
    case: Case

    @property
    def variant(self) -> str:
        """Its job's: what its row is compared within."""
        return self.job.variant

    @property
    def key(self) -> str:
        """Tells it from all others of a sweep, also of one that goes on tomorrow."""
        case = self.case
        return f"{self.variant}: {case.method} on {case.link.name}, seed {case.seed}"


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


def threads_per_rank(workers: int) -> int:
    return max(1, cores() // workers)


def find_trainer(given: Optional[str]) -> Path:
    """The trainer asked for, else the environment's, the package's, the PATH's."""
    asked = given or os.environ.get("GRADWIRE_TRAINER")
    if asked:
        path = Path(shutil.which(asked) or asked)
        if not (path.is_file() and os.access(path, os.X_OK)):
            raise UsageError(f"--trainer {asked}: no such program")
        return path.resolve()
    # In an editable install the compiled files are not beside the sources.
    core = getattr(sys.modules.get("gradwire._core"), "__file__", None)
    packages = [Path(core).parent] if core else []
    packages.append(Path(__file__).resolve().parent.parent)
    for folder in [package / "bin" for package in packages] + [Path(sys.executable).parent]:
        place = folder / TRAINER
        if place.is_file() and os.access(place, os.X_OK):
            return place
    found = shutil.which(TRAINER)
    if found:
        return Path(found)
    raise UsageError(
        f"{TRAINER} was not found in the package, beside Python or on the PATH; build it with "
        "GRADWIRE_BENCH=ON and pass --trainer FILE or set GRADWIRE_TRAINER"
    )


def trainer_arguments(job: Job, case: Case) -> List[str]:
    """Everything that does not depend on the rank or the network."""
    alone = local.read(case.method) or local.Local(job.local_steps, case.method, job.outer)
    options = {
        "world-size": job.workers,
        "transport": job.transport,
        "timeout-s": f"{job.timeout_s:g}",
        "data": job.data,
        "hidden": ",".join(str(width) for width in job.hidden),
        "method": alone.spec,
        "exchange": job.exchange,
        "bucket-kib": job.bucket_kib,
        "optimizer": job.optimizer,
        "local-steps": alone.steps,
        "outer": alone.outer,
        "schedule": job.schedule,
        "warmup-steps": job.warmup_steps,
        "batch-size": job.batch_size,
        "epochs": job.epochs,
        "max-steps": job.max_steps,
        "seed": case.seed,
        "target-accuracy": f"{job.target_accuracy:g}",
        "stop-at-target": int(job.stop_at_target),
        "eval-every": job.eval_every,
        "threads": job.threads,
        "streams": job.streams,
        "overlap": int(job.overlap),
        "no-exchange": int(job.compute_only),
        "events": "-",
        "die-with-parent": os.getpid(),
    }
    if job.convolutions:
        options["convolutions"] = ",".join(str(channels) for channels in job.convolutions)
    if job.learning_rate is not None:
        options["learning-rate"] = f"{job.learning_rate:g}"
    if job.outer_rate is not None:
        options["outer-rate"] = f"{job.outer_rate:g}"
    return [str(job.trainer)] + [
        text for name, value in options.items() for text in (f"--{name}", str(value))
    ]
