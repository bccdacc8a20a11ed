"""JSON and packed text from files that anybody may have written: read within limits, or refused in words.

Python's parser alone ends in a RecursionError, an OverflowError, a MemoryError or strings that cannot be
written again; here every fault is a BadInput, which says what, where and what was expected.
"""

import json
import math
import zlib
from typing import Any, List, NoReturn, Optional, Tuple, Union

__all__ = ["BadInput", "parsed", "place_of", "plain", "shown", "unpacked"]

_DEEPEST = 100  #: deeper than any file that is read here
_LONGEST_NUMBER = 400  #: letters; no double has more digits before its point

Key = Union[str, int]
_Link = Optional[Tuple[Any, Key]]  # of a value: (link of what it is in, its key there)


class BadInput(ValueError):
    """What is wrong with a text, in words."""


def unpacked(data: bytes, most: int) -> bytes:
    """What is in a gzip file, of one member or several.

    Raises:
        BadInput: it is damaged, or more than `most` bytes are in it.
    """
    found: List[bytes] = []
    size = 0
    while data:
        unpacker = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            part = unpacker.decompress(data, most - size + 1)
        except zlib.error as error:
            raise BadInput(str(error)) from None
        size += len(part)
        if size > most:
            raise BadInput(f"more than {most >> 20} MiB are packed in it")
        if not unpacker.eof:
            raise BadInput("it ends early")
        found.append(part)
        data = unpacker.unused_data.lstrip(b"\0")  # some pad with zeros
    return b"".join(found)


def parsed(text: str) -> Any:
    """The value, of which every number is finite, every text can be written and nothing is nested deeply.

    Raises:
        BadInput: the text is no JSON or breaks one of these: names the place.
    """
    try:
        found = json.loads(text, parse_constant=_no_number, parse_int=_whole)
    except json.JSONDecodeError as error:
        raise BadInput(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise BadInput(_too_deep()) from None
    _examine(found)
    return found


def place_of(keys: List[Key]) -> str:
    """["rows", 3, "step_ms"] -> rows[3].step_ms."""
    said = "".join(f"[{key}]" if isinstance(key, int) else f".{plain(key)}" for key in keys)
    return said[1:] if said.startswith(".") else said


def shown(value: Any) -> str:
    """A value in an error: short, and of what every terminal can show."""
    text = plain(repr(value) if not isinstance(value, (dict, list)) or len(value) < 9 else
                  f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}")
    return text if len(text) <= 60 else text[:57] + "..."


def plain(text: str) -> str:
    """Without halves of surrogate pairs, which names of files may have (bytes that are no UTF-8) and
    neither a file nor the core takes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _too_deep() -> str:
    return f"nested more than {_DEEPEST} deep"


def _no_number(constant: str) -> NoReturn:
    raise BadInput(f"{constant} is no JSON number")


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise BadInput(f"a number of {len(digits)} digits, expected numbers up to 1.8e308")
    return int(digits)


def _examine(whole: Any) -> None:
    waiting: List[Tuple[Any, int, _Link]] = [(whole, 0, None)]
    while waiting:
        value, depth, link = waiting.pop()
        if isinstance(value, (dict, list)):
            if depth >= _DEEPEST:
                raise BadInput(_too_deep())
            if isinstance(value, dict):
                for key in value:
                    _text(key, link)
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [(item, depth + 1, (link, key)) for key, item in items]
        elif isinstance(value, str):
            _text(value, link)
        elif isinstance(value, (int, float)) and not _is_finite(value):
            raise BadInput(f"{_place(link)}: {shown(value)}, expected a finite number")


def _text(value: str, link: _Link) -> None:
    if not value.isascii() and value != plain(value):
        raise BadInput(f"{_place(link)}: {shown(value)}, expected a text of whole characters")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all doubles
        return False


def _place(link: _Link) -> str:
    keys: List[Key] = []
    while link is not None:
        link, key = link
        keys.insert(0, key)
    return place_of(keys) or "the whole"
