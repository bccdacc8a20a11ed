"""Reads the lists of the command line: links, methods, seeds, widths.

A compression spec may contain commas ("topk:1%,int4"), and so does a list of specs. The rule:

* with a ';' anywhere, ';' separates methods and commas belong to the specs;
* otherwise ',' separates methods, except inside quotes;
* '+' is always read as the comma of a spec: ``topk:1%+int4`` is "topk:1%,int4".
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, TypeVar

from gradwire.bench import local
from gradwire.bench.errors import UsageError

T = TypeVar("T")

MAX_WORKERS = 200  # the workers share one /24

METHODS_RULE = """How --methods is read: methods are separated by ',' or, where one is present,
by ';'. A comma inside one spec is written '+', stands in quotes, or stays where ';' separates:
  none,topk:1%,int4       three methods
  none,topk:1%+int4       two: none and the spec topk:1%,int4
  "none;topk:1%,int4"     the same two"""

# Options of a spec that are no methods on their own; int4, int8, e4m3, e5m2, fp16 and bf16 are both.
_ONLY_OPTIONS = ("fp32", "nearest", "stochastic", "ef", "noef")
# As it is typed, and as reports print it: 50mbit, 50 Mbit/s.
_RATE = re.compile(r"^(\d+(?:\.\d+)?)\s*(kbit|mbit|gbit)(?:/s)?$", re.ASCII)
_SETTING = re.compile(r"^[a-z0-9_]+=", re.ASCII)  # of an optimizer; its name ends with ':'
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(s|m|min|h|)$", re.ASCII)
_SECONDS = {"s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


@dataclass(frozen=True)
class Link:
    """One bandwidth of the network, both ways, per worker."""

    name: str
    bits_per_s: Optional[int]  # None: not shaped
    then: Optional[Link] = None  # what it becomes behind step `behind`
    behind: int = 0

    @property
    def mbit_per_s(self) -> Optional[float]:
        """None: not shaped, or not the same all the time."""
        return None if self.bits_per_s is None or self.then else self.bits_per_s / 1e6

    @property
    def burst_bytes(self) -> Optional[int]:
        """Bytes that pass at once: the larger of 8000 and what the line carries in 1 ms.

        A larger bucket would give small payloads a free link.
        """
        return None if self.bits_per_s is None else max(8000, self.bits_per_s // 8 // 1000)


def parse_link(text: str, option: str = "--links") -> Link:
    """'50mbit', '1gbit', '100kbit' or 'none'; '1gbit:50mbit@100' becomes the second behind step 100."""
    name = text.strip().lower()
    first, changes, rest = name.partition(":")
    if changes:
        last, _, step = rest.partition("@")
        if not step.isdecimal() or int(step) < 1:
            raise UsageError(
                f"{option}: '{text}' has no step, expected e.g. 1gbit:50mbit@100, which becomes 50mbit "
                "behind step 100"
            )
        begin, end = parse_link(first, option), parse_link(last, option)
        return Link(name, begin.bits_per_s, end, int(step))
    if name == "none":
        return Link("none", None)
    match = _RATE.match(name)
    if not match:
        raise UsageError(
            f"{option}: '{text}' is not a rate, expected bits per second such as 100kbit, 50mbit or "
            "1gbit, or none"
        )
    name = match.group(1) + match.group(2)
    bits_per_s = round(float(match.group(1)) * _UNITS[match.group(2)])
    if not 8000 <= bits_per_s <= 400 * 10**9:
        raise UsageError(f"{option}: '{text}' is out of range, expected 8kbit to 400gbit or none")
    return Link(name, bits_per_s)


def parse_links(text: str) -> List[Link]:
    links = [parse_link(part) for part in _parts("--links", text, ",")]
    return _distinct("--links", links, lambda link: (link.bits_per_s, link.then, link.behind))


def parse_methods(text: str) -> List[str]:
    """The specs of ``--methods``, canonical as far as separators and case go."""
    separator = ";" if ";" in text else ","
    methods = [_spec(part) for part in _parts("--methods", text, separator)]
    return _distinct("--methods", methods, _meaning)


def torn_apart(text: str) -> Optional[str]:
    """Says so where ',' made two methods of what is also one spec: ``topk:1%,int4``. None: nowhere, or
    there is no compiled module to tell."""
    parse: Any = getattr(sys.modules.get("gradwire"), "parse_spec", None)
    if parse is None or ";" in text:
        return None
    methods = parse_methods(text)
    for first, second in zip(methods, methods[1:]):
        try:
            parse(f"{first},{second}")
        except ValueError:
            continue
        return (
            f"--methods: {first} and {second} are two methods here; if one is meant, which is both, "
            f"write {first}+{second}"
        )
    return None


def check_specs(methods: List[str], optimizers: Dict[str, Optional[str]]) -> None:
    """Refuses what the trainer would, before anything is started; optimizers by option. Where there
    is no compiled module the trainer is left to it, and so it is with auto."""
    core: Any = getattr(sys.modules.get("gradwire"), "_core", None)
    if core is None:
        return
    specs = [m for m in methods if local.read(m) is None and m.partition(":")[0] != "auto"]
    asked = [("methods", core.parse_spec, m) for m in specs]
    asked += [(option, core.canonical_optimizer, spec) for option, spec in optimizers.items() if spec]
    for option, parse, spec in asked:
        try:
            parse(spec)
        except ValueError as error:
            raise UsageError(f"--{option}: '{spec}': {error}") from None


def parse_seeds(text: str) -> List[int]:
    """'3' means seeds 1, 2, 3; '7,8' (or '7,') means exactly those."""
    listed = "," in text
    parts = _parts("--seeds", text.rstrip(","), ",")
    if not all(_is_number(part) for part in parts):
        raise UsageError(f"--seeds: '{text}', expected a count (3) or a list (1,2,5)")
    numbers = [int(part) for part in parts]
    if listed:
        return _distinct("--seeds", numbers, int)
    if not 1 <= numbers[0] <= 1000:
        raise UsageError(f"--seeds: {numbers[0]}, expected a count from 1 to 1000")
    return list(range(1, numbers[0] + 1))


def parse_optimizers(text: str) -> List[str]:
    """Specs between ',' or ';'. A part such as ``nesterov=1`` belongs to the spec before it."""
    specs: List[str] = []
    for part in _parts("--optimizer", text, ";" if ";" in text else ","):
        if specs and ";" not in text and _SETTING.match(part):
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return _distinct("--optimizer", specs, str)


def parse_batch_sizes(text: str) -> List[int]:
    """'64' or '64,256', per worker."""
    parts = _parts("--batch-size", text, ",")
    if not all(_is_number(part) and 1 <= int(part) <= 1 << 20 for part in parts):
        raise UsageError(f"--batch-size: {text}, expected 1 to {1 << 20}, several as in 64,256")
    return _distinct("--batch-size", [int(part) for part in parts], int)


def parse_duration(option: str, text: str) -> float:
    """'90s', '3m', '1.5h' or plain seconds, as seconds."""
    match = _DURATION.match(text.strip().lower())
    seconds = float(match.group(1)) * _SECONDS[match.group(2)] if match else 0.0
    if not 1 <= seconds <= 1e7:
        raise UsageError(f"{option}: '{text}', expected a time from 1s to 2777h, such as 90s, 3m or 1h")
    return seconds


def parse_widths(text: str, option: str = "--hidden", most: int = 65536) -> List[int]:
    parts = _parts(option, text, ",")
    if not all(_is_number(part) and 1 <= int(part) <= most for part in parts):
        raise UsageError(f"{option}: '{text}', expected widths from 1 to {most}, e.g. 512,512")
    return [int(part) for part in parts]


def check_workers(count: int) -> int:
    if not 1 <= count <= MAX_WORKERS:
        raise UsageError(f"--workers: {count}, expected 1 to {MAX_WORKERS}")
    return count


def check_ranges(args: argparse.Namespace) -> None:
    """The plain numbers: each must lie where a run can end."""
    ranges = {
        "epochs": (1, 1000000),
        "max_steps": (0, 1 << 31),
        "warmup_steps": (0, 1 << 31),
        "eval_every": (0, 1 << 31),
        "bucket_kib": (1, 1 << 22),
        "target_accuracy": (0, 1),
        "timeout": (0.1, 86400),
        "time_budget": (0, 1e7),
        "learning_rate": (1e-12, 1e12),
        "local_steps": (1, 1000000),
        "outer_rate": (1e-12, 1e12),
    }
    if args.batch_size is not None:
        parse_batch_sizes(args.batch_size)
    for name, (least, most) in ranges.items():
        value = getattr(args, name)
        if value is not None and not least <= value <= most:
            option = name.replace("_", "-")
            raise UsageError(f"--{option}: {value}, expected {least:g} to {most:g}")


def check_given(args: argparse.Namespace) -> None:
    """An empty word, as from an unset variable of a shell, never stands for a default."""
    texts = ("links", "methods", "data", "text", "optimizer", "outer", "exchange", "trainer")
    for name in (*texts, "json", "output", "workload", "config", "batch_size", "budget"):
        if getattr(args, name) == "":
            raise UsageError(f"--{name}: '' is empty, expected a value or no --{name}")


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) <= 18


def _meaning(spec: str) -> str:
    """One text for all ways to write a spec, where the compiled module can tell."""
    parse: Any = getattr(sys.modules.get("gradwire"), "parse_spec", None)
    try:
        return str(parse(spec)) if parse else spec
    except ValueError:
        return spec  # the trainer refuses it, and lists what it knows


def _spec(part: str) -> str:
    spec = ",".join(piece.strip() for piece in re.split(r"[+,]", part)).lower()
    name = spec.split(",")[0]
    if name in _ONLY_OPTIONS or name.startswith("block="):
        raise UsageError(
            f"--methods: '{name}' is an option, not a method; join it to its method with '+', "
            f"e.g. int4+{name}"
        )
    if "" in spec.split(","):
        raise UsageError(f"--methods: '{part}' has an empty part")
    return spec


def _parts(option: str, text: str, separator: str) -> List[str]:
    """Splits outside quotes and strips; an empty part is an error."""
    parts, quote = [""], ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
            parts[-1] += "" if not quote else character
        elif character in "'\"":
            quote = character
        elif character == separator:
            parts.append("")
        else:
            parts[-1] += character
    if quote:
        raise UsageError(f"{option}: '{text}' has an unclosed {quote}")
    parts = [part.strip() for part in parts]
    if "" in parts:
        raise UsageError(f"{option}: '{text}' has an empty part")
    return parts


def _distinct(option: str, items: List[T], meaning: Callable[[T], Any]) -> List[T]:
    for index, item in enumerate(items):
        for other in items[:index]:
            if meaning(item) == meaning(other):
                first, again = (getattr(each, "name", each) for each in (other, item))
                how = "" if first == again else f" (as {first} and as {again})"
                raise UsageError(f"{option}: {again} is given twice{how}")
    return items
