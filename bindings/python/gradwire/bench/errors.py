"""What can end a benchmark before its last row, and the exit code each one stands for."""

from __future__ import annotations


class BenchError(Exception):
    """Ends the benchmark with one line on stderr and ``exit_code``."""

    exit_code = 1


class UsageError(BenchError):
    """An option or a file the caller can correct."""

    exit_code = 2


class RunError(BenchError):
    """A worker, a link or the machine failed while running."""


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP reached the launcher; not an Exception, so nothing swallows it."""

    exit_code = 130
