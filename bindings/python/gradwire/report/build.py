"""From results to the report: nothing is in it that is not in them, but for what is marked simulated."""

from __future__ import annotations

import shlex
from typing import Dict, List, Optional, Sequence, Tuple

from gradwire.bench.differences import estimate, mean_of
from gradwire.bench.summary import Cell, cells
from gradwire.bench.types import Document, Event, Row
from gradwire.report import timeline
from gradwire.report.compare import comparisons
from gradwire.report.document import Curve, Link, Method, Report, Run, Study, Timeline
from gradwire.report.log import decisions, trials
from gradwire.report.runs import grouped, workload_of
from gradwire.report.scaling import predictions, scaling
from gradwire.report.sources import Source
from gradwire.report.units import rate
from gradwire.report.verdict import DENSE, accuracy_minus, dense_of, quantity, verdict


def build(sources: Sequence[Source], timelines: Sequence[Timeline] = ()) -> Report:
    """:param sources: at least one; those that complete one another become one run, others are compared
    with the first."""
    groups = grouped(list(sources))
    labels = [chr(ord("A") + i) if i < 26 else f"run {i + 1}" for i in range(len(groups))]
    if len(groups) == 1:
        labels = [""]
    labelled = list(zip(labels, groups))
    studies = [study for label, group in labelled for study in _studies(label, group)]
    scales, unsimulated = scaling(labelled)
    predicted = predictions(labelled) + trials(labelled)
    chosen = decisions(labelled)
    missing = [line for source in sources for line in _left_out(source)]
    traced = bool(timelines) or any(link.timelines for each in studies for link in each.links)
    missing += unsimulated + _missing(studies, bool(predicted), bool(chosen), traced)
    return Report(
        runs=[_run(label, group) for label, group in labelled],
        studies=studies,
        scaling=scales,
        predictions=predicted,
        decisions=chosen,
        timelines=list(timelines),
        comparisons=comparisons(labelled),
        not_measured=missing,
    )


def _run(label: str, group: Sequence[Source]) -> Run:
    first = group[0].document
    return Run(
        label=label,
        files=[source.name for source in group],
        version=first.get("gradwire_version"),
        commit=first.get("commit"),
        machine=first["machine"],
        network=str(first.get("network") or "not said"),
        seeds=sorted({row["seed"] for source in group for row in source.document["rows"]}),
        ended=[str(source.document.get("ended") or "not said") for source in group],
        commands=[_command(source.document) for source in group],
        settings=[source.document["settings"] for source in group],
    )


def _command(document: Document) -> str:
    """As it was typed, but the program by its name alone: where it lay says nothing elsewhere."""
    words = document.get("command_line")
    if not isinstance(words, list) or not words:
        return "not said"
    try:  # the words are quoted for a shell already
        program = " ".join(shlex.split(words[0])[:1]).rpartition("/")[2]
    except ValueError:  # or not, by whatever else wrote the file
        program = words[0]
    if program in ("", "__main__.py"):  # python -m gradwire
        program = "gradwire"
    return " ".join([program, *(str(word) for word in words[1:])])


Key = Tuple[str, int]


def _studies(label: str, group: Sequence[Source]) -> List[Study]:
    rows: Dict[Key, List[Row]] = {}
    points: Dict[Tuple[str, int, str, str, int], List[Event]] = {}
    rates: Dict[str, Optional[float]] = {}
    for source in group:
        document = source.document
        for link in document.get("links") or []:
            rates[str(link.get("name"))] = link.get("bits_per_s")
        for row, of_row in zip(document["rows"], _curves(document)):
            if row["link_mbit_per_s"] is not None:
                rates.setdefault(row["link"], row["link_mbit_per_s"] * 1e6)
            work, workers = workload_of(document, row), int(row["world_size"] or 0)
            rows.setdefault((work, workers), []).append(row)
            place = (row["link"], row["method"], row["seed"])
            points[(work, workers, *place)] = of_row
    found = []
    for (work, workers), its in rows.items():
        curves_of = {key[2:]: value for key, value in points.items() if key[:2] == (work, workers)}
        parameters = next((int(r["parameters"]) for r in its if r["parameters"]), None)
        every = cells(its)
        links = [
            _link(name, rates.get(name), [c for c in every if c.link == name], curves_of)
            for name in dict.fromkeys(row["link"] for row in its)
        ]
        links.sort(key=lambda link: (link.bits_per_s is None, link.bits_per_s or 0.0))
        target = its[0]["target_accuracy"] or None
        found.append(Study(label, work, workers, parameters, target, links))
    order = list(dict.fromkeys(study.workload for study in found))
    return sorted(found, key=lambda study: (order.index(study.workload), study.workers))


def _curves(document: Document) -> List[List[Event]]:
    """The curve of every row: they stand in the same order, else they are found by name."""

    def named(item: Document) -> Tuple[str, str, int]:
        return (item["link"], item["method"], item["seed"])

    rows, curves = document["rows"], document["curves"]
    if list(map(named, rows)) == list(map(named, curves)):
        return [curve["points"] for curve in curves]
    by_name = {named(curve): curve["points"] for curve in curves}
    return [by_name.get(named(row), []) for row in rows]


Curves = Dict[Tuple[str, str, int], List[Event]]


