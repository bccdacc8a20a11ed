"""Ctrl-C and its kin, once: the second one must not interrupt the cleaning up."""

from __future__ import annotations

import contextlib
import signal
from typing import Any, Iterator, List

from gradwire.bench.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(number: int, _frame: Any) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(signal.Signals(number).name)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Inside, the first signal raises Interrupted in the main thread; later ones are ignored."""
    before = {number: signal.signal(number, _interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Inside, the first signal waits; the end of the block raises it as Interrupted.

    Signals that are ignored already stay so.
    """
    arrived: List[int] = []

    def remember(number: int, _frame: Any) -> None:
        arrived.append(number)

    listened = [n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, remember) for number in listened}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        _interrupt(arrived[0], None)
