"""One step of a run, as rank 0 saw it: which step is kept, and as little of it as a report draws."""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Tuple

from gradwire.bench.types import Document, Event

KEPT = 256  # of the last steps
MOST_SPANS = 32  # of all tracks, so that a case stays below 4 KB


class _Span(NamedTuple):
    name: str
    begin_us: float
    end_us: float
    parts: int = 1


class Steps:
    """The last steps of a run, of which one is told: of the second half the one of median time.

    By then plans have been chosen, links have changed and memory is there.
    """

    def __init__(self) -> None:
        self._kept: Deque[Tuple[float, Event]] = deque(maxlen=KEPT)
        self._steps = 0

    def observe(self, event: Event, step_ms: Optional[float]) -> None:
        """:param event: a "timeline", behind the "step" of ``step_ms``."""
        self._steps = max(self._steps, event["step"])
        if step_ms is not None:
            self._kept.append((step_ms, event))

    def document(self) -> Optional[Document]:
        """step, step_ms and tracks, each with its spans of name, begin_ms and ms; None: no step."""
        settled = [each for each in self._kept if each[1]["step"] > self._steps // 2]
        # With local steps those that exchange are few: one of these.
        settled = [each for each in settled if each[1]["buckets_us"]] or settled
        settled.sort(key=lambda each: each[0])
        if not settled:
            return None
        step_ms, event = settled[(len(settled) - 1) // 2]
        return {"step": event["step"], "step_ms": round(step_ms, 3), "tracks": _tracks(event)}


def _tracks(event: Event) -> List[Document]:
    tracks: Dict[str, List[_Span]] = {"caller": [_Span(*each) for each in event["caller_us"]]}
    for number, bucket in enumerate(event["buckets_us"]):
        begin, compressed, exchange, end, codec, stream = bucket
        name = f"bucket {number}"
        exchanges = "exchange" if stream == 0 else f"exchange {stream}"
        # Where in an exchange its coding was is not recorded: it is laid at the end.
        decoding = min(max(codec - (compressed - begin), 0), end - exchange)
        for track, first, last in (
            ("compression", begin, compressed),
            (exchanges, exchange, end),
            ("decoding", end - decoding, end),
        ):
            if last > first:
                tracks.setdefault(track, []).append(_Span(name, first, last))
    caller = tracks.pop("caller")  # kept as it is: few, and each of another kind
    most = (MOST_SPANS - len(caller)) // max(1, len(tracks))
    kept = {name: _fewer(tracks[name], most) for name in sorted(tracks, key=_place)}
    return [
        {"name": name, "spans": [_told(span) for span in spans]}
        for name, spans in {"caller": caller, **kept}.items()
        if spans
    ]


def _place(track: str) -> Tuple[int, str]:
    """From top to bottom: what a bucket goes through."""
    first = ("compression", "exchange", "decoding")
    return (first.index(track.split()[0]), track)


def _fewer(spans: List[_Span], most: int) -> List[_Span]:
    """The nearest neighbours are joined until there are few enough."""
    spans = sorted(spans, key=lambda span: span.begin_us)
    while len(spans) > max(1, most):
        gaps = [b.begin_us - a.end_us for a, b in zip(spans, spans[1:])]
        at = gaps.index(min(gaps))
        a, b = spans[at : at + 2]
        parts = a.parts + b.parts
        end = max(a.end_us, b.end_us)
        spans[at : at + 2] = [_Span(f"{parts} buckets", a.begin_us, end, parts)]
    return spans


def _told(span: _Span) -> Dict[str, Any]:
    return {
        "name": span.name,
        "begin_ms": round(span.begin_us / 1e3, 3),
        "ms": round((span.end_us - span.begin_us) / 1e3, 3),
    }
