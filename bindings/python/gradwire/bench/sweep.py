"""From options to runs: which job is trained, on which link, by which method, with which seed.

A sweep multiplies workloads, optimizers, batch sizes, seeds, links and methods. Seeds come before
links and methods, so that a sweep that ends early has compared all of them with the first seed.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from gradwire.bench import arguments, local, options, torch_job, workloads
from gradwire.bench.digits import check_data_folder, digits_folder
from gradwire.bench.errors import UsageError
from gradwire.bench.job import Case, Job, Trial, find_trainer, threads_per_rank
from gradwire.bench.types import Document


class Sweep:
    """All runs asked for, in order; everything that can be wrong with the options is found here.

    Args:
        args: what `options.add_arguments` reads.
        own: of a workload, options that replace those of ``args`` there, as a config file has them.

    Raises:
        UsageError: an option that cannot be.
    """

    def __init__(self, args: argparse.Namespace, own: Dict[str, Dict[str, Any]]) -> None:
        arguments.check_given(args)
        usual_links = options.QUICK_LINKS if args.quick else options.DEFAULT_LINKS
        self.links = arguments.parse_links(usual_links if args.links is None else args.links)
        self.seeds = arguments.parse_seeds(args.seeds)
        self.names = _workloads(args)
        _check_belongs(args, self.names, own)
        workers = arguments.check_workers(args.workers)
        self.trials: List[Trial] = []
        self.in_torch = any(name not in workloads.IN_CPP for name in self.names)
        made = [(job, methods) for name in self.names
                for job, methods in _jobs(_overlaid(args, own.get(name, {})), name, workers, self.links)]
        for seed in self.seeds:
            for job, methods in made:
                for link in self.links:
                    self.trials += [Trial(job, Case(link, method, seed)) for method in methods]

    @property
    def jobs(self) -> List[Job]:
        """Each once, in order."""
        return jobs(self.trials)

    def settings(self) -> Document:
        """Of the first job; what others have otherwise is in ``variants``, by the name of each."""
        told = [_told(job) for job in self.jobs]
        document: Document = dict(told[0], variant=self.jobs[0].variant)
        if len(told) > 1:
            document["variants"] = [
                dict({name: value for name, value in each.items() if value != told[0].get(name)},
                     name=job.variant)
                for job, each in zip(self.jobs, told)
            ]  # fmt: skip
        return document


def jobs(trials: Sequence[Trial]) -> List[Job]:
    """Each once, in order. (A Job holds a list, so it has no hash.)"""
    found: List[Job] = []
    for trial in trials:
        if trial.job not in found:
            found.append(trial.job)
    return found


def cases(trials: Sequence[Trial], job: Job) -> List[Case]:
    return [trial.case for trial in trials if trial.job == job]


def _told(job: Job) -> Document:
    return {name: str(v) if isinstance(v, Path) else v for name, v in asdict(job).items()}


def _workloads(args: argparse.Namespace) -> List[str]:
    in_torch = args.trainer == torch_job.TRAINER
    if args.workload is None:
        return ["cnn"] if in_torch else [workloads.MLP]
    names = workloads.parse(args.workload)
    in_cpp = [name for name in names if name in workloads.IN_CPP]
    if in_torch and in_cpp:
        raise UsageError(
            f"--workload {in_cpp[0]}: is trained by the C++ trainer, expected no --trainer torch "
            "beside it"
        )
    if args.trainer is not None and not in_torch and not in_cpp:
        raise UsageError(
            f"--trainer {args.trainer}: --workload {args.workload} is trained in torch, expected no "
            "such option"
        )
    return names


def _check_belongs(
    args: argparse.Namespace, names: List[str], own: Dict[str, Dict[str, Any]]
) -> None:
    """Options that are for some workloads, where none of these is trained."""
    for name in own:
        if name not in names:
            raise UsageError(
                f"[workloads.{name}]: is not trained, expected one of {', '.join(names)}"
            )
    shown = ",".join(names)
    if args.data and not set(names) & set(workloads.OF_FOLDERS):
        expected = _listed(workloads.OF_FOLDERS)
        raise UsageError(f"--data {args.data}: not for --workload {shown}, expected {expected}")
    if args.text and "bytes" not in names:
        if set(names) <= set(workloads.IN_CPP):
            torch_job.refuse_without(args)
        raise UsageError(f"--text {args.text}: not for --workload {shown}, expected bytes")
    if args.convolutions is not None and workloads.CONV not in names:
        raise UsageError(
            f"--convolutions {args.convolutions}: not for --workload {shown}, expected {workloads.CONV}"
        )
    if set(names) <= set(workloads.IN_CPP):
        torch_job.refuse_without(args)


def _overlaid(args: argparse.Namespace, own: Dict[str, Any]) -> argparse.Namespace:
    """With a workload's own options; the command line goes before these."""
    kept = {name: value for name, value in own.items() if name not in options.given(args)}
    return argparse.Namespace(**{**vars(args), **kept})


