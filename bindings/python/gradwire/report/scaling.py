"""Steps with more workers: measured where they ran, beyond that simulated by gradwire.planner.

The simulation takes from a measured row what a worker computes and compresses, and from the link its
bandwidth. Its model has the bytes of the row's exchange with each number of workers; gradients are
spread evenly over buckets, of the computing a third is forward; each worker has its own processors.
Steps beyond are the model's times measured over model where both are known, so that the two join.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

from gradwire.bench.choices import is_auto
from gradwire.bench.differences import mean_of
from gradwire.bench.summary import Cell, cells
from gradwire.bench.types import Document, Row
from gradwire.report.document import Point, Prediction, Scaling
from gradwire.report.runs import workload_of
from gradwire.report.sources import Source
from gradwire.report.units import rate

MOST_WORKERS = 64
SIMULATED = "gradwire.planner from this row's computing, compression and bytes"
FORMULA = "the exchange's formula"
_MOST_LAYERS = 64

Labelled = Sequence[Tuple[str, Sequence[Source]]]


def scaling(labelled: Labelled) -> Tuple[List[Scaling], List[str]]:
    """For every method and link, and what could not be simulated, with the reason."""
    found: List[Scaling] = []
    reasons: List[str] = []
    for label, group in labelled:
        for (work, link, method), places in _by_method(group).items():
            points = []
            for workers, (document, cell) in sorted(places.items()):
                step, batch = mean_of(cell.rows, "step_ms"), cell.rows[0]["batch_size"]
                if step and batch and workers:
                    model, _ = _simulated(document, cell, workers, workers)
                    points.append(Point(workers, step, _samples(workers, batch, step), False, model))
            if not points:
                continue
            most = points[-1].workers
            document, cell = places[most]
            beyond, reason = _beyond(document, cell, points[-1])
            if reason:
                reasons.append(f"Scaling beyond {most} workers at {_where(cell.rows[0])}: {reason}")
            where = _where(cell.rows[0])
            found.append(Scaling(label, work, link, where, method, points + beyond))
    return found, list(dict.fromkeys(reasons))


def predictions(labelled: Labelled) -> List[Prediction]:
    """What was predicted beside what was measured: bytes by the formula, the step by the planner."""
    found = []
    for label, group in labelled:
        for (work, _, method), places in _by_method(group).items():
            for workers, (document, cell) in sorted(places.items()):
                pairs = [
                    ("bytes per step", "predicted_bytes_per_step", "wire_bytes_per_step", FORMULA)
                ]
                if is_auto(method):  # the formula is of one plan, and this one changes
                    pairs.clear()
                pairs += [("step time, ms", "predicted_step_ms", "step_ms", "the plan of auto")]
                where = _where(cell.rows[0])
                for what, predicted, measured, by in pairs:
                    a, b = mean_of(cell.rows, predicted), mean_of(cell.rows, measured)
                    if a is not None and b is not None:
                        found.append(
                            Prediction(label, work, workers, where, method, what, a, b, by)
                        )
                step, reason = _simulated(document, cell, workers, workers)
                measured_step = mean_of(cell.rows, "step_ms")
                if step is not None and measured_step is not None:
                    found.append(
                        Prediction(
                            label, work, workers, where, method, "step time, ms",
                            step, measured_step, SIMULATED,
                        )
                    )  # fmt: skip
    return found


Places = Dict[int, Tuple[Document, Cell]]


def _by_method(group: Sequence[Source]) -> Dict[Tuple[str, str, str], Places]:
    rows: Dict[Tuple[str, str, str], Dict[int, Tuple[Document, List[Row]]]] = {}
    for source in group:
        for cell in cells(source.document["rows"]):
            for row in cell.rows:
                key = (workload_of(source.document, row), cell.link, cell.method)
                its = rows.setdefault(key, {})
                its.setdefault(int(row["world_size"] or 0), (source.document, []))[1].append(row)
    return {
        key: {n: (doc, Cell(key[1], key[2], each)) for n, (doc, each) in its.items()}
        for key, its in rows.items()
    }


def _where(row: Row) -> str:
    mbit = row["link_mbit_per_s"]
    if mbit is None and row["link"] != "none":
        return str(row["link"])
    return rate(None if mbit is None else mbit * 1e6)


def _samples(workers: int, batch: float, step_ms: float) -> float:
    return workers * batch / step_ms * 1e3


def _beyond(document: Document, cell: Cell, last: Point) -> Tuple[List[Point], Optional[str]]:
    """Steps with more workers than the last measured point has, scaled to it."""
    batch = cell.rows[0]["batch_size"]
    points: List[Point] = []
    workers = 2 ** (math.floor(math.log2(last.workers)) + 1)
    while workers <= MOST_WORKERS:
        model, reason = _simulated(document, cell, last.workers, workers)
        if model is None or not last.model_ms:
            return [], reason
        step = model * last.step_ms / last.model_ms
        points.append(Point(workers, step, _samples(workers, batch, step), True, model))
        workers *= 2
    return points, None


def _simulated(
    document: Document, cell: Cell, measured: int, workers: int
) -> Tuple[Optional[float], Optional[str]]:
    """The step's milliseconds with ``workers``, from a row of ``measured``; or why there is none."""
    row = cell.rows[0]
    if is_auto(cell.method):
        return None, f"not simulated for {cell.method}, whose steps hold trials and whose plan changes."
    compute, bytes_ = mean_of(cell.rows, "compute_ms"), mean_of(cell.rows, "wire_bytes_per_step")
    if row["link_mbit_per_s"] is None:
        return None, "not simulated, since the rate of the link is not known."
    if row.get("peer") or not row["parameters"] or not compute or not bytes_ or measured < 2:
        return None, None
    try:
        from gradwire import planner
    except ImportError as error:
        return None, f"not simulated ({error})."
    settings = document["settings"]
    bits = row["link_mbit_per_s"] * 1e6
    dense = 2 * (workers - 1) / workers * 4 * row["parameters"]
    sent = bytes_ * _growth(row["exchange"], measured, workers)
    cluster = planner.Cluster(workers=workers, bytes_per_s=bits / 8, compression=dense / sent)
    schedule = "wfbp" if settings.get("overlap", True) else "bsp"
    try:
        answer = planner.simulate(_profile(document, cell, compute), cluster, schedule)
    except (
        Exception
    ) as error:  # a build without the planner, or values it refuses: said, not hidden
        return None, f"not simulated ({' '.join(str(error).split())})."
    return 1e3 * float(answer["step_s"]), None


