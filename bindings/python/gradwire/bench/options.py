"""The options of `gradwire bench`."""

from __future__ import annotations

import argparse
import sys
from typing import Any, FrozenSet

from gradwire.bench import arguments, links, workloads

DEFAULT_LINKS = "50mbit,1gbit,none"
QUICK_LINKS = "50mbit,none"
DEFAULT_METHODS = "auto,none,fp16,topk:1%,int4"
# Few steps to the target on the default data, with every default method (seeds 1 to 3).
DEFAULT_OPTIMIZER = "sgd:momentum=0.8,nesterov=1"
DEFAULT_LEARNING_RATE = 0.05
EXAMPLES = """examples:
  gradwire bench --quick                          which method, in two minutes
  gradwire bench --budget 10m --json out.json     what fits into ten minutes, and what did not
  gradwire bench --json out.json --resume         goes on where it was interrupted
  gradwire bench --workload mlp,cnn --seeds 3     two models, three seeds, one report
  gradwire bench --config bench/sweeps/published.toml --json out.json"""


def given(args: argparse.Namespace) -> FrozenSet[str]:
    """The options that were said, by their names in ``args``; all others have their defaults."""
    return getattr(args, "given", frozenset())


def usual_methods(args: argparse.Namespace) -> str:
    """Of the C++ trainer: without auto where an option says what it would choose or what it cannot be."""
    core: Any = getattr(sys.modules.get("gradwire"), "_core", None)
    possible = (
        args.local_steps == 1
        and args.exchange == "auto"
        and "onebit-" not in (args.optimizer or "")
        and not getattr(core, "planner_unavailable_reason", "")
    )
    return DEFAULT_METHODS if possible else DEFAULT_METHODS.partition(",")[2]


def _remembering(kind: Any) -> Any:
    class Remembering(kind):  # type: ignore[misc]
        def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
            super().__call__(parser, namespace, values, option)
            namespace.given = given(namespace) | {self.dest}

    return Remembering


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `gradwire bench`; what is read with them knows which were :func:`given`."""
    for action in ("store", "store_true", "store_const"):
        parser.register("action", action, _remembering(parser._registry_get("action", action)))
    parser.register("action", None, parser._registry_get("action", "store"))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.description = (
        "Trains a model with several worker processes, once for each link, method and seed, and "
        "shows\naccuracy against time and against bytes.\n\n"
        f"{arguments.METHODS_RULE}"
    )
    _what_arguments(parser)
    _training_arguments(parser)
    _machine_arguments(parser)
    _output_arguments(parser)


def _what_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is compared")
    group.add_argument(
        "--workers", type=int, default=4, metavar="N", help="processes that train together [4]"
    )
    group.add_argument(
        "--links",
        "--link",  # what other commands call theirs
        metavar="RATES",
        help="of every worker, both ways: 100kbit, 50mbit, 1gbit, none (as fast as this machine is), "
        f"1gbit:50mbit@100 (becomes 50mbit behind step 100) [{DEFAULT_LINKS}]",
    )
    group.add_argument(
        "--methods",
        metavar="SPECS",
        help="specs of compressors; auto: measured, and chosen while it runs; diloco:20, sparseloco:20: "
        "of what 20 local steps have moved [auto,none,fp16,topk:1%%,int4; without auto where an option "
        "rules it out]",
    )
    group.add_argument(
        "--seeds",
        default="1",
        metavar="N|LIST",
        help="repeats, for intervals: a count, or a list such as 1,2,5 [1]",
    )
    group.add_argument(
        "--workload",
        metavar="NAMES",
        help=f"{', '.join(workloads.NAMES)}; all but mlp and conv need torch [mlp; with --trainer torch cnn]",
    )
    group.add_argument(
        "--quick",
        action="store_true",
        help=f"links {QUICK_LINKS} and a time budget: ends within 120 s",
    )
    group.add_argument(
        "--config",
        metavar="FILE",
        help="a TOML file of these options (links = [...], and [workloads.cnn] for one workload's); "
        "the command line goes before it",
    )


def _training_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument(
        "--data",
        metavar="DIR",
        help="MNIST's four files or EMNIST's, plain or .gz, or CIFAR's *.bin [scikit-learn's digits]",
    )
    group.add_argument(
        "--text", metavar="FILE", help="of --workload bytes [Python's standard library]"
    )
    group.add_argument(
        "--hidden",
        metavar="WIDTHS",
        help="of the hidden layers of mlp and conv [512,512,512,512,512; 256]",
    )
    group.add_argument(
        "--convolutions",
        metavar="CHANNELS",
        help=f"of the 3x3 convolutions of conv, each halving the image [{workloads.CONVOLUTIONS}]",
    )
    group.add_argument(
        "--optimizer",
        metavar="SPECS",
        help=f"one, or several to compare: sgd,lars,lamb [{DEFAULT_OPTIMIZER}]",
    )
    group.add_argument(
        "--learning-rate",
        type=float,
        metavar="X",
        help=f"[{DEFAULT_LEARNING_RATE}; with --optimizer, the trainer's for it]; with several batch "
        "sizes the first one's: others' grow in proportion, with adamw and lamb by the square root",
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
    group.add_argument(
        "--schedule",
        default="constant",
        choices=("constant", "polynomial"),
        help="of the learning rate behind the warm-up [constant]",
    )
    group.add_argument(
        "--warmup-steps",
        type=int,
        default=5,
        metavar="N",
        help="in which the learning rate rises from 0 [5]",
    )
    group.add_argument(
        "--batch-size", metavar="B", help="per worker; several to compare: 64,256 [64]"
    )
    group.add_argument(
        "--epochs", type=int, metavar="E", help="times through the data, at most [20]"
    )
    group.add_argument("--max-steps", type=int, default=0, metavar="N", help="of a run, 0: no limit [0]")
    group.add_argument("--target-accuracy", type=float, metavar="A", help="to reach, 0: none [0.95]")
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
    group.add_argument(
        "--exchange",
        default="auto",
        metavar="NAME",
        help="how payloads meet: gradwire info lists them; auto: the method's [auto]",
    )
    group.add_argument(
        "--bucket-kib",
        type=int,
        default=1024,
        metavar="KIB",
        help="of float32 gradient that travel together [1024]",
    )
    group.add_argument(
        "--overlap",
        type=int,
        choices=(0, 1),
        default=1,
        help="1: exchange while backward still runs [1]",
    )
    group.add_argument(
        "--transport",
        default="gloo",
        choices=("gloo", "in_process"),
        help="gloo: workers are processes; in_process: threads of one [gloo]",
    )
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
        "--budget",
        metavar="TIME",
        help="90s, 3m, 1h: all ends within it; what does not fit is left out (seeds, then steps, then "
        "methods), and said",
    )
    group.add_argument(
        "--keep-going",
        action="store_true",
        help="a run that fails is recorded, and the next one begins; the exit code is 1 [the first "
        "failure ends all]",
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
    group.add_argument(
        "--json",
        metavar="FILE",
        help="rows, curves and settings, written after every run; -: at the end, alone on standard "
        "output, all else on standard error",
    )
    group.add_argument(
        "--report",
        metavar="FILE",
        help="where the report goes: .html (one page to mail), .md or .json [DIR/report.html]",
    )
    group.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="FILE",
        help="go on with an interrupted benchmark: runs that FILE has are not made again; without "
        "FILE that of --json, which may be absent",
    )
    group.add_argument(
        "--output", default="gradwire-bench", metavar="DIR", help="of plots and report [./gradwire-bench]"
    )
    group.add_argument(
        "--keep-logs", action="store_true", help="keep the workers' logs in DIR/logs"
    )
