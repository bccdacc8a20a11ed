"""Reads result files: JSON of `gradwire bench`, or reports of `gradwire report`, which carry it along."""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import math
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Sequence, Tuple

from gradwire.bench.errors import UsageError
from gradwire.bench.report import SCHEMA as BENCH_SCHEMA
from gradwire.bench.types import Document, Row
from gradwire.report.document import SCHEMA as REPORT_SCHEMA

CARRIED = "results"  # where a report keeps the results it was made of
CARRIED_ID = "gradwire-results"  # the same in HTML
_IN_HTML = re.compile(rf'<script[^>]*\bid="{CARRIED_ID}"[^>]*>([A-Za-z0-9+/=\s]*)</script>')
_EXPECTED = "expected a JSON file of gradwire bench, or a JSON or HTML file of gradwire report"

# Of a row: name, whether every row must have it.
_TEXTS = (("link", True), ("method", True), ("exchange", False), ("stopped_by", False))
_NUMBERS = (
    ("seed", True),
    ("world_size", False),
    ("link_mbit_per_s", False),
    ("target_accuracy", False),
    ("seconds_to_target", False),
    ("steps_to_target", False),
    ("final_accuracy", False),
    ("best_accuracy", False),
    ("seconds", False),
    ("steps", False),
    ("step_ms", False),
    ("step_ms_interval", False),
    ("compute_ms", False),
    ("exposed_exchange_ms", False),
    ("compression_ms", False),
    ("wire_bytes_per_step", False),
    ("predicted_bytes_per_step", False),
    ("interface_bytes_per_step", False),
    ("parameters", False),
    ("batch_size", False),
)
_OF_POINT = ("step", "seconds", "bytes", "accuracy")


@dataclass(frozen=True)
class Source:
    """The results of one sweep, checked, with the name to tell of them."""

    name: str
    document: Document


def read(path: Path) -> List[Source]:
    """The results in a file; several where it is a report that was made of several.

    :raises UsageError: names the file, the place, the value and what was expected.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}), {_EXPECTED}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8, {_EXPECTED}") from None
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


def _from_html(path: Path, text: str) -> Any:
    found = _IN_HTML.search(text)
    if not found:
        raise UsageError(f"{path}: HTML without results, {_EXPECTED}")
    try:
        data = gzip.decompress(base64.b64decode(found.group(1), validate=False))
    except (binascii.Error, OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: its results cannot be unpacked ({error}), {_EXPECTED}") from None
    return _json(path, data.decode("utf-8", "replace"))


def _carried(path: Path, carried: Any) -> List[Source]:
    if not isinstance(carried, list) or not all(isinstance(item, dict) for item in carried):
        raise UsageError(f"{path}: a report without its results, {_EXPECTED}")
    return [
        of(str(item.get("name")), item.get("document"), f"{path}: {item.get('name')}")
        for item in carried
    ]


def _json(path: Path, text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise UsageError(f"{path}: {constant} is no JSON number, {_EXPECTED}")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path}: line {error.lineno}, column {error.colno}: {error.msg}, {_EXPECTED}"
        ) from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply, {_EXPECTED}") from None


def _checked(where: str, document: Any) -> Document:
    if not isinstance(document, dict):
        raise UsageError(f"{where}: {_short(document)}, {_EXPECTED}")
    schema = document.get("schema")
    if schema != BENCH_SCHEMA:
        raise UsageError(f"{where}: schema: {_short(schema)}, expected '{BENCH_SCHEMA}'")
    rows = [
        _row(f"{where}: rows[{i}]", row) for i, row in enumerate(_list(where, document, "rows"))
    ]
    curves = [
        _curve(f"{where}: curves[{i}]", curve)
        for i, curve in enumerate(_list(where, document, "curves"))
    ]
    for name in ("machine", "settings"):
        if not isinstance(document.get(name, {}), dict):
            raise UsageError(f"{where}: {name}: {_short(document[name])}, expected an object")
    _alone(where, rows)
    return {"machine": {}, "settings": {}, **document, "rows": rows, "curves": curves}


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


def _list(where: str, document: Document, name: str) -> List[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise UsageError(f"{where}: {name}: {_short(value)}, expected a list")
    return value


def _row(where: str, row: Any) -> Document:
    """With every name there is, None where the file lacks it."""
    if not isinstance(row, dict):
        raise UsageError(f"{where}: {_short(row)}, expected an object")
    found = dict(row)
    for name, needed in _TEXTS:
        value = found.setdefault(name, None)
        if not isinstance(value, str) and (needed or value is not None):
            raise UsageError(f"{where}.{name}: {_short(value)}, expected a text")
    for name, needed in _NUMBERS:
        value = found.setdefault(name, None)
        if not _is_number(value) and (needed or value is not None):
            raise UsageError(f"{where}.{name}: {_short(value)}, expected a finite number")
    if found.get("timeline") is not None:
        _timeline(f"{where}.timeline", found["timeline"])
    return found


def _timeline(where: str, value: Any) -> None:
    """One step: numbers step and step_ms, and tracks with a name and spans of a name and two times."""

    def refuse(place: str, wrong: Any, expected: str) -> NoReturn:
        raise UsageError(f"{where}{place}: {_short(wrong)}, expected {expected}")

    def named(place: str, item: Any, numbers: Sequence[str], lists: Sequence[str]) -> None:
        if not isinstance(item, dict):
            refuse(place, item, "an object")
        for name in numbers:
            if not _is_number(item.get(name)) or item[name] < 0:
                refuse(f"{place}.{name}", item.get(name), "a number of at least 0")
        for name in lists:
            if not isinstance(item.get(name), list) or not item[name]:
                refuse(f"{place}.{name}", item.get(name), "a list that is not empty")
        if place and not isinstance(item.get("name"), str):
            refuse(f"{place}.name", item.get("name"), "a text")

    named("", value, ("step", "step_ms"), ("tracks",))
    for i, track in enumerate(value["tracks"]):
        named(f".tracks[{i}]", track, (), ("spans",))
        for j, span in enumerate(track["spans"]):
            named(f".tracks[{i}].spans[{j}]", span, ("begin_ms", "ms"), ())


def _curve(where: str, curve: Any) -> Document:
    if not isinstance(curve, dict) or not isinstance(curve.get("points"), list):
        raise UsageError(f"{where}: {_short(curve)}, expected an object with points")
    for name, kind in (("link", str), ("method", str), ("seed", int)):
        if not isinstance(curve.get(name), kind):
            raise UsageError(f"{where}.{name}: {_short(curve.get(name))}, expected {kind.__name__}")
    for i, point in enumerate(curve["points"]):
        if not isinstance(point, dict):
            raise UsageError(f"{where}.points[{i}]: {_short(point)}, expected an object")
        for name in _OF_POINT:
            value = point.get(name)
            if value is not None and not _is_number(value):
                raise UsageError(
                    f"{where}.points[{i}].{name}: {_short(value)}, expected a finite number"
                )
    return curve


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
