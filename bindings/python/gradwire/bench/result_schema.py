"""What a result file may hold, as a JSON schema: whatever follows it can be reported.

Names that are not here may stand in a file and hold anything. `title` is what errors expect.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Dict, List, Optional, Tuple

import fastjsonschema

from gradwire.bench.errors import UsageError
from gradwire.bench.types import Document
from gradwire.json_input import Key, place_of, shown

SCHEMA = "gradwire-bench/1"

Node = Dict[str, Any]

# Far beyond what is measured, and near enough for sums, squares and ratios of them to be finite.
_MOST, _TINY = 1e15, 1e-12
_MOST_WORKERS = 1 << 20


def _number(least: float = 0.0, most: float = _MOST, *, whole: bool = False) -> Node:
    title = f"a finite number, {'whole, ' if whole else ''}from {least:g} to {most:g}"
    if not whole and least <= 0:
        title += f", 0 or at least {_TINY:g} in size"
    sizes: List[Node] = [{"enum": [0]}, {"minimum": _TINY}, {"maximum": -_TINY}]
    kind = {"type": "integer"} if whole else {"type": "number", "anyOf": sizes}
    return {**kind, "minimum": least, "maximum": most, "title": title}


def _or_none(node: Node) -> Node:
    found = {**node, "type": [node["type"], "null"], "title": f"{node['title']}, or null"}
    if "anyOf" in node:
        found["anyOf"] = [*node["anyOf"], {"type": "null"}]
    return found


def _list(items: Node, title: str = "a list", **more: Any) -> Node:
    return {"type": "array", "items": items, "title": title, **more}


def _object(needed: Node, others: Optional[Node] = None, title: str = "an object") -> Node:
    named = {**needed, **(others or {})}
    return {"type": "object", "properties": named, "required": list(needed), "title": title}


_TEXT: Node = {"type": "string", "title": "a text"}
_TEXT_OR_NONE = _or_none(_TEXT)
_FLAG: Node = {"type": "boolean", "title": "true or false"}
_FLAG_OR_NONE = _or_none(_FLAG)
_COUNT = _number(whole=True)
_SEED = _number(-(2.0**63), 2.0**64, whole=True)
_AMOUNT = _or_none(_number())
_SHARE = _or_none(_number(-1e6, 1e6))  # an accuracy; what others call so may be a loss

_SPAN = _object({"name": _TEXT, "begin_ms": _number(), "ms": _number()})
_TRACK = _object(
    {"name": _TEXT, "spans": _list(_SPAN, "a list that is not empty", minItems=1)}
)
_TIMELINE = _object(
    {
        "step": _COUNT,
        "step_ms": _number(),
        "tracks": _list(_TRACK, "a list that is not empty", minItems=1),
    }
)
_DECISION: Node = {"type": ["object", "string"], "title": "an object or a text"}
_DECISIONS = _or_none(_list(_DECISION))

_AMOUNTS = (
    "seconds_to_target", "seconds", "step_ms", "step_ms_interval", "compute_ms",
    "exposed_exchange_ms", "compression_ms", "predicted_step_ms", "wire_bytes_per_step",
    "predicted_bytes_per_step", "interface_bytes_per_step", "batch_size",
)  # fmt: skip
_COUNTS = ("steps_to_target", "steps", "parameters")
_ROW = _object(
    {"link": _TEXT, "method": _TEXT, "seed": _SEED},
    {
        **dict.fromkeys(_AMOUNTS, _AMOUNT),
        **{name: _or_none(_COUNT) for name in _COUNTS},
        **dict.fromkeys(("target_accuracy", "final_accuracy", "best_accuracy"), _SHARE),
        "link_mbit_per_s": _or_none(_number(1e-9, 1e12)),
        "world_size": _or_none(_number(0, _MOST_WORKERS, whole=True)),
        "exchange": _TEXT_OR_NONE,
        "stopped_by": _TEXT_OR_NONE,
        "workload": _TEXT_OR_NONE,
        "variant": _TEXT_OR_NONE,
        "peer": _FLAG_OR_NONE,
        "accuracy_by_epoch": _list(_SHARE),
        "timeline": _or_none(_TIMELINE),
        "decisions": _DECISIONS,
    },
)
_POINT = _object({}, {"step": _AMOUNT, "seconds": _AMOUNT, "bytes": _AMOUNT, "accuracy": _SHARE})
_CURVE = _object(
    {"link": _TEXT, "method": _TEXT, "seed": _SEED, "points": _list(_POINT)}, title="an object with points"
)
_LINK = _object({"name": _TEXT}, {"bits_per_s": _or_none(_number(1e-3, 1e18))})
_LEFT_OUT = _object({}, {"what": _TEXT_OR_NONE, "says": _TEXT_OR_NONE})
_SETTINGS = _object(
    {},
    {
        "workload": _TEXT_OR_NONE,
        "variant": _TEXT_OR_NONE,
        "hidden": _or_none(_list(_COUNT)),
        "overlap": _FLAG_OR_NONE,
        "bucket_kib": _or_none(_number(0, 1e12)),
        "variants": _or_none(_list(_object({"name": _TEXT}))),
    },
)
_DOCUMENT = _object(
    {"schema": {"const": SCHEMA, "title": f"'{SCHEMA}'"}, "rows": _list(_ROW), "curves": _list(_CURVE)},
    {
        "gradwire_version": _TEXT_OR_NONE,
        "commit": _TEXT_OR_NONE,
        "network": _TEXT_OR_NONE,
        "ended": _TEXT_OR_NONE,
        "machine": _object({}),
        "settings": _SETTINGS,
        "command_line": _or_none(_list(_TEXT)),
        "links": _or_none(_list(_LINK)),
        "failures": _or_none(_list(_object({}, {"error": _TEXT_OR_NONE}))),
        "budget": _or_none(_object({}, {"left_out": _or_none(_list(_LEFT_OUT))})),
        "resumed": _or_none(_list(_object({}))),
        "decisions": _DECISIONS,
    },
    title="a JSON file of gradwire bench, or a JSON or HTML file of gradwire report",
)


def checked(where: str, document: Any) -> Document:
    """The document itself.

    :raises UsageError: names the first place that is wrong, the value and what was expected.
    """
    if isinstance(document, dict) and document.get("schema") != SCHEMA:  # of another version, perhaps
        raise UsageError(f"{where}: schema: {shown(document.get('schema'))}, expected '{SCHEMA}'")
    try:
        _validate()(document)
    except fastjsonschema.JsonSchemaValueException as error:
        place, value, title = _fault(error)
        at = f"{where}: {place}" if place else where
        raise UsageError(f"{at}: {shown(value)}, expected {title}") from None
    assert isinstance(document, dict)
    return document


@lru_cache(maxsize=None)
def _validate() -> Callable[[Any], Any]:
    """Compiled when the first file is read."""
    compiled: Callable[[Any], Any] = fastjsonschema.compile(_DOCUMENT, use_default=False)
    return compiled


def _fault(error: Any) -> Tuple[str, Any, str]:
    keys: List[Key] = [int(key) if key.isdigit() else key for key in error.path[1:]]
    definition: Node = error.definition
    if error.rule != "required":
        return place_of(keys), error.value, definition["title"]
    name = next(name for name in definition["required"] if name not in error.value)
    return place_of([*keys, name]), None, definition["properties"][name]["title"]
