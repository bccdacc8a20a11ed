"""Steps as they went: of a result's rows, or of a trace for Perfetto, as Reducers and `gradwire simulate
--trace` write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional

from gradwire.bench.choices import is_auto
from gradwire.bench.differences import estimate
from gradwire.bench.errors import UsageError
from gradwire.bench.summary import Cell
from gradwire.json_input import BadInput, parsed
from gradwire.report.document import Span, Timeline, Track, Verdict
from gradwire.report.sources import whole_text
from gradwire.report.verdict import DENSE, dense_of, quantity

_EXPECTED = "expected a trace for Perfetto (an object with traceEvents)"
_MOST_SPANS = 2000
_LATEST = 1e18  # microseconds: thirty thousand years


def of_link(at_link: List[Cell], verdict: Verdict) -> List[Timeline]:
    """Those of dense, of auto and of the best that is neither: what the verdict takes, else the first
    at the target, else that of the shortest step."""
    found = {cell.method: step for cell in at_link for step in [_of_cell(cell)] if step}
    dense = dense_of(at_link)
    first = [dense.method] if dense else []
    first += [name for name in found if is_auto(name)]
    others = [c for c in at_link if c.method in found and c.method not in (*first, *DENSE)]
    name = quantity(at_link[0].rows[0]["target_accuracy"])

    def rank(cell: Cell) -> Any:
        known = estimate(cell.reached(), name) if cell.reached_always() else None
        known = known or estimate(cell.rows, "step_ms")
        advised = cell.method in verdict.methods
        return (not advised, not cell.reached_always(), known.mean if known else float("inf"))

    best = [min(others, key=rank).method] if others else []
    return [found[method] for method in first + best if method in found]


def _of_cell(cell: Cell) -> Optional[Timeline]:
    row = next((row for row in cell.rows if row.get("timeline")), None)
    if row is None:
        return None
    step = row["timeline"]
    tracks = [
        Track(each["name"], [Span(s["name"], s["begin_ms"], s["ms"]) for s in each["spans"]])
        for each in step["tracks"]
    ]
    return Timeline(cell.method, step["step"], tracks, step["step_ms"], row["seed"])


def read(path: Path) -> Timeline:
    """The middle step of the lowest rank in it.

    :raises UsageError: names the file, the value and what was expected.
    """
    try:
        loaded = parsed(whole_text(path, _EXPECTED))
    except BadInput as error:
        raise UsageError(f"{path}: {error}, {_EXPECTED}") from None
    events = loaded.get("traceEvents") if isinstance(loaded, dict) else loaded
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise UsageError(f"{path}: no traceEvents, {_EXPECTED}")
    spans = [event for event in events if event.get("ph") == "X" and _timed(event)]
    if not spans:
        raise UsageError(f"{path}: no event with a beginning and a duration, {_EXPECTED}")
    ranks = sorted({_number(event.get("pid")) for event in spans})
    spans = [event for event in spans if _number(event.get("pid")) == ranks[0]]
    steps = sorted({s for s in map(_step, spans) if s is not None})
    step = steps[len(steps) // 2] if steps else None
    chosen = [event for event in spans if _step(event) == step][:_MOST_SPANS]
    return Timeline(path.name, step, _tracks(chosen, _names(events, ranks[0])))


def _tracks(spans: List[Dict[str, Any]], names: Dict[int, str]) -> List[Track]:
    start = min(event["ts"] for event in spans)
    tracks: Dict[int, List[Span]] = {}
    for event in sorted(spans, key=lambda e: (_number(e.get("tid")), e["ts"])):
        span = Span(str(event.get("name", "")), (event["ts"] - start) / 1e3, event["dur"] / 1e3)
        tracks.setdefault(_number(event.get("tid")), []).append(span)
    return [Track(names.get(tid, f"thread {tid}"), each) for tid, each in tracks.items()]


def _names(events: List[Dict[str, Any]], rank: int) -> Dict[int, str]:
    return {
        _number(event.get("tid")): str(args.get("name"))
        for event in events
        for args in [event.get("args")]
        if isinstance(args, dict)
        and event.get("ph") == "M"
        and event.get("name") == "thread_name"
        and _number(event.get("pid")) == rank
    }


def _timed(event: Dict[str, Any]) -> bool:
    times: List[Any] = [event.get(name) for name in ("ts", "dur")]
    known = all(type(value) in (int, float) and abs(value) < _LATEST for value in times)
    return known and event["dur"] >= 0


def _step(event: Dict[str, Any]) -> Optional[int]:
    args = event.get("args")
    step = args.get("step") if isinstance(args, dict) else None
    return step if isinstance(step, int) else None


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
