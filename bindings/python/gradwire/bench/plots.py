"""One SVG per link: accuracy against training seconds and against bytes sent."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, Dict, List, Tuple

from gradwire.bench.files import write_whole
from gradwire.bench.types import Document, Row
from gradwire.drawing import COLOURS, SETTINGS, STYLES
from gradwire.streams import note

_PANELS = (("seconds", "training time, seconds"), ("bytes", "bytes sent per worker"))
_STEP = 0.055  # between the labels above the curves, in accuracy


def can_draw() -> bool:
    """Loads matplotlib: better to say that it is missing, and to spend the time, before the first run
    than after the last."""
    try:
        import matplotlib.backends.backend_svg
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        note(
            f"gradwire bench: there will be no plots, which need matplotlib ({error}): "
            "pip install 'gradwire[bench]', or matplotlib"
        )
        return False
    return True


def write_plots(document: Document, folder: Path) -> Tuple[List[Path], List[str]]:
    """Writes `accuracy-LINK.svg` for each link that has a curve; same rows, same bytes.

    :returns: the files, and 'file: reason' of each that could not be drawn or written.
    """
    links = list(dict.fromkeys(curve["link"] for curve in document["curves"] if curve["points"]))
    written, failed = [], []
    for link in links:
        path = folder / f"accuracy-{re.sub('[^a-z0-9.]', '-', link)}.svg"
        try:
            write_whole(path, plot(document, link))
            written.append(path)
        except Exception as error:  # whatever matplotlib raises: the other plots can stand
            failed.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    return written, failed


def plot(document: Document, link: str) -> str:
    """The SVG text of one link."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    curves = [c for c in document["curves"] if c["link"] == link and c["points"]]
    methods = list(dict.fromkeys(curve["method"] for curve in document["curves"]))
    rows = [row for row in document["rows"] if row["link"] == link]
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, (name, label) in zip(figure.subplots(1, 2, sharey=True), _PANELS):
            _panel(axes, curves, methods, name)
            axes.set_xlabel(label)
            target = rows[0]["target_accuracy"] if rows else None
            if target:
                axes.axhline(target, color="#999999", linewidth=0.8)
        figure.axes[0].set_ylabel("test accuracy")
        figure.suptitle(_title(link, rows), fontsize=10)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _panel(axes: Any, curves: List[Document], methods: List[str], name: str) -> None:
    axes.set_xscale("log")
    axes.grid(True, which="major", color="#eeeeee", linewidth=0.8)
    axes.set_axisbelow(True)
    ends: Dict[str, Any] = {}
    for curve in curves:
        points = [(p[name], p["accuracy"]) for p in curve["points"] if (p[name] or 0) > 0]
        if not points:
            continue
        index = methods.index(curve["method"])
        colour, style = COLOURS[index % len(COLOURS)], STYLES[index % len(STYLES)]
        axes.plot(*zip(*points), color=colour, linestyle=style, linewidth=1.4)
        axes.plot(*points[-1], color=colour, marker="o", markersize=4)
        ends.setdefault(curve["method"], (points[-1], colour))
    _label_ends(axes, ends)
    axes.set_ylim(0, 1.02 + _STEP * (len(ends) + 0.5))
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.margins(x=0.12)


def _label_ends(axes: Any, ends: Dict[str, Any]) -> None:
    """A staircase falling to the right: no label meets another, no leader crosses a label."""
    ordered = sorted(ends.items(), key=lambda item: item[1][0][0])
    for place, (method, ((x, y), colour)) in enumerate(ordered):
        height = 1.02 + _STEP * (len(ordered) - 1 - place)
        axes.plot([x, x], [y, height + 0.02], color=colour, linewidth=0.6)
        text = "no compression" if method == "none" else method
        axes.annotate(
            text, (x, height), xytext=(3, 0), textcoords="offset points", color=colour, fontsize=8
        )


def _title(link: str, rows: List[Row]) -> str:
    where = "links not shaped" if link == "none" else f"{link} per worker, both ways"
    if not rows:
        return where
    row = rows[0]
    parameters = f", {row['parameters']:,} parameters" if row.get("parameters") else ""
    return f"{row['world_size']} workers, {where}{parameters}"
