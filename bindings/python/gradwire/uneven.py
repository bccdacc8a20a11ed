"""Workers that differ, as `gradwire simulate` is told of them."""

import math
from typing import Any, List, Optional, Sequence, Tuple

from . import json_input, planner
from .errors import InvalidArgument

__all__ = ["uneven_workers"]

Times = Tuple[float, float, float]  #: how many times longer: computing, input, messages
_KEYS = ("speed", "input", "link")


def uneven_workers(workers: int, speeds: Optional[str], links: Optional[str],
                   file: Optional[str]) -> Sequence[Times]:
    """One per worker, or () for equal ones. speeds, links: "1,0.5x3,1": shares of the usual speed, of
    which 0.5 stands for three workers. file: JSON, a list of {"speed", "input", "link", "workers"}, each
    of which may be left out. Raises InvalidArgument for another number of workers than `workers`."""
    if file is not None:
        if speeds is not None or links is not None:
            raise InvalidArgument("--uneven: has speeds and links of its own, expected it without "
                                  "--speeds and --worker-links")
        return _of_file(workers, file)
    if speeds is None and links is None:
        return ()
    fast = _shares("--speeds", speeds, workers)
    near = _shares("--worker-links", links, workers)
    return [(1 / a, 1.0, 1 / b) for a, b in zip(fast, near)]


def _share(place: str, value: Any) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    if not good:
        raise InvalidArgument(f"{place}: {value!r}, expected a share of the usual speed above 0, such as 0.5")
    return float(value)


def _shares(option: str, text: Optional[str], workers: int) -> List[float]:
    if text is None:
        return [1.0] * workers
    shares: List[float] = []
    for part in text.split(","):
        share, times, count = part.strip().partition("x")
        try:
            value, repeat = float(share), int(count) if times else 1
        except ValueError:
            value, repeat = math.nan, 0
        if not 0 < repeat <= workers:
            raise InvalidArgument(f"{option}: '{part}', expected a share such as 0.5, or 0.5x3 for three "
                                  f"of the {workers} workers")
        shares += [_share(option, value)] * repeat
    _expect(option, len(shares), workers)
    return shares


def _expect(place: str, count: int, workers: int) -> None:
    if count != workers:
        raise InvalidArgument(f"{place}: {count} workers, expected as many as --workers, {workers}")


def _of_file(workers: int, path: str) -> List[Times]:
    try:
        rows = json_input.parsed(planner.read_text(path))
    except json_input.BadInput as error:
        raise InvalidArgument(f"{path}: {error}, expected JSON: a list of workers") from None
    if not isinstance(rows, list):
        raise InvalidArgument(f"{path}: {type(rows).__name__}, expected a list of workers")
    out: List[Times] = []
    for i, row in enumerate(rows):
        place = f"{path}: [{i}]"
        if not isinstance(row, dict) or not set(row) <= {*_KEYS, "workers"}:
            raise InvalidArgument(f"{place}: expected an object with some of {', '.join(_KEYS)}, workers")
        count = row.get("workers", 1)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= workers:
            raise InvalidArgument(f"{place}.workers: {count!r}, expected a whole number from 1 to {workers}")
        speed, given, link = (_share(f"{place}.{key}", row.get(key, 1)) for key in _KEYS)
        out += [(1 / speed, 1 / given, 1 / link)] * count
    _expect(path, len(out), workers)
    return out
