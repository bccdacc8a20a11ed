"""Reads result files: JSON of `gradwire bench`, or reports of `gradwire report`, which carry it along."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Tuple

from gradwire.bench import result_schema
from gradwire.bench.errors import UsageError
from gradwire.bench.types import Document, Row
from gradwire.json_input import BadInput, parsed, unpacked
from gradwire.report.document import SCHEMA as REPORT_SCHEMA

CARRIED = "results"  # where a report keeps the results it was made of
CARRIED_ID = "gradwire-results"  # the same in HTML
_IN_HTML = re.compile(rf'<script[^>]*\bid="{CARRIED_ID}"[^>]*>([A-Za-z0-9+/=\s]*)</script>')
_EXPECTED = "expected a JSON file of gradwire bench, or a JSON or HTML file of gradwire report"

_MOST_BYTES = 64 << 20  # of a file, and of what a page carries: a row has about 1 kB

# Of a row; None where a file lacks one, as those of earlier versions do.
_OF_ROW = (
    "link", "method", "exchange", "stopped_by", "seed", "world_size", "link_mbit_per_s",
    "target_accuracy", "seconds_to_target", "steps_to_target", "final_accuracy", "best_accuracy",
    "seconds", "steps", "step_ms", "step_ms_interval", "compute_ms", "exposed_exchange_ms",
    "compression_ms", "wire_bytes_per_step", "predicted_bytes_per_step",
    "interface_bytes_per_step", "parameters", "batch_size",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """The results of one sweep, checked, with the name to tell of them."""

    name: str
    document: Document


def read(path: Path) -> List[Source]:
    """The results in a file; several where it is a report that was made of several.

    :raises UsageError: names the file, the place, the value and what was expected.
    """
    text = whole_text(path, _EXPECTED)
    if text.lstrip()[:1] == "<":
        return _carried(path, _from_html(path, text))
    document = _json(path, text)
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == REPORT_SCHEMA:
        return _carried(path, document.get(CARRIED))
    return [of(path.name, document, str(path))]


def of(name: str, document: Any, told: str = "") -> Source:
    """A source of a document that is in memory already; ``told``: what errors call it."""
    return Source(name, _checked(told or name, document))


def packed(sources: List[Source]) -> List[Document]:
    """What a report carries along, so that reports can be merged as their results can."""
    return [{"name": source.name, "document": source.document} for source in sources]


def packed_text(sources: List[Source]) -> str:
    """The same in letters: base64 of gzip of JSON."""
    text = json.dumps(packed(sources), separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 9, mtime=0)).decode("ascii")


def _from_html(path: Path, page: str) -> Any:
    found = _IN_HTML.search(page)
    if not found:
        raise UsageError(f"{path}: HTML without results, {_EXPECTED}")
    try:
        data = unpacked(base64.b64decode(found.group(1), validate=False), _MOST_BYTES)
        text = data.decode("utf-8")
    except (binascii.Error, BadInput, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: its results cannot be unpacked ({error}), {_EXPECTED}") from None
    return _json(path, text)


def _carried(path: Path, carried: Any) -> List[Source]:
    if not isinstance(carried, list) or not all(isinstance(item, dict) for item in carried):
        raise UsageError(f"{path}: a report without its results, {_EXPECTED}")
    return [
        of(str(item.get("name")), item.get("document"), f"{path}: {item.get('name')}")
        for item in carried
    ]


def whole_text(path: Path, expected: str) -> str:
    """The text of a file that somebody named.

    :raises UsageError: it cannot be read, is no text or has too much of it.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UsageError(f"{path}: has more than {_MOST_BYTES >> 20} MiB, {expected}")
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}), {expected}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8, {expected}") from None


def _json(path: Path, text: str) -> Any:
    try:
        return parsed(text)
    except BadInput as error:
        raise UsageError(f"{path}: {error}, {_EXPECTED}") from None


def _checked(where: str, document: Any) -> Document:
    found = result_schema.checked(where, document)
    rows = [{**dict.fromkeys(_OF_ROW), **row} for row in found["rows"]]
    _alone(where, rows)
    return {"machine": {}, "settings": {}, **found, "rows": rows}


def row_key(row: Row) -> Tuple[Any, ...]:
    """What a row is the only one with, in a file."""
    work = (row.get("workload"), row.get("variant"))
    return (*work, row.get("world_size"), row["link"], row["method"], row["seed"])


def _alone(where: str, rows: List[Document]) -> None:
    seen: Dict[Tuple[Any, ...], int] = {}
    for i, row in enumerate(rows):
        key = row_key(row)
        if key in seen:
            raise UsageError(
                f"{where}: rows[{i}]: link '{row['link']}', method '{row['method']}', seed "
                f"{row['seed']} stands in rows[{seen[key]}] already, expected each once"
            )
        seen[key] = i
