"""`gradwire bench`: the order of events, and how each ending is told."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import time
from pathlib import Path
from typing import Callable, List, Optional, Tuple

from gradwire import json_output
from gradwire.bench import arguments, budget, config, links, measure, resume, torch_job
from gradwire.bench.ending import STDOUT, check_folder, check_json, conclude, keeper
from gradwire.bench.errors import BenchError, Interrupted, UsageError
from gradwire.bench.files import scratch_folder
from gradwire.bench.job import Trial, cores
from gradwire.bench.machine import load, started
from gradwire.bench.options import add_arguments
from gradwire.bench.plots import can_draw
from gradwire.bench.report import Report
from gradwire.bench.signals import interruptible
from gradwire.bench.sweep import Sweep
from gradwire.bench.types import Document
from gradwire.report.write import check_output
from gradwire.streams import note, open_missing, settle

__all__ = ["add_arguments", "run"]

DEFAULT_BUDGET_S = 240.0  # so that a run with defaults ends within 5 minutes, start included
QUICK_BUDGET_S = 95.0  # likewise within 120 seconds


def run(args: argparse.Namespace) -> int:
    """Runs the benchmark; the exit code: 0, 1 run error, 2 bad input, 130 interrupted."""
    open_missing()
    try:
        with interruptible():
            return _run(args)
    except BenchError as error:
        note(f"gradwire bench: {error}")
        return error.exit_code
    except Interrupted as error:
        note(f"gradwire bench: interrupted by {error}")
        return error.exit_code
    finally:
        settle()


def _run(args: argparse.Namespace) -> int:
    began = started()
    own = config.read(args)
    sweep = Sweep(args, own)
    json_file, output = _outputs(args)
    page = Path(args.report) if args.report else output / "report.html"
    check_output("--report" if args.report else "--output", page)
    allowed_s = _allowed_s(args)
    drawn = output if can_draw() else None
    with scratch_folder() as scratch, contextlib.ExitStack() as stack:
        first = sweep.jobs[0]
        network = links.open_network(
            _mode(args, sweep), first.workers, first.transport, sweep.links
        )
        stack.callback(network.close)
        report = _report(args, sweep, network)
        left = _left(args, json_file, report, sweep.trials)
        _announce(sweep, left, network)
        torn = arguments.torn_apart(args.methods) if args.methods else None
        if torn:
            note(torn)
        measure.rehearse_all(left, network, scratch)
        session = measure.Session(
            network=network,
            report=report,
            scratch=scratch,
            logs=output / "logs" if args.keep_logs else scratch / "logs",
            keep=keeper(report, json_file),
            keep_going=args.keep_going,
        )
        if allowed_s is None:
            work = _all(args, sweep, left, session)
        else:
            work = budget.Work(left, session, began + allowed_s, allowed_s)
        conclude(_arranged(work, report, sweep.trials), report, json_file, drawn, page)
    return 0


def _all(
    args: argparse.Namespace, sweep: Sweep, left: List[Trial], session: measure.Session
) -> Callable[[], None]:
    """Every run that is left, within the time budget where there is one."""

    def work() -> None:
        budget_s = _budget_s(args, sweep)
        session.end_at = time.monotonic() + budget_s if budget_s else None
        measure.measure(left, session)

    return work


def _arranged(
    work: Callable[[], None], report: Report, trials: List[Trial]
) -> Callable[[], None]:
    def arranged() -> None:
        try:
            work()
        finally:
            resume.arrange(report, trials)

    return arranged


def _told_of(link: arguments.Link) -> Document:
    told: Document = {"name": link.name, "bits_per_s": link.bits_per_s, "burst_bytes": link.burst_bytes}
    if link.then:  # there is no one rate
        told.update(bits_per_s=None, burst_bytes=None, begins=link.bits_per_s, behind=link.behind,
                    ends=link.then.bits_per_s)  # fmt: skip
    return told


def _report(args: argparse.Namespace, sweep: Sweep, network: links.Network) -> Report:
    return Report(
        command_line=[shlex.quote(word) for word in sys.argv],
        settings=dict(sweep.settings(), quick=args.quick, time_budget_s=args.time_budget),
        links=[_told_of(link) for link in sweep.links],
        network=network.describe(),
    )


def _left(
    args: argparse.Namespace, json_file: Optional[Path], report: Report, trials: List[Trial]
) -> List[Trial]:
    """All trials, or with --resume those that its file does not have."""
    if args.resume is None:
        return list(trials)
    file = Path(args.resume) if args.resume else json_file
    assert file is not None  # as _outputs() has seen
    if not args.resume and not file.exists():
        return list(trials)
    left = resume.take(file, report, trials)
    note(f"{file} has {len(trials) - len(left)} of {len(trials)} runs; {len(left)} are left")
    return left


def _mode(args: argparse.Namespace, sweep: Sweep) -> str:
    return torch_job.link_mode(args, sweep.links) if sweep.in_torch else str(args.link_mode)


def _outputs(args: argparse.Namespace) -> Tuple[Optional[Path], Path]:
    named = args.json or args.resume
    if args.resume == "" and args.json in (None, "", json_output.STDOUT):
        raise UsageError("--resume: names no file, expected --resume FILE or --json FILE beside it")
    json_file = Path(named) if named else None
    if named == json_output.STDOUT:
        json_file = STDOUT
    elif json_file is not None:
        check_json(json_file)
    output = Path(args.output)
    check_folder(output)
    return json_file, output


def _allowed_s(args: argparse.Namespace) -> Optional[float]:
    if args.budget is None:
        return None
    if args.time_budget is not None:
        raise UsageError(
            f"--budget {args.budget}: stands beside --time-budget {args.time_budget:g}, expected one "
            "of them"
        )
    return arguments.parse_duration("--budget", args.budget)


def _budget_s(args: argparse.Namespace, sweep: Sweep) -> Optional[float]:
    if args.time_budget is not None:
        return args.time_budget or None
    if args.quick:
        return QUICK_BUDGET_S
    usual = len(sweep.seeds) == len(sweep.jobs) == 1 and sweep.jobs[0].stop_at_target
    return DEFAULT_BUDGET_S if usual else None


def _announce(sweep: Sweep, left: List[Trial], network: links.Network) -> None:
    methods = list(dict.fromkeys(trial.case.method for trial in sweep.trials))
    job = sweep.jobs[0]
    bursts = [f"{link.name} {link.burst_bytes} bytes" for link in sweep.links if link.bits_per_s]
    lines = [
        f"{job.workers} workers ({job.transport}), {job.threads} thread(s) each on {cores()} "
        f"core(s); " + "; ".join(dict.fromkeys(each.describe() for each in sweep.jobs)),
        "methods: " + "  ".join(methods),
        network.describe(),
    ]
    variants = list(dict.fromkeys(trial.variant for trial in left))
    if len(variants) > 1:
        lines.insert(1, "trained: " + "; ".join(variants))
    if bursts:
        lines.append(f"burst (the larger of 8000 bytes and 1 ms of the line): {', '.join(bursts)}")
    if load() > cores():
        lines.append(
            f"this machine is busy (load {load():g} on {cores()} core(s)): times are longer"
        )
    note("\n".join(lines))
