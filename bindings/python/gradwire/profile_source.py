"""Options of commands that take a step's profile: a measured one, or that of a model by name."""

from __future__ import annotations

import argparse
from typing import List

from . import effects, planner
from .cnns import CNNS
from .errors import InvalidArgument
from .models import MODELS

__all__ = ["add_source", "assumed", "read_source", "rules_of_source"]


def add_source(what: argparse._ArgumentGroup) -> None:
    """The options, of which one that names a profile or a model is required."""
    source = what.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="a model by name: " + ", ".join([*MODELS, *CNNS]))
    source.add_argument("--profile", metavar="FILE", help="a file with a measured profile")
    what.add_argument("--format", default="profile", choices=planner.FORMATS, help="of --profile")
    what.add_argument("--step", type=int, default=0, help="of a kineto trace, from 0 (0)")
    what.add_argument("--elements", metavar="N,..",
                      help="of kineto and chakra: those of each all-reduce, in the order in which they "
                           "leave, where the trace does not say them")
    what.add_argument("--tflops", type=float, default=50.0, metavar="N",
                      help="of --model: 10^12 operations per second that a worker reaches (50)")
    what.add_argument("--batch", type=int, default=8,
                      help="of --model, chakra and pipedream: samples per worker (8)")
    what.add_argument("--tokens", type=int, help="of --model: tokens per sample")
    what.add_argument("--step-on-one", metavar="TIME",
                      help="the measured step on one worker, e.g. 392ms: sets the model's one constant")


def read_source(args: argparse.Namespace) -> str:
    """The profile that the options say."""
    if args.model is not None:
        profile = planner.profile_of_model(args.model, args.tflops * 1e12, args.batch, args.tokens)
    else:
        profile = planner.read_profile(args.profile, args.format, args.step, args.batch, _elements(args))
    if args.step_on_one is not None:
        profile = planner.calibrated(profile, planner.parse_seconds(args.step_on_one))
    return profile


def assumed(args: argparse.Namespace) -> List[str]:
    """What answers rest on that nobody has measured, in a line or none."""
    if args.model is None:
        return []
    return [f"assumed: {args.tflops:g} TFLOP/s per worker, {args.batch} samples each"]


def rules_of_source(args: argparse.Namespace) -> List[effects.Rule]:
    """Where these options change nothing."""
    return [
        *effects.of_all(("--tflops", "--tokens"), args.model is None, "--profile has times of its own"),
        ("--batch", args.model is None and args.format not in ("chakra", "pipedream"),
         f"the format {args.format} says its own"),
        *effects.of_all(("--format", "--step", "--elements"), args.model is not None, "it is of --profile"),
        ("--step", args.format != "kineto", "it is of the format kineto"),
        ("--elements", args.format not in ("kineto", "chakra"), "it is of the formats kineto and chakra"),
    ]


def _elements(args: argparse.Namespace) -> List[int]:
    try:
        return [int(count) for count in args.elements.split(",")] if args.elements else []
    except ValueError:
        raise InvalidArgument(
            f"--elements: '{args.elements}', expected whole numbers such as 25557032,2048") from None
