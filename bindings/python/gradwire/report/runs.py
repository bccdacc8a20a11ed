"""Which files are parts of one sweep, and which are another run to compare it with."""

from __future__ import annotations

import json
from typing import Any, List, Optional, Set, Tuple

from gradwire.bench.types import Document, Row
from gradwire.report.sources import Source

# What may differ between the parts of a sweep: who took part, and for how long.
_OF_PARTS = ("workers", "threads", "quick", "time_budget_s", "timeout_s", "trainer", "streams")


def workload_of(document: Document, row: Optional[Row] = None) -> str:
    """What was trained, in a few words; with how, where a file has it in several ways."""
    settings = document["settings"]
    name = (row or {}).get("workload") or settings.get("workload")
    text = _named(name, settings.get("hidden"))
    ways = {r.get("variant") for r in document["rows"] if r.get("workload") == name}
    return f"{text} ({row['variant']})" if row and row.get("variant") and len(ways) > 1 else text


def _named(name: Any, hidden: Any) -> str:
    if name is None or name == "mlp":
        widths = "-".join(str(width) for width in hidden) if isinstance(hidden, list) else ""
        return f"MLP {widths}".strip()
    known = {
        "conv": "small CNN in the C++ trainer",
        "cnn": "small CNN on images",
        "bytes": "byte-level transformer",
    }
    text = str(name)
    if text.startswith("gradients:"):
        return f"gradients of {text.partition(':')[2]}, exchange alone"
    return known.get(text, text)


def grouped(sources: List[Source]) -> List[List[Source]]:
    """Files of one machine, version and setting that measured different things are one run; a file that
    measured again what another has is a run of its own."""
    runs: List[List[Source]] = []
    for source in sources:
        home = next((run for run in runs if all(_complete(source, part) for part in run)), None)
        if home is None:
            runs.append([source])
        else:
            home.append(source)
    return runs


def unlike(a: Document, b: Document) -> List[str]:
    """Settings of two documents that differ, but for those of the parts of a sweep."""
    one, other = a["settings"], b["settings"]
    names = [name for name in {**one, **other} if name not in _OF_PARTS]
    return [
        f"{name}: {_plain(one.get(name))} | {_plain(other.get(name))}"
        for name in names
        if one.get(name) != other.get(name)
    ]


def _complete(a: Source, b: Source) -> bool:
    return _place(a.document) == _place(b.document) and _same_work(a, b) and not _keys(a) & _keys(b)


def _place(document: Document) -> Tuple[Any, ...]:
    machine = document["machine"]
    where = tuple(machine.get(name) for name in ("cpu", "cores", "kernel"))
    return (
        document.get("gradwire_version"),
        document.get("commit"),
        document.get("network"),
        *where,
    )


def _same_work(a: Source, b: Source) -> bool:
    other_workload = workload_of(a.document) != workload_of(b.document)
    return other_workload or not unlike(a.document, b.document)


def _keys(source: Source) -> Set[Tuple[Any, ...]]:
    return {
        (workload_of(source.document, r), r["world_size"], r["link"], r["method"], r["seed"])
        for r in source.document["rows"]
    }


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
