"""Scales, ticks and the frame of a plot, in SVG."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, List, Optional, Sequence, Tuple

from gradwire.report.markup import Markup, join, tag

WIDTH, HEIGHT = 400.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 14.0, 26.0, 46.0

_LETTER = 6.4  # about as wide as a letter of a tick is
# What is marked within a factor of ten, the finest first.
_OF_DECADES = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))

# Markers in a box of -1 to 1.
_MARKERS = (
    "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0-1 0Z",
    "M-.9-.9H.9V.9H-.9Z",
    "M0-1.15L1.05.8H-1.05Z",
    "M0-1.25L1.25 0L0 1.25L-1.25 0Z",
    "M0 1.15L1.05-.8H-1.05Z",
    "M-1-1L1 1M-1 1L1-1",
    "M0-1.3V1.3M-1.3 0H1.3",
)
COLOURS = 8  # besides that of the first, as page.css has them
_DASHES = (None, "7 3", "2 2.5", "9 3 2 3")


@dataclass(frozen=True)
class Style:
    """How the method of this number is drawn, in every plot: colour, marker and dashes tell it apart."""

    number: int

    @property
    def colour(self) -> str:
        """Of the first method, no compression, nobody else's."""
        return f"s{0 if self.number == 0 else (self.number - 1) % COLOURS + 1}"

    @property
    def dashes(self) -> Optional[str]:
        return _DASHES[(self.number + self.number // 7) % len(_DASHES)]

    def marker(self, x: float, y: float, radius: float = 4.0, hollow: bool = False) -> Markup:
        shape = _MARKERS[(self.number + self.number // 7) % len(_MARKERS)]
        kind = f"{self.colour} m" + (" hollow" if hollow else "")
        place = f"translate({x:.2f} {y:.2f}) scale({radius:g})"
        return tag("path", d=shape, transform=place, class_=kind)


@dataclass(frozen=True)
class Scale:
    """From data to the page: linear or logarithmic, from ``low`` at ``begin`` to ``high`` at ``end``."""

    low: float
    high: float
    begin: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high = self._warped(self.low), self._warped(self.high)
        share = (self._warped(value) - low) / (high - low) if high > low else 0.5
        return self.begin + share * (self.end - self.begin)

    def _warped(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def ticks(self, most: int = 7) -> List[float]:
        """Round values, as many as fit; with an even distance between them."""
        if not self.log:
            return _ticks(self.low, self.high)
        every = [_log_ticks(self.low, self.high, steps) for steps in _OF_DECADES]
        return next((found for found in every if 2 < len(found) <= most), every[-1][-most:])


@dataclass(frozen=True)
class Axis:
    title: str
    scale: Scale
    told: Callable[[float], str]  # a tick's label
    ticks: Optional[Sequence[float]] = None  # where they are given


def across(values: Sequence[float], log: bool, width: float = WIDTH) -> Scale:
    return _scale(values, LEFT, width - RIGHT, log)


def upwards(values: Sequence[float], log: bool, height: float = HEIGHT) -> Scale:
    return _scale(values, height - BOTTOM, TOP, log)


def _scale(values: Sequence[float], begin: float, end: float, log: bool) -> Scale:
    low, high = min(values), max(values)
    if log:  # a margin of 7% on both sides, and room for one value alone
        margin = (high / low) ** 0.07 if high > low else 1.5
        return Scale(low / margin, high * margin, begin, end, True)
    return Scale(low, high if high > low else low + 1.0, begin, end, False)


def frame(x: Axis, y: Axis, width: float = WIDTH, height: float = HEIGHT) -> Markup:
    """Grid, ticks, their labels and the titles."""
    parts: List[Markup] = []
    free_from = -math.inf  # where the last label ends
    for value in x.scale.ticks() if x.ticks is None else x.ticks:
        at, told = x.scale(value), x.told(value)
        parts.append(tag("line", x1=at, x2=at, y1=TOP, y2=height - BOTTOM, class_="grid"))
        half = _LETTER * len(told) / 2
        if at - half > free_from:
            free_from = at + half + _LETTER
            parts.append(tag("text", told, x=at, y=height - BOTTOM + 15, class_="tick mid"))
    for value in y.scale.ticks():
        at = y.scale(value)
        parts += [
            tag("line", x1=LEFT, x2=width - RIGHT, y1=at, y2=at, class_="grid"),
            tag("text", y.told(value), x=LEFT - 6, y=at + 4, class_="tick end"),
        ]
    floor = height - BOTTOM
    parts += [
        tag("line", x1=LEFT, x2=width - RIGHT, y1=floor, y2=floor, class_="axis"),
        tag("text", x.title, x=(LEFT + width - RIGHT) / 2, y=height - 10, class_="title mid"),
        tag("text", y.title, x=4, y=10, class_="title"),
    ]
    return join(*parts)


def figure(
    kind: str, title: str, body: Markup, size: Tuple[float, float], **data: object
) -> Markup:
    """The SVG; ``data``: what a reader of the file needs to find the numbers in it."""
    return tag(
        "svg",
        tag("title", title),
        body,
        viewBox=f"0 0 {size[0]:g} {size[1]:g}",
        role="img",
        aria_label=title,
        class_="plot",
        data_plot=kind,
        **data,
    )


def scale_data(x: Scale, y: Scale) -> dict[str, object]:
    """Attributes by which a place in the plot can be read as a value."""
    return {
        f"data_{name}": f"{scale.low!r} {scale.high!r} {scale.begin!r} {scale.end!r} {kind}"
        for name, scale in (("x", x), ("y", y))
        for kind in ["log" if scale.log else "linear"]
    }


def _ticks(low: float, high: float) -> List[float]:
    rough = (high - low) / 5
    base = 10 ** math.floor(math.log10(rough))
    step = next(base * k for k in (1, 2, 2.5, 5, 10) if base * k >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(step * i, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, steps: Sequence[float]) -> List[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = [k * 10.0**e for e in range(first, last + 1) for k in steps]
    return [value for value in every if low <= value <= high]