def _jobs(
    args: argparse.Namespace, workload: str, workers: int, links: List[arguments.Link]
) -> List[Any]:
    """(job, its methods) for each optimizer and batch size."""
    in_torch = workload not in workloads.IN_CPP
    usual_methods = torch_job.DEFAULT_METHODS if in_torch else options.usual_methods(args)
    methods = arguments.parse_methods(usual_methods if args.methods is None else args.methods)
    arguments.check_ranges(args)
    if in_torch:
        torch_job.check(args, workload, links)
    _check_local(methods, workload, args.local_steps)
    optimizers: List[Optional[str]] = [None]
    if args.optimizer is not None:
        optimizers = list(arguments.parse_optimizers(args.optimizer))
    if not in_torch:
        for optimizer in optimizers:
            arguments.check_specs(methods, {"optimizer": optimizer, "outer": args.outer})
    sizes: List[Optional[int]] = [None]
    if args.batch_size is not None:
        sizes = list(arguments.parse_batch_sizes(args.batch_size))
    return [
        (_scaled(_job(args, workload, workers, optimizer, size), sizes[0]), methods)
        for optimizer in optimizers
        for size in sizes
    ]


def _check_local(methods: List[str], workload: str, local_steps: int) -> None:
    """Methods with local steps: by the C++ trainer, and with no others beside them."""
    for method in methods:
        try:
            found = local.read(method)
        except ValueError as error:
            raise UsageError(f"--methods: '{method}': {error}") from None
        if found and workload not in workloads.IN_CPP:
            raise UsageError(
                f"--methods: '{method}' is not for --workload {workload}, expected "
                f"{_listed(workloads.IN_CPP)}, or a method that exchanges every step"
            )
        if found and local_steps != 1:
            raise UsageError(
                f"--methods: '{method}' has local steps of its own, expected no --local-steps "
                f"{local_steps}"
            )


def _job(
    args: argparse.Namespace,
    workload: str,
    workers: int,
    optimizer: Optional[str],
    batch_size: Optional[int],
) -> Job:
    in_torch = workload not in workloads.IN_CPP
    widths = _given(args.hidden, workloads.HIDDEN.get(workload))
    hidden = arguments.parse_widths(widths) if widths is not None else []
    convolutions: List[int] = []
    if workload == workloads.CONV:
        given = _given(args.convolutions, workloads.CONVOLUTIONS)
        convolutions = arguments.parse_widths(given, "--convolutions", 4096)
    trainer = Path() if in_torch else find_trainer(args.trainer)
    data = _data(args, workload)
    usual = workloads.USUAL.get(workload) or workloads.Usual(
        options.DEFAULT_OPTIMIZER,
        options.DEFAULT_LEARNING_RATE,
        batch_size=64,
        epochs=20,
        eval_every=50 if args.data else 2,  # the digits' 360 test rows cost next to nothing
        target_accuracy=0.95,
    )
    learning_rate = args.learning_rate
    if learning_rate is None and in_torch and optimizer is not None:
        learning_rate = _rate_in_torch(optimizer, usual)
    elif learning_rate is None and optimizer is None:
        learning_rate = usual.learning_rate
    target = _given(args.target_accuracy, usual.target_accuracy)
    job = Job(
        trainer=trainer,
        data=data,
        workers=workers,
        threads=threads_per_rank(workers),
        transport=args.transport,
        hidden=hidden,
        convolutions=tuple(convolutions),
        workload=workload,
        exchange=args.exchange,
        bucket_kib=args.bucket_kib,
        overlap=bool(args.overlap),
        optimizer=optimizer or usual.optimizer,
        learning_rate=learning_rate,
        local_steps=args.local_steps,
        outer=args.outer,
        outer_rate=args.outer_rate,
        schedule=args.schedule,
        warmup_steps=args.warmup_steps,
        batch_size=_given(batch_size, usual.batch_size),
        epochs=_given(args.epochs, usual.epochs),
        max_steps=args.max_steps,
        eval_every=_given(args.eval_every, usual.eval_every),
        target_accuracy=target,
        stop_at_target=bool(args.stop_at_target) and target > 0,
        timeout_s=args.timeout,
    )
    return torch_job.of(job, workload, args) if in_torch else job


def _rate_in_torch(optimizer: str, usual: workloads.Usual) -> float:
    """The workload's where it is trained with this one, else that of the MLP."""
    name = optimizer.partition(":")[0]
    if name == usual.optimizer.partition(":")[0]:
        return usual.learning_rate
    return workloads.RATES.get(name, usual.learning_rate)


def _scaled(job: Job, first: Optional[int]) -> Job:
    """With the rate that belongs to its batch, where the first batch has the rate that was asked for:
    in proportion, or with adaptive optimizers by the square root."""
    if first is None or job.batch_size == first:
        return job
    name = job.optimizer.partition(":")[0]
    rate = job.learning_rate
    if rate is None:
        rate = workloads.RATES.get(name, workloads.RATES["sgd"])
    power = 0.5 if name in workloads.BY_SQUARE_ROOT else 1.0
    return replace(job, learning_rate=rate * (job.batch_size / first) ** power)


def _listed(names: Sequence[str]) -> str:
    return " or ".join(names)


def _given(value: Any, usual: Any) -> Any:
    return usual if value is None else value


def _data(args: argparse.Namespace, workload: str) -> Optional[Path]:
    if workload not in workloads.OF_FOLDERS:
        return None
    if not args.data:
        return digits_folder().resolve()
    return check_data_folder(Path(args.data)).resolve()
