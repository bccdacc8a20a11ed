"""How a worker in Python is told its place, meets the others, and ends: as the C++ trainer does."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
from typing import Any, Callable, NoReturn

from gradwire.bench.torch_trainer.events import Events

_PR_SET_PDEATHSIG = 1


def add_arguments(made: argparse.ArgumentParser) -> None:
    """What the launcher tells every worker."""
    made.add_argument("--rank", type=int, default=0)
    made.add_argument("--world-size", type=int, required=True)
    made.add_argument("--store", metavar="file:DIR", help="where the ranks meet")
    made.add_argument("--interface", help="of the network, e.g. eth0")
    made.add_argument("--pace", default="none", choices=("none",), help="links are not paced here")
    made.add_argument("--timeout-s", type=float, default=30.0)
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--die-with-parent", type=int, metavar="PID")


def run(name: str, options: Any, body: Callable[[Any, Events], None]) -> int:
    """Runs body(options, events); errors become an event and a line. Returns the exit code."""
    if options.die_with_parent:
        die_with(options.die_with_parent)
    events = Events(options.rank, options.device)
    try:
        body(options, events)
        return 0
    except KeyboardInterrupt:
        events.error("interrupted", "interrupted by SIGINT")
        return 130
    except Exception as error:
        kind = _kind(error)
        text = " ".join(str(error).split()) or type(error).__name__
        events.error(kind, text)
        print(f"{name}: rank {options.rank}: {text}", file=sys.stderr)
        return 2 if kind == "invalid_argument" else 1


def leave(code: int) -> NoReturn:
    """Ends the process without taking the interpreter apart.

    Where it failed, nothing waits for peers that will not answer. Where it did not, threads and atexit
    have their turn, as usual, but a thread of torch's gloo (2.13) that lets go of its last tensor
    while Python ends would abort the process.
    """
    try:
        if not code:
            threading._shutdown()  # type: ignore[attr-defined]  # waits for those that are no daemons
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        code = code or 1
        with contextlib.suppress(Exception):
            print(f"at the end: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


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


def die_with(parent: int) -> None:
    """The kernel kills this process with the launcher, also where there is no setpriv."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(1)
