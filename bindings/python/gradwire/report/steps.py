"""What goes on at the same time in a step: its parts as numbers, and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from gradwire.report import axes
from gradwire.report.axes import Scale
from gradwire.report.document import Span, Timeline, Track
from gradwire.report.markup import Markup, join, tag
from gradwire.report.units import digits
from gradwire.report.verdict import label

_WIDTH, _LEFT, _RIGHT = 820.0, 112.0, 18.0
_HEADING, _ROW, _BAR, _FOOT = 26.0, 21.0, 16.0, 34.0
_LETTER = 6.6  # of a text within a bar
_WAITS = ("wait", "outer step")
# How a track is drawn; another is an exchange.
_KINDS = (("caller", "compute"), ("comput", "compute"), ("compression", "compress"), ("decoding", "decode"))


@dataclass(frozen=True)
class Parts:
    """Milliseconds of a step; None: it has no such track."""

    forward: Optional[float]
    backward: Optional[float]
    waiting: Optional[float]
    update: Optional[float]
    compression: Optional[float]
    exchange: Optional[float]  # while any was on its way
    beside: Optional[float]  # of exchange, while the caller did not wait
    decoding: Optional[float]


def parts(step: Timeline) -> Parts:
    caller = [span for track in step.tracks if track.name == "caller" for span in track.spans]
    exchanges = _joined(_spans(step, "exchange"))
    waits = _joined([span for span in caller if _waits(span)])
    exposed = sum(max(0.0, min(b, d) - max(a, c)) for a, b in exchanges for c, d in waits)
    busy = sum(end - begin for begin, end in exchanges)
    return Parts(
        forward=_total([s for s in caller if s.name == "forward"]),
        backward=_total([s for s in caller if s.name == "backward"]),
        waiting=_total([s for s in caller if _waits(s)]),
        update=_total([s for s in caller if s.name in ("prepare", "update")]),
        compression=_total(_spans(step, "compression")),
        exchange=busy if exchanges else None,
        beside=busy - exposed if exchanges and caller else None,
        decoding=_total(_spans(step, "decoding")),
    )


def heading(step: Timeline) -> str:
    """Which step it is."""
    if step.step_ms is None:
        return step.source + ("" if step.step is None else f", step {step.step}")
    return f"{label(step.source)}: step {step.step} of seed {step.seed}, {digits(step.step_ms)} ms"


def picture(name: str, steps: Sequence[Timeline]) -> Markup:
    """One row for each track of each step, all on one scale, the first step on top.

    :param steps: at least one span in all.
    """
    ends = [s.begin_ms + s.ms for step in steps for track in step.tracks for s in track.spans]
    x = Scale(0.0, max(*ends, 1e-6), _LEFT, _WIDTH - _RIGHT, False)
    height = sum(_HEADING + _ROW * len(step.tracks) for step in steps) + _FOOT
    floor = height - _FOOT + 4
    drawn: List[Markup] = []
    for value in x.ticks(9):
        drawn += [
            tag("line", x1=x(value), x2=x(value), y1=_HEADING - 4, y2=floor, class_="grid"),
            tag("text", f"{value:g} ms", x=x(value), y=floor + 15, class_="tick mid"),
        ]
    top = 0.0
    for step in steps:
        rows = [tag("text", heading(step), x=4, y=top + 17, class_="title")]
        for i, track in enumerate(step.tracks):
            rows.append(_row(track, top + _HEADING + _ROW * i, x))
        drawn.append(tag("g", *rows, data_step=step.source))
        top += _HEADING + _ROW * len(step.tracks)
    scale = {"data_x": f"{x.low!r} {x.high!r} {x.begin!r} {x.end!r} linear"}
    return axes.figure("timeline", name, join(*drawn), (_WIDTH, height), **scale)


def _row(track: Track, top: float, x: Scale) -> Markup:
    kind = next((drawn for begins, drawn in _KINDS if track.name.startswith(begins)), "wait")
    name = track.name if len(track.name) <= 16 else track.name[:15] + "…"
    shown = [tag("text", name, x=_LEFT - 7, y=top + 12, class_="tick end")]
    for span in track.spans:
        begin, end = x(span.begin_ms), x(span.begin_ms + span.ms)
        told = f"{track.name}: {span.name}, {digits(span.ms)} ms from {digits(span.begin_ms)} ms"
        hollow = kind == "compute" and _waits(span)  # nothing is done
        shown.append(
            tag("rect", tag("title", told), x=begin, y=top, width=max(end - begin, 0.8), height=_BAR,
                class_="waits" if hollow else f"span {kind}" if end - begin > 3 else kind)
        )  # fmt: skip
        if kind == "compute" and end - begin > _LETTER * len(span.name) + 6:
            place = {"x": (begin + end) / 2, "y": top + 12}
            shown.append(tag("text", span.name, class_="tick mid" if hollow else "on mid", **place))
    return tag("g", *shown, data_track=track.name)


def _waits(span: Span) -> bool:
    return span.name.startswith(_WAITS)


def _spans(step: Timeline, track: str) -> List[Span]:
    return [span for each in step.tracks if each.name.startswith(track) for span in each.spans]


def _total(spans: Sequence[Span]) -> Optional[float]:
    return sum(span.ms for span in spans) if spans else None


def _joined(spans: Sequence[Span]) -> List[Tuple[float, float]]:
    """Begins and ends without overlaps."""
    found: List[Tuple[float, float]] = []
    for span in sorted(spans, key=lambda each: each.begin_ms):
        begin, end = span.begin_ms, span.begin_ms + span.ms
        if found and begin <= found[-1][1]:
            begin, before = found.pop()
            end = max(end, before)
        found.append((begin, end))
    return found
