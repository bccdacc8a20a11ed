"""One step out of a trace for Perfetto, as Reducers and `gradwire simulate --trace` write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Optional

from gradwire.bench.errors import UsageError
from gradwire.report.document import Span, Timeline, Track

_EXPECTED = "expected a trace for Perfetto (an object with traceEvents)"
_MOST_SPANS = 2000


def read(path: Path) -> Timeline:
    """The middle step of the lowest rank in it.

    :raises UsageError: names the file, the value and what was expected.
    """
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}), {_EXPECTED}") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: line {error.lineno}: {error.msg}, {_EXPECTED}") from None
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
        _number(event.get("tid")): str((event.get("args") or {}).get("name"))
        for event in events
        if event.get("ph") == "M"
        and event.get("name") == "thread_name"
        and _number(event.get("pid")) == rank
    }


def _timed(event: Dict[str, Any]) -> bool:
    return all(isinstance(event.get(name), (int, float)) for name in ("ts", "dur"))


def _step(event: Dict[str, Any]) -> Optional[int]:
    args = event.get("args")
    step = args.get("step") if isinstance(args, dict) else None
    return step if isinstance(step, int) else None


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
