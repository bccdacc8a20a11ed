"""What `--trainer torch` trains: the options of its workers, and what they do not take."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Dict, List, Optional

from gradwire.bench.arguments import Link
from gradwire.bench.errors import UsageError
from gradwire.bench.job import Case, Job
from gradwire.bench.workloads import IN_TORCH
from gradwire.torch_missing import torch_missing

TRAINER = "torch"
WORKER = "gradwire.bench.torch_trainer"
DEFAULT_METHODS = "auto;none;fp16;topk:1%,int4;ddp;ddp-fp16;ddp-powersgd:1"


# Of the C++ trainer alone, by what they are where nobody has asked.
_NOT_TAKEN: Dict[str, Any] = {
    "hidden": None,
    "convolutions": None,
    "local_steps": 1,
    "outer": "diloco",
    "outer_rate": None,
    "schedule": "constant",
    "bucket_kib": 1024,
    "overlap": 1,
    "transport": "gloo",
}


@dataclass(frozen=True)
class TorchJob(Job):
    text: Optional[Path] = None
    device: str = "cpu"

    # What all methods have: torch counts no bytes.
    curve_bytes = "interface_bytes_sent"
    forked = True

    def command(self, case: Case) -> List[str]:
        options: Dict[str, Any] = {
            "world-size": self.workers,
            "transport": self.transport,
            "timeout-s": f"{self.timeout_s:g}",
            "device": self.device,
            "workload": self.workload,
            "data": self.data,
            "text": self.text,
            "method": case.method,
            "exchange": self.exchange,
            "optimizer": self.optimizer,
            "learning-rate": self.learning_rate,
            "warmup-steps": self.warmup_steps,
            "batch-size": self.batch_size,
            "epochs": self.epochs,
            "max-steps": self.max_steps,
            "eval-every": self.eval_every,
            "target-accuracy": f"{self.target_accuracy:g}",
            "stop-at-target": int(self.stop_at_target),
            "seed": case.seed,
            "threads": self.threads,
            "die-with-parent": os.getpid(),
        }
        given = [(name, str(value)) for name, value in options.items() if value is not None]
        words = [text for name, value in given for text in (f"--{name}", value)]
        return [str(self.trainer), "-m", WORKER, *words]

    def rehearsals(self, cases: List[Case]) -> List[Case]:
        """One process looks at all methods: to load torch takes seconds."""
        methods = ";".join(dict.fromkeys(case.method for case in cases))
        return [Case(Link("none", None), methods, cases[0].seed)]

    def describe(self) -> str:
        what: Any = self.data or self.text
        if what is None:
            known = {"bytes": "Python's standard library"}
            what = known.get(self.workload, "no data")
        return f"{self.workload} in torch on {self.device}, {what}"


def of(job: Job, workload: str, args: argparse.Namespace) -> TorchJob:
    """The same job, for workers in torch."""
    given = {field.name: getattr(job, field.name) for field in fields(job)}
    given.update(trainer=Path(sys.executable), hidden=[], workload=workload)
    text = Path(args.text).resolve() if args.text else None
    return TorchJob(**given, text=text, device=args.device)


def check(args: argparse.Namespace, workload: str, links: List[Link]) -> None:
    """Refuses what is not for these workers, before anything is started.

    :raises UsageError: torch is not installed, or an option that is not for this workload.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError(torch_missing("--trainer torch"))
    for name, usual_value in _NOT_TAKEN.items():
        if getattr(args, name) != usual_value:
            raise UsageError(
                f"--{name.replace('_', '-')}: {getattr(args, name)} is not for --trainer torch, "
                "expected the C++ trainer or no such option"
            )
    if args.text and not Path(args.text).is_file():
        raise UsageError(f"--text {args.text}: no such file")
    if args.target_accuracy and workload.startswith("gradients"):
        raise UsageError(
            f"--target-accuracy: {args.target_accuracy:g} is not for --workload {workload}, "
            "which trains nothing, expected cnn or bytes"
        )
    shaped = [link.name for link in links if link.bits_per_s]
    if shaped and args.link_mode == "pacing":
        raise UsageError(
            f"--links {','.join(shaped)}: torch's process group cannot be paced, expected "
            "--link-mode netns (root, iproute2) or --links none"
        )


def refuse_without(args: argparse.Namespace) -> None:
    """Options of these workers where there are none."""
    for name, usual_value in (("text", None), ("device", "cpu")):
        if getattr(args, name) != usual_value:
            raise UsageError(
                f"--{name} {getattr(args, name)}: expected with a --workload in torch alone "
                f"({', '.join(IN_TORCH)})"
            )


def link_mode(args: argparse.Namespace, links: List[Link]) -> str:
    """Shaped links must be namespaces: nothing else slows torch's process group."""
    return "netns" if any(link.bits_per_s for link in links) else str(args.link_mode)
