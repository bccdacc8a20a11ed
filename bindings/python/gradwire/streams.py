"""The command's standard streams: they may be closed, full or without a reader.

Imports nothing of the package: the benchmark works without the compiled module.
"""

import contextlib
import os
import sys
from typing import Optional, TextIO

__all__ = ["note", "open_missing", "settle", "try_output"]


def open_missing() -> None:
    """Opens the null device for each closed standard stream (as after ``>&-``).

    Otherwise the next file opened would get its number, and workers would print into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)


def note(text: str) -> None:
    """A line on stderr; where nobody can read it, work goes on without."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _drop(sys.stderr)


def settle() -> None:
    """Before the end: what others left in stderr's buffer must not change the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)


def try_output(text: str) -> Optional[str]:
    """Prints on stdout; the reason if that failed."""
    try:
        print(text, flush=True)
    except OSError as error:
        _drop(sys.stdout)
        return error.strerror or str(error)
    return None


def _drop(stream: TextIO) -> None:
    # What is buffered would fail again when the interpreter ends, and change the exit code.
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
