"""Training with local steps as a method beside the others: ``diloco:20``, ``sparseloco:20``.

Workers step alone for 20 steps, then exchange what these moved. ``diloco`` exchanges it as it is
(Douillard et al., arXiv 2311.08105); ``sparseloco`` by chunk-top-k in 2 bits, with a residual that
decays, and goes on from the mean (Sarfi et al., arXiv 2508.15706).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

_METHOD = re.compile(r"^(diloco|sparseloco):(.*)$")
_STEPS = re.compile(r"^[1-9]\d{0,5}$", re.ASCII)
_SPECS = {"diloco": "none", "sparseloco": "chunktopk:64/4096,2bit,decay=0.95"}
_OUTER = {"diloco": "diloco", "sparseloco": "diloco:preset=sparseloco"}


@dataclass(frozen=True)
class Local:
    """What such a method is in options of the trainer."""

    steps: int
    spec: str
    outer: str


def read(method: str) -> Optional[Local]:
    """None for a method that exchanges every step.

    Raises:
        ValueError: the number of steps is none.
    """
    match = _METHOD.match(method)
    if not match:
        return None
    name, steps = match.groups()
    if not _STEPS.match(steps):
        raise ValueError(f"{name}: '{steps}' local steps, expected 1 to 999999, as in {name}:20")
    return Local(int(steps), _SPECS[name], _OUTER[name])
