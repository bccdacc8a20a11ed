"""The JSON report: machine, settings, one row per link, method and seed, the learning curves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, List, Optional, Sequence

from gradwire.bench.files import write_whole
from gradwire.bench.machine import commit, machine, version
from gradwire.bench.result_schema import SCHEMA
from gradwire.bench.types import Document, Event, Row
from gradwire.bench.variants import accuracies_at_equal_epochs, accuracy_differences, sentences


class Report:
    """Grows row by row and is valid at every moment."""

    def __init__(
        self, command_line: List[str], settings: Document, links: List[Document], network: str
    ):
        self.rows: List[Row] = []
        self.curves: List[Document] = []
        self.ended = "running"  # complete, interrupted, or the error
        self.more: Document = {}  # failures, what a budget left out, what was resumed
        self._head = {
            "schema": SCHEMA,
            "gradwire_version": version(),
            "commit": commit(),
            "machine": machine(),
            "command_line": command_line,
            "network": network,
            "links": links,
            "settings": settings,
        }

    def add(
        self,
        row: Row,
        curve: List[Event],
        decisions: Sequence[Event] = (),
        timeline: Optional[Document] = None,
    ) -> None:
        """decisions: of a method that chooses what it sends, as it says them; timeline: one step of
        rank 0. Both are kept in the row; of a training, link and method the first seed has the step."""
        if decisions:
            row["decisions"] = list(decisions)
        if timeline and not any("timeline" in other and _alike(row, other) for other in self.rows):
            row["timeline"] = timeline
        self.rows.append(row)
        key = {name: row[name] for name in ("link", "method", "seed")}
        self.curves.append(dict(key, points=curve))

    def equal_epochs(self) -> bool:
        """Whether final accuracies may be compared: nobody stopped early."""
        return all(row["stopped_by"] not in ("target", "time budget") for row in self.rows)

    def document(self) -> Document:
        document = _finite(
            dict(
                self._head,
                ended=self.ended,
                **self.more,
                rows=self.rows,
                curves=self.curves,
                sentences=sentences(self.rows),
                at_equal_epochs=accuracies_at_equal_epochs(self.rows),
                accuracy_minus_none_points=(
                    accuracy_differences(self.rows) if self.equal_epochs() else []
                ),
            )
        )
        assert isinstance(document, dict)
        return document

    def text(self) -> str:
        return json.dumps(self.document(), indent=1, allow_nan=False, ensure_ascii=False)

    def write(self, path: Optional[Path]) -> None:
        if path is not None:
            write_whole(path, self.text() + "\n")


def _alike(row: Row, other: Row) -> bool:
    """But for the seed."""
    names = ("workload", "variant", "link", "method")
    return all(row.get(name) == other.get(name) for name in names)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