def _growth(exchange: Optional[str], measured: int, workers: int) -> float:
    """Bytes that a rank sends with ``workers``, over those it sent with ``measured``."""
    if exchange == "gather":
        return (workers - 1) / (measured - 1)
    if exchange == "gtopk":
        return math.log2(workers) / math.log2(measured)
    return (workers - 1) / workers / ((measured - 1) / measured)


def _profile(document: Document, cell: Cell, compute_ms: float) -> str:
    row = cell.rows[0]
    bucket_bytes = 1024 * float(document["settings"].get("bucket_kib") or 1024)
    numel = int(row["parameters"])
    count = min(max(1, round(4 * numel / bucket_bytes)), _MOST_LAYERS, numel)
    compress = (mean_of(cell.rows, "compression_ms") or 0.0) / 1e3 / count
    seconds = compute_ms / 1e3 / count
    layers: List[Dict[str, Any]] = [
        {
            "name": f"bucket {i}",
            "numel": numel * (i + 1) // count - numel * i // count,
            "forward_s": seconds / 3,
            "backward_s": seconds * 2 / 3,
            "compress_s": compress,
        }
        for i in range(count)
    ]
    step = {"measured_s": (mean_of(cell.rows, "step_ms") or compute_ms) / 1e3}
    return json.dumps(
        {"format": "gradwire.profile", "version": 1, "model": "measured", "batch": 1,
         "ranks": 1, "step": step, "layers": layers}
    )  # fmt: skip