def _link(name: str, bits: Optional[float], at_link: List[Cell], curves: Curves) -> Link:
    where = name if bits is None and name != "none" else rate(bits)
    dense = dense_of(at_link)
    made = [_method(cell, dense, curves) for cell in at_link]
    front = _front(made)
    advice = verdict(where, at_link)
    return Link(
        name=name,
        where=where,
        bits_per_s=bits,
        verdict=advice,
        methods=[Method(**{**vars(m), "on_front": m.method in front}) for m in made],
        curves=[
            Curve(row["method"], row["seed"], curves[(name, row["method"], row["seed"])])
            for cell in at_link
            for row in cell.rows
            if curves.get((name, row["method"], row["seed"]))
        ],
        timelines=timeline.of_link(at_link, advice),
    )


def _method(cell: Cell, dense: Optional[Cell], curves: Curves) -> Method:
    first = cell.rows[0]
    name = quantity(first["target_accuracy"])
    mine = estimate(cell.reached(), name) if cell.reached_always() else None
    its = estimate(dense.reached(), name) if dense and dense.reached_always() else None
    if name == "step_ms":
        mine, its = estimate(cell.rows, name), estimate(dense.rows, name) if dense else None
    return Method(
        method=cell.method,
        peer=bool(first.get("peer")),
        dense=cell.method in DENSE,
        exchange=first["exchange"],
        seeds=[row["seed"] for row in cell.rows],
        reached=len(cell.reached()),
        stopped_by=list(dict.fromkeys(str(r["stopped_by"]) for r in cell.rows if r["stopped_by"])),
        seconds_to_target=estimate(cell.reached(), "seconds_to_target"),
        seconds=estimate(cell.rows, "seconds"),
        final_accuracy=estimate(cell.rows, "final_accuracy"),
        accuracy_minus_dense=accuracy_minus(cell, dense),
        step_ms=estimate(cell.rows, "step_ms"),
        compute_ms=mean_of(cell.rows, "compute_ms"),
        exposed_exchange_ms=mean_of(cell.rows, "exposed_exchange_ms"),
        compression_ms=mean_of(cell.rows, "compression_ms"),
        wire_bytes_per_step=mean_of(cell.rows, "wire_bytes_per_step"),
        interface_bytes_per_step=mean_of(cell.rows, "interface_bytes_per_step"),
        bytes_sent=mean_of([{"b": _sent(row, curves)} for row in cell.rows], "b"),
        times_dense=its.mean / mine.mean if mine and its and mine.mean > 0 else None,
        on_front=False,
    )


def _sent(row: Row, curves: Curves) -> Optional[float]:
    """By one worker to the end of the run: as the curve counted, else the steps' mean times steps."""
    points = curves.get((row["link"], row["method"], row["seed"]))
    if points and points[-1].get("bytes"):
        return float(points[-1]["bytes"])
    per_step = row["wire_bytes_per_step"]
    return per_step * row["steps"] if per_step is not None and row["steps"] else None


def _front(methods: Sequence[Method]) -> List[str]:
    """Those that no other is as good as everywhere and better than somewhere: accuracy and seconds at
    the end of the run, bytes to there; without accuracy, the time and bytes of a step."""
    costs = {}
    for m in methods:
        accuracy = m.final_accuracy.mean if m.final_accuracy else None
        if accuracy is not None and m.seconds and m.bytes_sent is not None:
            costs[m.method] = (-accuracy, m.seconds.mean, m.bytes_sent)
        elif accuracy is None and m.step_ms and m.wire_bytes_per_step is not None:
            costs[m.method] = (0.0, m.step_ms.mean, m.wire_bytes_per_step)

    def beaten(mine: Tuple[float, ...]) -> bool:
        return any(
            other != mine and all(o <= c for o, c in zip(other, mine)) for other in costs.values()
        )

    return [name for name, cost in costs.items() if not beaten(cost)]


def _left_out(source: Source) -> List[str]:
    """What a file says itself that it lacks."""
    document = source.document
    budget = document.get("budget")
    found = [
        f"{source.name}: {kind}: {each.get(name) if isinstance(each, dict) else each}"
        for kind, name, items in (
            ("failed", "error", document.get("failures")),
            ("left out", "says", budget.get("left_out") if isinstance(budget, dict) else None),
        )
        for each in (items if isinstance(items, list) else [])
    ]
    ended = document.get("ended")
    if ended and ended != "complete":
        found.insert(0, f"{source.name}: not all that was asked for: {ended}.")
    return found


def _missing(studies: Sequence[Study], predicted: bool, chosen: bool, traced: bool) -> List[str]:
    found = []
    if len({row.workers for row in studies}) < 2:
        found.append(
            "Scaling: one number of workers ran; run others (--workers) and merge the files."
        )
    seeds = {seed for s in studies for link in s.links for m in link.methods for seed in m.seeds}
    if len(seeds) == 1:
        found.append("The luck of the seed: one seed ran (--seeds 3 runs three).")
    methods = [m for study in studies for link in study.links for m in link.methods]
    if any(m.interface_bytes_per_step is None for m in methods):
        found.append("Bytes of the network interface: not counted for some rows (paced links).")
    if any(s.target_accuracy is None for s in studies):
        found.append("Accuracy: some workload has no target; its methods are compared by the step.")
    if not predicted:
        found.append("Predictions: no row can be predicted.")
    if not chosen:
        found.append("Choices of auto: no run of method auto left a log of them.")
    if not traced:
        found.append("The timeline of a step: no row has one, and no trace was given (--trace FILE).")
    return found
