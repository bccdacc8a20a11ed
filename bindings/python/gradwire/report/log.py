"""What method ``auto`` chose: the decisions that a result's rows or the result itself may carry."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from gradwire.bench.types import Document, Row
from gradwire.report.document import Decision
from gradwire.report.sources import Source
from gradwire.report.units import rate

# What logs call the choice, its reason and its step, the first that is there.
_CHOSEN = ("chosen", "plan", "choice", "spec", "to", "method", "decision")
_WHY = ("why", "reason", "because", "text")
_STEP = ("step", "at_step")


def decisions(labelled: Sequence[Tuple[str, Sequence[Source]]]) -> List[Decision]:
    return [
        _decision(label, row, entry)
        for label, group in labelled
        for source in group
        for row, entry in _entries(source.document)
    ]


def _entries(document: Document) -> Iterator[Tuple[Row, Dict[str, Any]]]:
    """Each with the row it belongs to, or what the file says of its link and seed."""
    by_run = {(row["link"], row["method"], row["seed"]): row for row in document["rows"]}
    for row in [*document["rows"], document]:
        log = row.get("decisions")
        for item in log if isinstance(log, list) else []:
            if isinstance(item, dict) and isinstance(item.get("decisions"), list):
                run = by_run.get((item.get("link"), item.get("method"), item.get("seed")), item)
                yield from ((run, _as_entry(each)) for each in item["decisions"])
            else:
                yield row, _as_entry(item)


def _as_entry(item: Any) -> Dict[str, Any]:
    return item if isinstance(item, dict) else {"why": str(item)}


def _decision(label: str, row: Row, entry: Dict[str, Any]) -> Decision:
    link = entry.get("link") or row.get("link")
    mbit = row.get("link_mbit_per_s")
    step = _first(entry, _STEP)
    seed = entry.get("seed", row.get("seed"))
    used = {next((n for n in names if n in entry), "") for names in (_CHOSEN, _WHY, _STEP)}
    return Decision(
        run=label,
        where=rate(mbit * 1e6) if mbit else "unshaped links" if link == "none" else str(link or ""),
        seed=seed if isinstance(seed, int) else 0,
        step=step if isinstance(step, int) else None,
        chosen=_text(_first(entry, _CHOSEN)),
        why=_text(_first(entry, _WHY)),
        details={k: v for k, v in entry.items() if k not in used | {"link", "seed"}},
    )


def _first(entry: Dict[str, Any], names: Sequence[str]) -> Optional[Any]:
    return next((entry[name] for name in names if name in entry), None)


def _text(value: Any) -> str:
    if value is None:
        return "not said"
    if isinstance(value, (list, tuple)):
        return "; ".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_text(v)}" for k, v in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
