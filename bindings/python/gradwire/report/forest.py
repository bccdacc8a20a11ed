"""How two runs differ, at a glance: a line per method and link, its interval beside zero."""

from __future__ import annotations

from typing import List, Optional, Tuple

from gradwire.report import axes
from gradwire.report.axes import Scale
from gradwire.report.document import Compared, Comparison
from gradwire.report.markup import Markup, join, tag
from gradwire.report.plots import Styles
from gradwire.report.verdict import label

_ROW, _HEAD, _NAME = 17.0, 22.0, 150.0
MOST_ROWS = 200  # more are in the table alone


def forest(found: Comparison, quantity: str, drawn: Styles) -> Optional[Markup]:
    """Differences of a quantity in percent of the base's, grouped by link; None where no
    interval is known or nothing differs. Filled: beyond its interval."""
    rows = [
        r for r in found.rows if r.quantity == quantity and r.half_width is not None and r.base.mean
    ]
    if not any(r.difference or r.half_width for r in rows) or len(rows) > MOST_ROWS:
        return None  # nothing is known, or all is equal
    ends = [value for row in rows for value in _percent(row)]
    reach = 1.08 * max(max(abs(value) for value in ends), 0.1)
    x = Scale(-reach, reach, _NAME, axes.WIDTH - 12, False)
    places = list(dict.fromkeys((r.workload, r.workers, r.where) for r in rows))
    several = len({place[:2] for place in places}) > 1
    height = 16 + _HEAD * len(places) + _ROW * len(rows) + 42
    parts: List[Markup] = []
    for value in x.ticks():
        zero = " zero" if value == 0 else ""
        parts.append(
            tag("line", x1=x(value), x2=x(value), y1=4, y2=height - 40, class_="grid" + zero)
        )
        parts.append(
            tag(
                "text",
                f"{value:+g}%" if value else "0",
                x=x(value),
                y=height - 25,
                class_="tick mid",
            )
        )
    top = 4.0
    for place in places:
        work, workers, where = place
        named = f"{where}, {work}, {workers} workers" if several else where
        parts.append(tag("text", named, x=4, y=top + 15, class_="title"))
        top += _HEAD
        for row in rows:
            if (row.workload, row.workers, row.where) == place:
                parts.append(_row(row, x, top, drawn))
                top += _ROW
    title = f"{quantity}: {found.run} minus {found.base}, in percent of {found.base}"
    parts.append(tag("text", title, x=axes.WIDTH / 2, y=height - 6, class_="title mid"))
    data = {"data_x": f"{x.low!r} {x.high!r} {x.begin!r} {x.end!r} linear"}
    return axes.figure("forest", title, join(*parts), (axes.WIDTH, height), **data)


def _percent(row: Compared) -> Tuple[float, float, float]:
    """Low end, difference, high end."""
    of = 100 / abs(row.base.mean)
    half = row.half_width or 0.0
    return (row.difference - half) * of, row.difference * of, (row.difference + half) * of


def _row(row: Compared, x: Scale, top: float, drawn: Styles) -> Markup:
    low, middle, high = _percent(row)
    style = drawn[row.method]
    at = top + _ROW / 2
    told = f"{label(row.method)} at {row.where}: {middle:+.2f}% ({low:+.2f}% to {high:+.2f}%)"
    name = label(row.method)
    return tag(
        "g",
        tag("title", told),
        tag(
            "text",
            name if len(name) <= 22 else name[:21] + "…",
            x=_NAME - 8,
            y=at + 4,
            class_="tick end",
        ),
        tag("line", x1=x(low), x2=x(high), y1=at, y2=at, class_=f"{style.colour} l"),
        style.marker(x(middle), at, 4.0, not row.beyond),
        data_method=row.method,
        data_difference=repr(middle),
    )
