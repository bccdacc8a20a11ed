"""By how much runs differ, method by method, with 95% intervals."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from gradwire.bench.differences import difference, estimate
from gradwire.bench.types import Row
from gradwire.report.document import Compared, Comparison
from gradwire.report.runs import unlike, workload_of
from gradwire.report.sources import Source
from gradwire.report.units import rate

Labelled = Sequence[Tuple[str, Sequence[Source]]]
Place = Tuple[str, int, str, str]  # workload, workers, link, method
MOST_NAMED = 4  # differences in a sentence
QUANTITIES = {
    "seconds_to_target": "seconds to the target",
    "step_ms": "step, ms",
    "final_accuracy": "final accuracy",
    "wire_bytes_per_step": "bytes per step",
}


def comparisons(labelled: Labelled) -> List[Comparison]:
    """Of every run with the first."""
    if not labelled:
        return []
    base_label, base = labelled[0]
    return [_comparison(base_label, base, label, group) for label, group in labelled[1:]]


def _comparison(
    base_label: str, base: Sequence[Source], label: str, group: Sequence[Source]
) -> Comparison:
    one, other = _by_place(base), _by_place(group)
    rows = [
        compared
        for place in one
        if place in other
        for compared in _compared(place, one[place], other[place])
    ]
    return Comparison(
        base=base_label,
        run=label,
        verdict=_verdict(base_label, label, rows),
        unlike=_unlike(base, group),
        rows=rows,
        only_base=[_told(place) for place in one if place not in other],
        only_run=[_told(place) for place in other if place not in one],
    )


def _by_place(group: Sequence[Source]) -> Dict[Place, List[Row]]:
    found: Dict[Place, List[Row]] = {}
    for source in group:
        for row in source.document["rows"]:
            work, workers = workload_of(source.document, row), int(row["world_size"] or 0)
            found.setdefault((work, workers, row["link"], row["method"]), []).append(row)
    return found


def _compared(place: Place, base: List[Row], run: List[Row]) -> List[Compared]:
    work, workers, link, method = place
    # Accuracies at the target are all about the target: compare those of equal epochs alone.
    early = any(row["stopped_by"] in ("target", "time budget") for row in base + run)
    found = []
    for name in QUANTITIES:
        if name == "final_accuracy" and early:
            continue
        a, b = estimate(base, name), estimate(run, name)
        gap = difference(run, base, name)
        if a is None or b is None or gap is None:
            continue
        found.append(
            Compared(
                workload=work,
                workers=workers,
                where=_where(link, base[0]),
                method=method,
                quantity=QUANTITIES[name],
                base=a,
                other=b,
                difference=gap.mean,
                half_width=gap.half_width,
                basis=gap.basis,
                beyond=gap.beyond(),
            )
        )
    return found


def _where(link: str, row: Row) -> str:
    mbit = row["link_mbit_per_s"]
    return link if mbit is None and link != "none" else rate(None if mbit is None else mbit * 1e6)


def _told(place: Place) -> str:
    work, workers, link, method = place
    return f"{work}, {workers} workers, link {link}: {method}"


def _unlike(base: Sequence[Source], group: Sequence[Source]) -> List[str]:
    """Settings of the first pair of files that trained the same."""
    for a in base:
        for b in group:
            if workload_of(a.document) == workload_of(b.document):
                return unlike(a.document, b.document)
    return ["workload: no two files trained the same"]


def _verdict(base: str, run: str, rows: Sequence[Compared]) -> str:
    known = [row for row in rows if row.half_width is not None]
    differing = [row for row in known if row.beyond]
    if not rows:
        return f"{run} and {base} have no method on the same link in common: nothing to compare."
    if not known:
        return f"{run} and {base}: no interval is known, so nothing can be said (run more seeds)."
    if not differing:
        return (
            f"{run} and {base}: no difference beyond its intervals "
            f"({len(known)} differences of {len({r.method for r in known})} methods)."
        )
    differing.sort(key=lambda row: -abs(row.difference / row.base.mean) if row.base.mean else 0.0)
    named = "; ".join(_changed(row) for row in differing[:MOST_NAMED])
    if len(differing) > MOST_NAMED:
        named += f"; {len(differing) - MOST_NAMED} more are marked in the table"
    by_chance = 0.05 * sum(1 for row in known if row.half_width)
    return (
        f"{run} differs from {base} beyond the intervals in {len(differing)} of {len(known)}: "
        f"{named}. Where nothing differs, about {by_chance:.1f} would by chance alone."
    )


def _changed(row: Compared) -> str:
    where = f"{row.method} at {row.where}, {row.quantity}"
    if not row.base.mean:
        return f"{where} {row.difference:+.3g}"
    return f"{where} {100 * row.difference / row.base.mean:+.1f}%"
