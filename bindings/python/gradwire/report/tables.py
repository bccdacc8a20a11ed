"""The tables of a report: made once, so that HTML and Markdown show the same numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence, Union

from gradwire.bench.differences import Estimate
from gradwire.report.document import (
    Comparison,
    Decision,
    Link,
    Method,
    Prediction,
    Report,
    Run,
    Scaling,
    Timeline,
)
from gradwire.report.log import numbers_of
from gradwire.report.steps import heading as step_heading
from gradwire.report.steps import parts
from gradwire.report.units import MISSING, digits, estimated, percent, plus_minus, size, times
from gradwire.report.verdict import label
from gradwire.report.words import SCALED, heading


@dataclass(frozen=True)
class Cell:
    """What is shown, and what it is sorted by: the number in the JSON, or the text."""

    text: str
    value: Union[float, str, None] = None


@dataclass(frozen=True)
class Table:
    caption: str
    head: List[str]
    rows: List[List[Cell]]
    best: Sequence[int] = ()  # rows to point out


def overview_table(report: Report) -> Optional[Table]:
    """What to take where, one line per study; None where one says it all."""
    if len(report.studies) < 2:
        return None
    links = list(dict.fromkeys(link.where for study in report.studies for link in study.links))
    rows = []
    for study in report.studies:
        advice = {link.where: _advice(link) for link in study.links}
        cells = [Cell(advice.get(where, "–")) for where in links]
        rows.append([Cell(heading(study), heading(study)), *cells])
    return Table("What to take where", ["", *links], rows)


def _advice(link: Link) -> str:
    verdict = link.verdict
    if verdict.kind == "compress":
        more = f" or {len(verdict.methods) - 2} more" if len(verdict.methods) > 2 else ""
        return " or ".join(verdict.methods[:2]) + more
    return "no compression" if verdict.kind == "do not compress" else verdict.kind


def link_table(link: Link, target: Optional[float]) -> Table:
    """One line per method."""
    head = [
        "method",
        f"s to {percent(target)}" if target else "s in all",
        "times dense",
        "accuracy",
        "minus dense, points",
    ]
    head += ["step, ms", "computing, ms", "waiting, ms", "compression, ms"]
    head += ["bytes/step", "interface/step", "bytes in all", "nothing beats it", "ended by"]
    wanted = [i for i, m in enumerate(link.methods) if m.method in link.verdict.methods]
    caption = f"{link.where}: means over seeds ± 95% intervals; bytes are those of one worker"
    return Table(caption, head, [_method(m, target) for m in link.methods], wanted)


def _method(m: Method, target: Optional[float]) -> List[Cell]:
    name = label(m.method) + (" (peer)" if m.peer else "")
    accuracy = m.final_accuracy
    return [
        Cell(name, name),
        _to_target(m) if target else _estimate(m.seconds),
        Cell(times(m.times_dense), m.times_dense) if m.times_dense else Cell("–"),
        Cell(
            MISSING
            if accuracy is None
            else plus_minus(accuracy.mean, accuracy.half_width, 100) + "%",
            None if accuracy is None else accuracy.mean,
        ),
        _points(m),
        _estimate(m.step_ms),
        _number(m.compute_ms),
        _number(m.exposed_exchange_ms),
        _number(m.compression_ms),
        _size(m.wire_bytes_per_step),
        _size(m.interface_bytes_per_step),
        _size(m.bytes_sent),
        Cell("yes" if m.on_front else "no", "0" if m.on_front else "1"),
        Cell(", ".join(m.stopped_by) or "not said", ", ".join(m.stopped_by)),
    ]


def _points(m: Method) -> Cell:
    found = m.accuracy_minus_dense
    if found is None:
        return Cell("–")
    return Cell(plus_minus(found.mean, found.half_width, 100), found.mean)


def _to_target(m: Method) -> Cell:
    if m.seconds_to_target is None:
        return Cell("not reached")
    text = estimated(m.seconds_to_target)
    if m.reached < len(m.seeds):
        text += f" ({m.reached} of {len(m.seeds)} seeds)"
    return Cell(text, m.seconds_to_target.mean)


def _estimate(found: Optional[Estimate]) -> Cell:
    return Cell(estimated(found), None if found is None else found.mean)


def _number(value: Optional[float]) -> Cell:
    return Cell(MISSING if value is None else digits(value), value)


def _size(value: Optional[float]) -> Cell:
    return Cell(MISSING if value is None else size(value), value)


def timeline_table(caption: str, steps: Sequence[Timeline]) -> Table:
    """The parts of steps, one line each."""
    head = ["step", "forward", "backward", "waiting", "update", "compression", "exchange"]
    head += ["exchange beside computing", "decoding"]
    rows = []
    for step in steps:
        each = vars(parts(step))
        cells = [Cell("–" if ms is None else digits(ms), ms) for ms in each.values()]
        rows.append([Cell(step_heading(step), step.source), *cells])
    return Table(f"{caption}, ms", head, rows)


def scaling_table(series: Sequence[Scaling]) -> Table:
    rows = [
        [
            Cell(each.where, each.where),
            Cell(label(each.method), each.method),
            Cell(str(p.workers), p.workers),
            Cell(digits(p.step_ms), p.step_ms),
            Cell(digits(p.samples_per_s), p.samples_per_s),
            Cell("simulated" if p.simulated else "measured", str(p.simulated)),
            Cell("–" if p.model_ms is None else digits(p.model_ms), p.model_ms),
        ]
        for each in series
        for p in each.points
    ]
    head = ["link", "method", "workers", "step, ms", "samples/s, all workers", "how known"]
    head.append("planner says, ms")
    return Table(f"Steps with more workers; {SCALED}", head, rows)


def prediction_table(found: Sequence[Prediction]) -> Table:
    rows = [
        [
            Cell(p.workload, p.workload),
            Cell(p.where, p.where),
            Cell(label(p.method), p.method),
            Cell(str(p.workers), p.workers),
            Cell(p.what, p.what),
            Cell(digits(p.predicted, 4), p.predicted),
            Cell(digits(p.measured, 4), p.measured),
            Cell(_off(p), p.predicted / p.measured if p.measured else None),
            Cell(p.by, p.by),
        ]
        for p in found
    ]
    head = [
        "workload",
        "link",
        "method",
        "workers",
        "what",
        "predicted",
        "measured",
        "off by",
        "predicted by",
    ]
    return Table("Predicted against measured", head, rows)


def _off(p: Prediction) -> str:
    return f"{100 * (p.predicted / p.measured - 1):+.1f}%" if p.measured else "not known"


def decision_table(found: Sequence[Decision]) -> Table:
    rows = [
        [
            Cell(" ".join(part for part in (d.run, d.workload) if part) or "–", d.workload),
            Cell(d.where, d.where),
            Cell(str(d.seed), d.seed),
            Cell("not said" if d.step is None else str(d.step), d.step),
            Cell(_plain(d.details.get("what", "–"))),
            Cell(_plain(d.details.get("from", "–"))),
            Cell(d.chosen, d.chosen),
            Cell(d.why, d.why),
            Cell(_cut(numbers_of(d.details), 600) or "–"),
        ]
        for d in found
    ]
    head = ["run", "link", "seed", "step", "what", "before", "after", "why", "on which numbers"]
    return Table("What method auto decided, in order, and why", head, rows)


def _plain(value: object) -> str:
    return _cut(f"{value:.4g}" if isinstance(value, float) else str(value), 200)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


_BASES = {
    "paired": "paired by seed",
    "welch": "Welch, other seeds",
    "steps": "one seed: of the step time",
    "none": "not known: one seed",
}


def comparison_table(found: Comparison) -> Table:
    rows = [
        [
            Cell(r.workload, r.workload),
            Cell(f"{r.where}, {r.workers} workers", r.where),
            Cell(label(r.method), r.method),
            Cell(r.quantity, r.quantity),
            Cell(estimated(r.base), r.base.mean),
            Cell(estimated(r.other), r.other.mean),
            Cell(plus_minus(r.difference, r.half_width), r.difference),
            Cell(
                "not known" if r.half_width is None else "yes" if r.beyond else "no", str(r.beyond)
            ),
            Cell(_BASES[r.basis], r.basis),
        ]
        for r in found.rows
    ]
    head = ["workload", "link", "method", "quantity", found.base, found.run]
    head += [f"{found.run} minus {found.base}", "beyond its interval", "interval"]
    wanted = [i for i, r in enumerate(found.rows) if r.beyond]
    return Table(f"{found.run} beside {found.base}, with 95% intervals", head, rows, wanted)


def run_table(runs: Sequence[Run]) -> Table:
    """What ran where: one column per run."""
    facts = [
        ("files", [", ".join(run.files) for run in runs]),
        ("gradwire", [run.version or "not said" for run in runs]),
        ("commit", [run.commit or "not said: an installed package" for run in runs]),
        ("network", [run.network for run in runs]),
        ("seeds", [", ".join(map(str, run.seeds)) or "none" for run in runs]),
        ("ended", ["; ".join(run.ended) for run in runs]),
    ]
    names = list(dict.fromkeys(name for run in runs for name in run.machine))
    facts[3:3] = [
        (name.replace("_", " "), [_plain(run.machine.get(name, "not said")) for run in runs])
        for name in names
    ]
    rows = [[Cell(name, name), *(Cell(value, value) for value in values)] for name, values in facts]
    return Table(
        "Where the numbers are from", ["", *(run.label or "this run" for run in runs)], rows
    )
