"""`gradwire bench`: the options, the order of events, and how each ending is told."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, List, Optional, Tuple

from gradwire.bench import arguments, links, measure, torch_job
from gradwire.bench.digits import check_data_folder, digits_folder
from gradwire.bench.ending import check_folder, check_json, conclude
from gradwire.bench.errors import BenchError, Interrupted
from gradwire.bench.files import scratch_folder
from gradwire.bench.job import Case, Job, cores, find_trainer, threads_per_rank
from gradwire.bench.machine import load
from gradwire.bench.plots import can_draw
from gradwire.bench.report import Report
from gradwire.bench.signals import interruptible
from gradwire.bench.types import Document
from gradwire.report.write import check_output
from gradwire.streams import note, open_missing, settle

DEFAULT_LINKS = "50mbit,1gbit,none"
QUICK_LINKS = "50mbit,none"
DEFAULT_METHODS = "none,fp16,topk:1%,int4"
# Few steps to the target on the default data, with every default method (seeds 1 to 3).
DEFAULT_OPTIMIZER = "sgd:momentum=0.8,nesterov=1"
DEFAULT_LEARNING_RATE = 0.05
DEFAULT_BUDGET_S = 240.0  # so that a run with defaults ends within 5 minutes, start included
QUICK_BUDGET_S = 95.0  # likewise within 120 seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `gradwire bench`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Trains one model with several worker processes, once for each link, method and seed, and "
        "shows\naccuracy against time and against bytes.\n\n"
        f"{arguments.METHODS_RULE}"
    )
    _what_arguments(parser)
    _training_arguments(parser)
    _machine_arguments(parser)
    _output_arguments(parser)


def _what_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is compared")
    group.add_argument("--workers", type=int, default=4, metavar="N", help="ranks [4]")
    group.add_argument(
        "--links", metavar="RATES", help=f"100kbit, 50mbit, 1gbit, none [{DEFAULT_LINKS}]"
    )
    group.add_argument("--methods", metavar="SPECS", help="[none,fp16,topk:1%%,int4]")
    group.add_argument(
        "--seeds", default="1", metavar="N|LIST", help="a count, or a list such as 1,2,5 [1]"
    )
    group.add_argument(
        "--workload",
        choices=torch_job.WORKLOADS,
        default="cnn",
        help="with --trainer torch: images, text, or gradients alone [cnn]",
    )
    group.add_argument(
        "--quick",
        action="store_true",
        help=f"links {QUICK_LINKS} and a time budget: ends within 120 s",
    )


def _training_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument(
        "--data", metavar="DIR", help="the four MNIST files, plain or .gz [scikit-learn's digits]"
    )
    group.add_argument(
        "--text", metavar="FILE", help="of --workload bytes [Python's standard library]"
    )
    group.add_argument(
        "--hidden", default="512,512,512,512,512", metavar="WIDTHS", help="[512,512,512,512,512]"
    )
    group.add_argument("--optimizer", metavar="SPEC", help=f"[{DEFAULT_OPTIMIZER}]")
    group.add_argument(
        "--learning-rate",
        type=float,
        metavar="X",
        help=f"[{DEFAULT_LEARNING_RATE}; with --optimizer, the trainer's for it]",
    )
    group.add_argument(
        "--local-steps",
        type=int,
        default=1,
        metavar="H",
        help="workers step alone so often, then exchange what that moved [1]",
    )
    group.add_argument(
        "--outer",
        default="diloco",
        metavar="SPEC",
        help="steps on what local steps moved: diloco:preset=sparseloco, … [diloco]",
    )
    group.add_argument(
        "--outer-rate", type=float, metavar="X", help="[0.7; 1 where SPEC has no momentum]"
    )
    group.add_argument("--schedule", default="constant", choices=("constant", "polynomial"))
    group.add_argument("--warmup-steps", type=int, default=5, metavar="N", help="[5]")
    group.add_argument("--batch-size", type=int, metavar="B", help="per worker [64]")
    group.add_argument("--epochs", type=int, metavar="E", help="at most [20]")
    group.add_argument("--max-steps", type=int, default=0, metavar="N", help="0: no limit [0]")
    group.add_argument("--target-accuracy", type=float, metavar="A", help="[0.95]")
    group.add_argument(
        "--stop-at-target",
        type=int,
        choices=(0, 1),
        default=1,
        help="0: all methods train for the same epochs, so that accuracies can be compared [1]",
    )
    group.add_argument(
        "--accuracy-at-equal-epochs",
        dest="stop_at_target",
        action="store_const",
        const=0,
        help="the same as --stop-at-target 0",
    )
    group.add_argument(
        "--eval-every",
        type=int,
        metavar="N",
        help="steps between evaluations, 0: each epoch [2; with --data 50]",
    )


def _machine_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("exchange and machine")
    group.add_argument("--exchange", default="auto", metavar="NAME", help="[auto]")
    group.add_argument("--bucket-kib", type=int, default=1024, metavar="KIB", help="[1024]")
    group.add_argument("--overlap", type=int, choices=(0, 1), default=1, help="[1]")
    group.add_argument("--transport", default="gloo", choices=("gloo", "in_process"))
    group.add_argument(
        "--link-mode",
        default="auto",
        choices=links.MODES,
        help="netns: namespaces shaped by the kernel (root); pacing: inside the transport [auto]",
    )
    group.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="for a silent worker [30]"
    )
    group.add_argument(
        "--time-budget",
        type=float,
        metavar="S",
        help="for all runs together, 0: none [240, with --quick 95; none with several seeds or "
        "--stop-at-target 0]",
    )
    group.add_argument(
        "--trainer",
        metavar="PATH",
        help="the trainer program [found], or torch: PyTorch workers, and peers as methods: ddp, "
        "ddp-fp16, ddp-powersgd:1, ddp-post-local-sgd, ddp-topk:1%%",
    )
    group.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="of --trainer torch [cpu]"
    )


def _output_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", metavar="FILE", help="write rows, curves and settings")
    group.add_argument(
        "--report", metavar="FILE", help="write a report: .html (one page to mail), .md or .json"
    )
    group.add_argument(
        "--output", default="gradwire-bench", metavar="DIR", help="of the plots [./gradwire-bench]"
    )
    group.add_argument(
        "--keep-logs", action="store_true", help="keep the workers' logs in DIR/logs"
    )


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
    cases, job = _read(args)
    json_file, output = _outputs(args)
    page = Path(args.report) if args.report else None
    if page is not None:
        check_output("--report", page)
    drawn = output if can_draw() else None
    the_links = list(dict.fromkeys(case.link for case in cases))
    with scratch_folder() as scratch, contextlib.ExitStack() as stack:
        network = links.open_network(_mode(args, the_links), job.workers, job.transport, the_links)
        stack.callback(network.close)
        _announce(job, cases, network)
        measure.rehearse(job, cases, scratch)
        report = Report(
            command_line=[shlex.quote(word) for word in sys.argv],
            settings=_settings(args, job),
            links=[dict(asdict(link), burst_bytes=link.burst_bytes) for link in the_links],
            network=network.describe(),
        )
        logs = output / "logs" if args.keep_logs else scratch / "logs"
        budget_s = _budget_s(args, job, cases)
        conclude(
            lambda: measure.measure(job, cases, network, report, scratch, logs, budget_s),
            report,
            json_file,
            drawn,
            page,
        )
    return 0


def _read(args: argparse.Namespace) -> Tuple[List[Case], Job]:
    """Everything that can be wrong with the options is found here, before anything is started."""
    arguments.check_given(args)
    in_torch = args.trainer == torch_job.TRAINER
    usual_links = QUICK_LINKS if args.quick else DEFAULT_LINKS
    the_links = arguments.parse_links(usual_links if args.links is None else args.links)
    usual_methods = torch_job.DEFAULT_METHODS if in_torch else DEFAULT_METHODS
    methods = arguments.parse_methods(usual_methods if args.methods is None else args.methods)
    seeds = arguments.parse_seeds(args.seeds)
    workers = arguments.check_workers(args.workers)
    arguments.check_ranges(args)
    if in_torch:
        torch_job.check(args, the_links)
        job: Job = torch_job.of(_job(args, workers, torch_job.usual(args.workload)), args)
    else:
        torch_job.refuse_without(args)
        arguments.check_specs(methods, {"optimizer": args.optimizer, "outer": args.outer})
        job = _job(args, workers, None)
    cases = [Case(link, m, seed) for link in the_links for seed in seeds for m in methods]
    return cases, job


def _job(args: argparse.Namespace, workers: int, usual: Optional[torch_job.Usual]) -> Job:
    """``usual``: of the workload, where torch trains it."""
    hidden = arguments.parse_widths(args.hidden)
    trainer = Path() if usual else find_trainer(args.trainer)
    data = _data(args)
    learning_rate = args.learning_rate
    if learning_rate is None and usual:
        learning_rate = usual.learning_rate
    elif learning_rate is None and args.optimizer is None:
        learning_rate = DEFAULT_LEARNING_RATE
    usual = usual or torch_job.Usual(
        DEFAULT_OPTIMIZER,
        DEFAULT_LEARNING_RATE,
        batch_size=64,
        epochs=20,
        eval_every=50 if args.data else 2,  # the digits' 360 test rows cost next to nothing
        target_accuracy=0.95,
    )
    target = _given(args.target_accuracy, usual.target_accuracy)
    return Job(
        trainer=trainer,
        data=data,
        workers=workers,
        threads=threads_per_rank(workers),
        transport=args.transport,
        hidden=hidden,
        exchange=args.exchange,
        bucket_kib=args.bucket_kib,
        overlap=bool(args.overlap),
        optimizer=args.optimizer or usual.optimizer,
        learning_rate=learning_rate,
        local_steps=args.local_steps,
        outer=args.outer,
        outer_rate=args.outer_rate,
        schedule=args.schedule,
        warmup_steps=args.warmup_steps,
        batch_size=_given(args.batch_size, usual.batch_size),
        epochs=_given(args.epochs, usual.epochs),
        max_steps=args.max_steps,
        eval_every=_given(args.eval_every, usual.eval_every),
        target_accuracy=target,
        stop_at_target=bool(args.stop_at_target) and target > 0,
        timeout_s=args.timeout,
    )


def _given(value: Any, usual: Any) -> Any:
    return usual if value is None else value


def _data(args: argparse.Namespace) -> Optional[Path]:
    if args.workload != "cnn":
        return None
    return (check_data_folder(Path(args.data)) if args.data else digits_folder()).resolve()


def _mode(args: argparse.Namespace, the_links: List[arguments.Link]) -> str:
    in_torch = args.trainer == torch_job.TRAINER
    return torch_job.link_mode(args, the_links) if in_torch else str(args.link_mode)


def _outputs(args: argparse.Namespace) -> Tuple[Optional[Path], Path]:
    json_file = Path(args.json) if args.json else None
    if json_file is not None:
        check_json(json_file)
    output = Path(args.output)
    check_folder(output)
    return json_file, output


def _budget_s(args: argparse.Namespace, job: Job, cases: List[Case]) -> Optional[float]:
    if args.time_budget is not None:
        return args.time_budget or None
    if args.quick:
        return QUICK_BUDGET_S
    one_seed = len({case.seed for case in cases}) == 1
    return DEFAULT_BUDGET_S if one_seed and job.stop_at_target else None


def _settings(args: argparse.Namespace, job: Job) -> Document:
    settings = {name: str(v) if isinstance(v, Path) else v for name, v in asdict(job).items()}
    return dict(settings, quick=args.quick, time_budget_s=args.time_budget)


def _announce(job: Job, cases: List[Case], network: links.Network) -> None:
    methods = list(dict.fromkeys(case.method for case in cases))
    the_links = list(dict.fromkeys(case.link for case in cases))
    bursts = [f"{link.name} {link.burst_bytes} bytes" for link in the_links if link.bits_per_s]
    lines = [
        f"{job.workers} workers ({job.transport}), {job.threads} thread(s) each on {cores()} "
        f"core(s); {job.describe()}",
        "methods: " + "  ".join(methods),
        network.describe(),
    ]
    if bursts:
        lines.append(f"burst (the larger of 8000 bytes and 1 ms of the line): {', '.join(bursts)}")
    if load() > cores():
        lines.append(
            f"this machine is busy (load {load():g} on {cores()} core(s)): times are longer"
        )
    note("\n".join(lines))
