"""Numbers as people read them: units, and no more digits than are known."""

from __future__ import annotations

import math
from typing import Optional

from gradwire.bench.differences import Estimate

MISSING = "not measured"
UNSHAPED = "unshaped links"


def digits(value: float, significant: int = 3) -> str:
    """1408.2 -> 1,408; 12.04 -> 12.0; 0.4812 -> 0.481: never exponents, never lost tens."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "unknown"
    places = significant - 1 - math.floor(math.log10(abs(value)))
    return f"{value:,.{min(max(places, 0), 9)}f}"


def plus_minus(value: float, half_width: Optional[float], scale: float = 1.0) -> str:
    """The mean with two digits of its interval: 27.33 ± 0.89."""
    value = value * scale
    if half_width is None:
        return digits(value)
    half_width = half_width * scale
    if half_width <= 0:
        return f"{digits(value)} ± 0"
    places = min(max(1 - math.floor(math.log10(half_width)), 0), 6)
    return f"{value:,.{places}f} ± {half_width:,.{places}f}"


def estimated(found: Optional[Estimate], scale: float = 1.0) -> str:
    return MISSING if found is None else plus_minus(found.mean, found.half_width, scale)


def percent(value: float, places: int = 1) -> str:
    """0.95 -> 95%, 0.9525 -> 95.3%: whole where it is."""
    text = f"{100 * value:.{places}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + "%"


_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def size(value: float) -> str:
    """Bytes in decimal units: 7200060 -> 7.20 MB."""
    unit, name = next((row for row in _BYTES if abs(value) >= row[0]), _BYTES[-1])
    return f"{digits(value / unit)} {name}"


def times(ratio: float) -> str:
    """1.04, 1.3, 14: near 1 with two decimals, which decide there."""
    if ratio < 1.095:
        return f"{ratio:.2f}"
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:,.0f}"


def rate(bits_per_s: Optional[float]) -> str:
    """5e7 -> 50 Mbit/s."""
    if bits_per_s is None:
        return UNSHAPED
    for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits_per_s >= unit:
            return f"{bits_per_s / unit:.4g} {name}"
    return f"{bits_per_s:.4g} bit/s"
