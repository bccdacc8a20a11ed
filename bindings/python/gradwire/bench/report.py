"""The JSON report: machine, settings, one row per link, method and seed, the learning curves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, List, Optional, Sequence

from gradwire.bench.files import write_whole
from gradwire.bench.machine import commit, machine, version
from gradwire.bench.types import Document, Event, Row
from gradwire.bench.variants import accuracies_at_equal_epochs, accuracy_differences, sentences

SCHEMA = "gradwire-bench/1"


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

    def add(self, row: Row, curve: List[Event], decisions: Sequence[Event] = ()) -> None:
        """decisions: of a method that chooses what it sends, as it says them; kept in its row."""
        if decisions:
            row["decisions"] = list(decisions)
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

    def write(self, path: Optional[Path]) -> None:
        if path is not None:
            text = json.dumps(self.document(), indent=1, allow_nan=False, ensure_ascii=False)
            write_whole(path, text + "\n")


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
