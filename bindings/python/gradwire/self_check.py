"""Does what was installed work here? Short live checks, each with a deadline, for `gradwire doctor`.

Each returns what it saw in a few words, or raises :class:`Failed`, whose text says what went wrong.
"""

import os
import secrets
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Dict, List, Sequence

import numpy as np

import gradwire

from . import paths

__all__ = ["Failed", "between_processes", "between_threads", "output_of", "round_trip"]

_RANKS = 2
# What the launcher of this command has set about ranks is not about the two of a check.
_KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "LD_PRELOAD")


class Failed(Exception):
    """The check ran and did not give what it should."""


def round_trip() -> str:
    """Compresses and decompresses 10,000 float32 by two specs: what comes back, and what stays."""
    gradient = np.random.default_rng(1).normal(size=10_000).astype(np.float32)
    kept = np.argsort(np.abs(gradient), kind="stable")[-100:]
    expected = np.zeros_like(gradient)
    expected[kept] = gradient[kept]
    sizes = []
    for spec, most in (("topk:1%", 0.0), ("int8", float(np.abs(gradient).max()) / 127)):
        wanted = expected if spec == "topk:1%" else gradient
        feedback = gradwire.Feedback(spec, gradient.size)
        payload = feedback.compress(gradient)
        error = float(np.abs(feedback.decompress([payload], 1.0) - wanted).max())
        if not error <= most:
            raise Failed(f"{spec}: an element came back wrong by {error:g}, at most {most:g} is due")
        feedback.commit()
        sizes.append(f"{spec} {payload.nbytes:,}")
    return f"10,000 float32 come back as they should; bytes: {', '.join(sizes)}"


def between_threads(deadline_s: float) -> str:
    """Two ranks, threads of this process: known bytes, then every verb of the transport."""
    transports = gradwire.make_in_process_group(_RANKS, timeout=deadline_s)
    failures: List[str] = []

    def rank(mine: gradwire.Transport) -> None:
        try:
            sent = [bytes([r, 0, 255]) * 1000 for r in range(_RANKS)]
            seen = [part.tobytes() for part in mine.all_gather(sent[mine.rank])]
            if seen != sent:
                failures.append(f"rank {mine.rank}: other bytes arrived than were sent")
            mine.verify(largest_bytes=10_007, calls_in_flight=1)
        except Exception as error:  # whatever a thread raises is told, never lost
            failures.append(f"rank {mine.rank}: {error}")

    threads = [threading.Thread(target=rank, args=(t,), daemon=True) for t in transports]
    until = time.monotonic() + deadline_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        for transport in transports:
            transport.abort("the check's deadline has passed")
        raise Failed(f"the two ranks were not done after {deadline_s:g} s")
    if failures:
        raise Failed("; ".join(failures))
    return "2 ranks exchanged known bytes by every verb"


def between_processes(transport: str, deadline_s: float) -> str:
    """Two ranks, processes on the loopback, by gradwire-check: every verb with known bytes."""
    with tempfile.TemporaryDirectory(prefix="gradwire-doctor-") as folder:
        shared: Dict[str, str] = {name: os.environ[name] for name in _KEPT if name in os.environ}
        shared["GRADWIRE_WORLD_SIZE"] = str(_RANKS)
        shared["GRADWIRE_STORE"] = f"file:{folder}/store"
        shared["GRADWIRE_JOB_SECRET"] = secrets.token_hex(8)
        command = [str(paths.checker()), "--transport", transport, "--interface", "lo"]
        command += ["--largest", "10007", "--timeout", str(max(1, int(deadline_s)))]
        ranks: List["subprocess.Popen[str]"] = []
        try:
            for r in range(_RANKS):
                ranks.append(_start(command, {**shared, "GRADWIRE_RANK": str(r)}))
            return _answers(ranks, deadline_s)
        finally:
            for process in ranks:
                process.kill()
                process.communicate()


def _answers(ranks: Sequence["subprocess.Popen[str]"], deadline_s: float) -> str:
    until = time.monotonic() + deadline_s + 2.0  # the ranks' own deadline names the rank: it is first
    said: List[str] = []
    for r, process in enumerate(ranks):
        try:
            out, err = process.communicate(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failed(f"rank {r} was not done after {deadline_s:g} s") from None
        if process.returncode != 0:
            raise Failed(_last_line(err) or f"rank {r} ended with {process.returncode}")
        said.append(out)
    return f"2 processes on lo exchanged known bytes by every verb; {_after(said[0], ': OK, ')}"


def output_of(command: Sequence[str], deadline_s: float) -> str:
    """What a program prints on stdout; raises Failed when it cannot be run, fails or hangs."""
    name = Path(command[0]).name
    process = _start(command, dict(os.environ))
    try:
        out, err = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} was not done after {deadline_s:g} s") from None
    finally:
        process.kill()
        process.communicate()
    if process.returncode != 0:
        raise Failed(_last_line(err) or f"{name} ended with {process.returncode}")
    return out.strip()


def _start(command: Sequence[str], environment: Dict[str, str]) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
        )
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _after(text: str, mark: str) -> str:
    return _last_line(text).partition(mark)[2]
