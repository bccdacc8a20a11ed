"""Damaged result files, each made of a whole one by a number: the same number makes the same damage."""

import base64
import copy
import gzip
import json
import random
import re

from report_case import document

# What damage, other programs and hostile writers put in the place of a value.
_ODD = (
    None, True, False, "", "x", "none", "\ud800", "\x00", "x" * 5000, "'", -1, 0, 1, 2, -0.0, 0.5, 1e-320,
    1e15, 1e16, 1e308, -1e308, 2**53, 2**63, -(2**63), 10**30, 10**400, [], {}, [[]], [{}], [None],
    {"": None}, {"name": 1}, [1, "x", None],
)  # fmt: skip


def whole():
    """A result that has something of everything that a report shows."""
    made = document(
        links=(("50mbit", 50_000_000), ("none", None)),
        methods=(("none", 1.0, 1.0, 0.9), ("topk:1%", 0.02, 1.1, 3.2), ("auto", 0.3, 1.1, 2.0)),
        seeds=(1, 2),
    )
    for row in made["rows"]:
        row.update(workload="cnn", variant="", accuracy_by_epoch=[0.5, None, 0.9])
        if row["method"] == "auto":
            numbers = {"predicted_s of int8": 0.1, "step_s of int8": 0.12, "bytes_per_s": 5e6}
            row["decisions"] = [
                {"step": step, "what": what, "from": "none", "to": "int8", "reason": "its turn",
                 "numbers": {**numbers, "dense_step_s": 0}}
                for step, what in ((3, "time"), (9, "choose"))
            ]  # fmt: skip
    made.update(
        failures=[{"method": "int4", "error": "a worker ended"}],
        budget={"left_out": [{"what": "seeds", "says": "seed 3"}]},
        resumed=[{"rows": 1, "ended": "interrupted", "load_at_start": 0.5}],
        ended="interrupted",
    )
    return made


def mutant(number, text):
    """Bytes of a file: `text`, of JSON or of a page, with one to three faults."""
    draw = random.Random(number)
    if text.lstrip().startswith("<"):
        return _of_page(draw, text)
    if draw.random() < 0.8:
        value = json.loads(text)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            _in_value(draw, value)
        text = json.dumps(value)
    if draw.random() < 0.25:
        text = _in_text(draw, text)
    return _in_bytes(draw, text.encode()) if draw.random() < 0.1 else text.encode()


def _places(value):
    """(object or list, key) of everything in it."""
    waiting, found = [value], []
    while waiting:
        at = waiting.pop()
        items = at.items() if isinstance(at, dict) else enumerate(at) if isinstance(at, list) else ()
        for key, item in items:
            found.append((at, key))
            waiting.append(item)
    return found


def _in_value(draw, value):
    places = _places(value)
    if not places:
        return
    # A row is one of many places of its kind; what stands once should be hit as often.
    near = [place for place in places if place[0] is value]
    at, key = draw.choice(near if draw.random() < 0.2 and near else places)
    kind = draw.randrange(6)
    if kind < 3:
        at[key] = copy.deepcopy(draw.choice(_ODD))
    elif kind == 3:
        del at[key]
    elif kind == 4:
        other, name = draw.choice(places)
        at[key] = json.loads(json.dumps(other.get(name) if isinstance(other, dict) else None))
    elif isinstance(at, list):
        at.insert(key, json.loads(json.dumps(at[key])))
    else:
        at[draw.choice(("", "\ud83d", "x" * 300, key + ".a[0]"))] = at.pop(key)


def _in_text(draw, text):
    at = draw.randrange(len(text))
    return draw.choice((
        lambda: text[:at],
        lambda: text[:at] + text[at + draw.randrange(1, 9):],
        lambda: text[:at] + draw.choice(("[", "{", '"', ",", ":", "NaN", "-Infinity", "1e999", "9" * 5000))
        + text[at:],
        lambda: text.replace(":", ": " + "[" * draw.choice((150, 5000, 100000)), 1),
        lambda: re.sub(r": (-?\d[\d.e+-]*)", ": " + draw.choice(("1e999", "9" * 400, "-1", "1e-400")), text,
                       count=draw.randrange(1, 9)),
    ))()  # fmt: skip


def _in_bytes(draw, data):
    data = bytearray(data)
    for _ in range(draw.randrange(1, 5)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    return bytes(data)


def _of_page(draw, text):
    begin = text.index('id="gradwire-results"')
    begin, end = text.index(">", begin) + 1, text.index("</script>", begin)
    packed = base64.b64decode(text[begin:end])
    kind = draw.randrange(4)
    if kind == 0:
        return _in_bytes(draw, text.encode())
    if kind == 1:
        packed = _in_bytes(draw, packed)
    elif kind == 2:
        packed = packed[: draw.randrange(len(packed))]
    else:
        packed = gzip.compress(mutant(draw.randrange(2**32), gzip.decompress(packed).decode()))
    return (text[:begin] + base64.b64encode(packed).decode() + text[end:]).encode()
