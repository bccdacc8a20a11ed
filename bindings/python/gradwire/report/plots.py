"""The plots of a report, each a pure function from its data to SVG text."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from gradwire.report import axes
from gradwire.report.axes import Axis, Scale, Style
from gradwire.report.document import Curve, Link, Method, Prediction, Scaling
from gradwire.report.markup import Markup, join, tag
from gradwire.report.units import digits, percent, plus_minus, size
from gradwire.report.verdict import label

Styles = Dict[str, Style]
_SIZE = (axes.WIDTH, axes.HEIGHT)


def styles(methods: Sequence[str]) -> Styles:
    """One for each method; no compression is always the first."""
    ordered = sorted(dict.fromkeys(methods), key=lambda name: name != "none")
    return {name: Style(i) for i, name in enumerate(ordered)}


def _seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1 else f"{1e3 * value:g} ms"


def _amount(value: float) -> str:
    return size(value).replace(".00", "").replace(".0 ", " ")


def accuracy(link: Link, target: Optional[float], by: str, drawn: Styles) -> Optional[Markup]:
    """Accuracy against "seconds" of training or against "bytes" that a worker has sent; None where
    there is no point. Points at 0 have no place on a logarithmic axis and are left out."""
    series = [(curve, _points(curve, by)) for curve in link.curves]
    series = [(curve, points) for curve, points in series if points]
    if not series:
        return None
    every = [point for _, points in series for point in points]
    low = min(0.9, *(y for _, y in every), *([target] if target else []))
    high = 1.0 if max(y for _, y in every) <= 1 else max(y for _, y in every)
    x = axes.across([p[0] for p in every], True)
    y = axes.upwards([int(low * 10) / 10, high], False)
    title, told = (
        ("training time", _seconds) if by == "seconds" else ("bytes sent by a worker", _amount)
    )
    parts = [axes.frame(Axis(title, x, told), Axis("test accuracy", y, percent))]
    if target:
        at = y(target)
        right = axes.WIDTH - axes.RIGHT
        parts += [
            tag("line", x1=axes.LEFT, x2=right, y1=at, y2=at, class_="target"),
            tag("text", f"target {percent(target)}", x=axes.LEFT + 4, y=at - 4, class_="tick"),
        ]
    first_seed: Dict[str, int] = {}
    for curve, points in series:
        main = first_seed.setdefault(curve.method, curve.seed) == curve.seed
        parts.append(_line(curve.method, curve.seed, points, (x, y), drawn, main))
    name = f"Accuracy against {title} at {link.where}"
    return axes.figure(f"accuracy-{by}", name, join(*parts), _SIZE, **axes.scale_data(x, y))


def _points(curve: Curve, by: str) -> List[Tuple[float, float]]:
    return [
        (float(p[by]), float(p["accuracy"]))
        for p in curve.points
        if (p.get(by) or 0) > 0 and p.get("accuracy") is not None
    ]


def _line(
    method: str,
    seed: int,
    points: Sequence[Tuple[float, float]],
    scales: Tuple[Scale, Scale],
    drawn: Styles,
    main: bool,
) -> Markup:
    x, y = scales
    style = drawn[method]
    places = [(x(a), y(b)) for a, b in points]
    line = tag(
        "polyline",
        points=" ".join(f"{a:.2f},{b:.2f}" for a, b in places),
        class_=f"{style.colour} l" + ("" if main else " faint"),
        stroke_dasharray=style.dashes,
    )
    # A few marks along the line tell methods apart without colours.
    marks = [style.marker(*places[i], 3.2) for i in _spread(len(places))] if main else []
    return tag("g", line, *marks, data_method=method, data_seed=seed)


def _spread(count: int) -> List[int]:
    return sorted({count - 1, *(round(i * (count - 1) / 4) for i in range(1, 4))})


def pareto(link: Link, drawn: Styles) -> Optional[Markup]:
    """Time against bytes, accuracy beside the marks; hollow: another is better in all three."""
    placed = [(m, at) for m in link.methods for at in [_costs(m)] if at]
    if not placed:
        return None
    x = axes.across([at[0] for _, at in placed], True)
    y = axes.upwards([at[1] for _, at in placed], True)
    ended = link.methods[0].final_accuracy is not None
    titles = ("training time", "bytes sent by a worker") if ended else ("step", "bytes per step")
    parts = [axes.frame(Axis(titles[0], x, _seconds), Axis(titles[1], y, _amount))]
    front = sorted(at for m, at in placed if m.on_front)
    if len(front) > 1:
        line = " ".join(f"{x(a):.2f},{y(b):.2f}" for a, b in front)
        parts.append(tag("polyline", points=line, class_="front"))
    written: List[Tuple[float, float]] = []
    for m, (a, b) in placed:
        reached = f", accuracy {percent(m.final_accuracy.mean, 2)}" if m.final_accuracy else ""
        told = f"{label(m.method)}: {digits(a)} s, {size(b)}{reached}"
        marks = [drawn[m.method].marker(x(a), y(b), 5.5 if m.on_front else 4.0, not m.on_front)]
        near = any(abs(x(a) - u) < 44 and abs(y(b) - v) < 13 for u, v in written)
        near = near or any(0 < x(c) - x(a) < 52 and abs(y(b) - y(d)) < 16 for _, (c, d) in placed)
        if m.on_front and m.final_accuracy and not near:
            written.append((x(a), y(b)))
            right = x(a) > axes.WIDTH * 0.75
            place = {"x": x(a) + (-9 if right else 9), "y": y(b) - 6}
            kind = "tick end" if right else "tick"
            marks.append(tag("text", percent(m.final_accuracy.mean), class_=kind, **place))
        parts.append(tag("g", tag("title", told), *marks, data_method=m.method))
    name = f"Accuracy, time and bytes at {link.where}: what nothing beats"
    return axes.figure("pareto", name, join(*parts), _SIZE, **axes.scale_data(x, y))


def _costs(m: Method) -> Optional[Tuple[float, float]]:
    if m.final_accuracy is not None:
        found = (m.seconds.mean if m.seconds else None, m.bytes_sent)
    else:
        found = (m.step_ms.mean / 1e3 if m.step_ms else None, m.wire_bytes_per_step)
    return (found[0], found[1]) if found[0] and found[1] else None


_ROW, _NAME = 30.0, 150.0


def split(link: Link) -> Optional[Markup]:
    """What a step is made of: computing, then waiting for exchanges; beneath, thin, compression, which
    goes on beside either."""
    known = [m for m in link.methods if m.compute_ms is not None and m.step_ms is not None]
    if not known:
        return None
    most = max(m.step_ms.mean for m in known if m.step_ms)
    height = _ROW * len(known) + 40
    scale = Scale(0.0, most, _NAME, axes.WIDTH - 62, False)
    parts: List[Markup] = []
    for i, m in enumerate(known):
        top = 4 + _ROW * i
        compute, waiting = m.compute_ms or 0.0, m.exposed_exchange_ms or 0.0
        pieces = [
            ("compute", 0.0, compute, top + 3, 14.0),
            ("wait", compute, waiting, top + 3, 14.0),
        ]
        pieces.append(("compress", 0.0, m.compression_ms or 0.0, top + 19, 4.0))
        bars = [
            tag(
                "rect",
                tag("title", f"{label(m.method)}: {_PIECES[kind]} {digits(ms)} ms"),
                x=scale(begin),
                y=y,
                width=max(scale(begin + ms) - scale(begin), 0.0),
                height=h,
                class_=kind,
                data_ms=repr(ms),
            )
            for kind, begin, ms, y, h in pieces
        ]
        step = m.step_ms.mean if m.step_ms else 0.0
        end = scale(max(step, compute + waiting, m.compression_ms or 0.0))
        bars.append(
            tag("text", f"{digits(step)} ms", x=min(end, 340.0) + 5, y=top + 15, class_="tick")
        )
        bars.append(
            tag("text", _shortened(label(m.method)), x=_NAME - 6, y=top + 15, class_="tick end")
        )
        parts.append(tag("g", *bars, data_method=m.method))
    key_y = height - 22
    for at, kind in ((4.0, "compute"), (96.0, "wait"), (254.0, "compress")):
        parts.append(tag("rect", x=at, y=key_y, width=12.0, height=12.0, class_=kind))
        parts.append(tag("text", _PIECES[kind], x=at + 17, y=key_y + 10, class_="tick"))
    name = f"Time of a step at {link.where}"
    return axes.figure("split", name, join(*parts), (axes.WIDTH, height))


_PIECES = {
    "compute": "computing",
    "wait": "waiting for exchanges",
    "compress": "compression (beside)",
}


def _shortened(name: str) -> str:
    return name if len(name) <= 23 else name[:22] + "…"


def scaling(where: str, series: Sequence[Scaling], drawn: Styles) -> Optional[Markup]:
    """Samples a second against workers; hollow and dotted: simulated."""
    points = [point for each in series for point in each.points]
    if len({point.workers for point in points}) < 2:
        return None
    x = axes.across([float(point.workers) for point in points], True)
    y = axes.upwards([point.samples_per_s for point in points], True)
    counts = sorted({float(point.workers) for point in points})
    x_axis = Axis("workers", x, lambda value: f"{value:g}", counts)
    parts = [axes.frame(x_axis, Axis("samples per second, all workers", y, lambda v: f"{v:,g}"))]
    for each in series:
        style = drawn[each.method]
        measured = [p for p in each.points if not p.simulated]
        beyond = [p for p in each.points if p.simulated]
        pieces = []
        for kind, some in (("measured", measured), ("simulated", measured[-1:] + beyond)):
            line = " ".join(f"{x(float(p.workers)):.2f},{y(p.samples_per_s):.2f}" for p in some)
            dashes = "1.5 4" if kind == "simulated" else None
            if len(some) > 1:
                pieces.append(
                    tag(
                        "polyline", points=line, class_=f"{style.colour} l", stroke_dasharray=dashes
                    )
                )
        for p in each.points:
            how = "simulated" if p.simulated else "measured"
            told = f"{label(each.method)}, {p.workers} workers: {digits(p.samples_per_s)} samples/s, {how}"
            mark = style.marker(x(float(p.workers)), y(p.samples_per_s), 4.0, p.simulated)
            pieces.append(tag("g", tag("title", told), mark))
        parts.append(tag("g", *pieces, data_method=each.method))
    name = f"Scaling at {where}: measured, and simulated beyond"
    return axes.figure("scaling", name, join(*parts), _SIZE, **axes.scale_data(x, y))


def predicted(rows: Sequence[Prediction], drawn: Styles) -> Optional[Markup]:
    """Predicted against measured step time; on the line they are equal."""
    rows = [row for row in rows if row.what.startswith("step") and row.predicted > 0 < row.measured]
    if not rows:
        return None
    values = [value for row in rows for value in (row.measured, row.predicted)]
    x, y = axes.across(values, True), axes.upwards(values, True)
    parts = [
        axes.frame(
            Axis("measured step, ms", x, lambda v: f"{v:,g}"),
            Axis("predicted step, ms", y, lambda v: f"{v:,g}"),
        ),
        tag("line", x1=x(x.low), y1=y(y.low), x2=x(x.high), y2=y(y.high), class_="target"),
    ]
    for row in rows:
        told = (
            f"{label(row.method)} at {row.where}, {row.workers} workers: predicted "
            f"{digits(row.predicted)} ms, measured {digits(row.measured)} ms"
        )
        mark = drawn[row.method].marker(x(row.measured), y(row.predicted), 4.0)
        parts.append(tag("g", tag("title", told), mark, data_method=row.method))
    name = "Predicted against measured time of a step"
    return axes.figure("predicted", name, join(*parts), _SIZE, **axes.scale_data(x, y))


def strip(link: Link, target: Optional[float], drawn: Styles) -> Optional[Markup]:
    """Time to the target (or of a step) of every method, the shortest first."""
    found = []
    for m in link.methods:
        known = m.seconds_to_target if target else m.step_ms
        if known and (not target or m.reached == len(m.seeds)):
            found.append((known, m))
    if not found:
        return None
    found.sort(key=lambda pair: pair[0].mean)
    most = max(known.mean + (known.half_width or 0.0) for known, _ in found)
    height = 24.0 * len(found) + 6
    scale = Scale(0.0, most, _NAME, axes.WIDTH - 92, False)
    parts = []
    unit = "s" if target else "ms"
    for i, (known, m) in enumerate(found):
        top = 24.0 * i + 4
        told = f"{plus_minus(known.mean, known.half_width)} {unit}"
        end = scale(known.mean)
        bar = [
            tag("title", f"{label(m.method)}: {told}"),
            tag("rect", x=_NAME, y=top + 2, width=end - _NAME, height=14.0,
                class_=f"{drawn[m.method].colour} bar", data_value=repr(known.mean)),
            tag("text", _shortened(label(m.method)), x=_NAME - 6, y=top + 13, class_="tick end"),
        ]  # fmt: skip
        if known.half_width:
            low, high = (
                scale(max(known.mean - known.half_width, 0.0)),
                scale(known.mean + known.half_width),
            )
            bar.append(tag("path", d=f"M{low:.1f} {top + 9:g}H{high:.1f}", class_="whisker"))
            end = high
        bar.append(tag("text", told, x=end + 5, y=top + 13, class_="tick"))
        parts.append(tag("g", *bar, data_method=m.method))
    name = f"{'Time to the target' if target else 'Time of a step'} at {link.where}"
    return axes.figure("strip", name, join(*parts), (axes.WIDTH, height))
