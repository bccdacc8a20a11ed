"""HTML and SVG elements as text in which everything that comes from data is escaped."""

from __future__ import annotations

import html
import re
from typing import Union

# What XML and HTML have no letter for: control characters and halves of surrogate pairs.
_NO_LETTERS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_EMPTY = ("meta", "br", "hr", "path", "line", "rect", "circle", "polyline", "input")


class Markup(str):
    """Text that is markup already; all other text is escaped."""


Content = Union[str, "Markup", None]


def text(value: str) -> Markup:
    return Markup(html.escape(_NO_LETTERS.sub("\ufffd", value), quote=True))


def tag(name: str, /, *contents: Content, **attributes: object) -> Markup:
    """An element. Attributes: None is left out, an underscore becomes a hyphen, one at the end is cut
    (``class_``); numbers are written with two decimals at most."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = join(*contents)
    if not inner and name in _EMPTY:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{inner}</{name}>")


def join(*contents: Content) -> Markup:
    return Markup(
        "".join(c if isinstance(c, Markup) else text(c) for c in contents if c is not None)
    )


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return text(str(value))
