"""The worker's command line, and how it ends: the exit codes and errors of the C++ trainer."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import List, Optional

from gradwire.bench.torch_trainer.events import Events

_NAME = "gradwire.bench.torch_trainer"
_PR_SET_PDEATHSIG = 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m {_NAME}", description=__doc__)
    made.add_argument("--rank", type=int, default=0)
    made.add_argument("--world-size", type=int, required=True)
    made.add_argument(
        "--transport", choices=("gloo", "in_process"), default="gloo",
        help="in_process: checks methods and data, and trains nothing",
    )  # fmt: skip
    made.add_argument("--store", metavar="file:DIR", help="where the ranks meet")
    made.add_argument("--interface", help="of the network, e.g. eth0")
    made.add_argument("--pace", default="none", choices=("none",), help="links are not paced here")
    made.add_argument("--timeout-s", type=float, default=30.0)
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--workload", default="cnn")
    made.add_argument("--data", type=Path)
    made.add_argument("--text", type=Path)
    made.add_argument("--method", required=True, help="with in_process several, separated by ';'")
    made.add_argument("--exchange", default="auto")
    made.add_argument("--optimizer", required=True)
    made.add_argument("--learning-rate", type=float, required=True)
    made.add_argument("--warmup-steps", type=int, default=0)
    made.add_argument("--batch-size", type=int, default=64)
    made.add_argument("--epochs", type=int, default=1)
    made.add_argument("--max-steps", type=int, default=0)
    made.add_argument("--eval-every", type=int, default=0)
    made.add_argument("--target-accuracy", type=float, default=0.0)
    made.add_argument("--stop-at-target", type=int, default=0)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--die-with-parent", type=int, metavar="PID")
    return made


def main(words: Optional[List[str]] = None) -> int:
    options = parser().parse_args(words)
    if options.die_with_parent:
        _die_with(options.die_with_parent)
    events = Events(options.rank, options.device)
    try:
        from gradwire.bench.torch_trainer import loop  # torch: also what is wrong with it is told

        loop.run(options, events)
        return 0
    except KeyboardInterrupt:
        events.error("interrupted", "interrupted by SIGINT")
        return 130
    except Exception as error:
        kind = _kind(error)
        text = " ".join(str(error).split()) or type(error).__name__
        events.error(kind, text)
        print(f"{_NAME}: rank {options.rank}: {text}", file=sys.stderr)
        return 2 if kind == "invalid_argument" else 1


def _kind(error: Exception) -> str:
    """As the launcher ranks them: a lost peer explains less than a fault of one's own."""
    names = {each.__name__ for each in type(error).__mro__}
    if "NonFiniteGradient" in names:
        return "non_finite_gradient"
    if names & {"InvalidArgument", "UsageError", "ModuleNotFoundError"}:
        return "invalid_argument"
    lost = ("connection", "timed out", "timeout", "peer", "gloo", "socket")
    told = type(error) is RuntimeError and any(word in str(error).lower() for word in lost)
    if told or names & {"TransportError", "DistError"}:
        return "transport"
    return "system" if isinstance(error, OSError) else "internal"


def _die_with(parent: int) -> None:
    """The kernel kills this process with the launcher, also where there is no setpriv."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(1)


if __name__ == "__main__":
    code = main()
    if code:  # nothing waits for peers that will not answer
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
