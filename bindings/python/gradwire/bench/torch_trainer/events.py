"""What a worker tells the launcher, one JSON object per line, and what it reads off the machine."""

from __future__ import annotations

import json
import math
import sys
from typing import Any, Dict, List, Optional

# DDP makes its buckets anew after the first step, gradwire follows, PowerSGD begins at the third.
SETTLING_STEPS = 4
_MEANS = {
    "step_ms": "step_ms",
    "compute_ms": "compute_ms",
    "exposed_exchange_ms": "exposed_exchange_ms",
    "compression_ms": "compression_ms",
    "transfer_ms": "transfer_ms",
    "backward_ms": "backward_ms",
    "bytes_sent": "bytes_sent_per_step",
    "interface_bytes_sent": "interface_bytes_per_step",
}


class Events:
    """Rank 0 tells all, the others how they begin and end."""

    def __init__(self, rank: int, device: str) -> None:
        self._rank = rank
        self._device = device
        self._out = sys.stdout

    def say(self, event: str, **fields: Any) -> None:
        everyone = event in ("start", "done", "error")
        if everyone or self._rank == 0:
            told = {name: _finite(value) for name, value in fields.items()}
            line = json.dumps(dict(event=event, rank=self._rank, **told), allow_nan=False)
            self._out.write(line + "\n")
            self._out.flush()

    def error(self, kind: str, message: str) -> None:
        self.say("error", kind=kind, message=message)


class Meter:
    """Steps of this rank, and their means without those that settle buckets."""

    def __init__(self) -> None:
        self.steps: List[Dict[str, Optional[float]]] = []
        self.seconds = 0.0

    def add(self, step: Dict[str, Optional[float]]) -> None:
        self.steps.append(step)
        self.seconds += (step["step_ms"] or 0.0) / 1e3

    def means(self) -> Dict[str, Optional[float]]:
        settled = self.steps[min(SETTLING_STEPS, len(self.steps) // 2) :]
        found: Dict[str, Optional[float]] = {}
        for name, told in _MEANS.items():
            known = [value for step in settled if (value := step.get(name)) is not None]
            found[told] = math.fsum(known) / len(known) if known else None
        return found


def interface_bytes(interface: Optional[str]) -> Optional[int]:
    """Sent by an interface of this process's network; None for the loopback, which is shared.

    From /proc/self: what /sys shows is the network it was mounted in.
    """
    if interface is None or interface == "lo":
        return None
    with open("/proc/self/net/dev", encoding="ascii") as table:
        for line in table:
            name, colon, counters = line.partition(":")
            if colon and name.strip() == interface:
                return int(counters.split()[8])
    raise OSError(f"/proc/self/net/dev: no interface '{interface}', expected one of this network")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
