"""What the rows say: a table of method x link, and for each link which method is fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from gradwire.bench import choices, differences
from gradwire.bench.differences import estimate
from gradwire.bench.intervals import Interval, mean, mean_interval
from gradwire.bench.types import Row

BASELINE = "none"


@dataclass(frozen=True)
class Cell:
    """The rows of one method on one link, one per seed."""

    link: str
    method: str
    rows: List[Row]

    def mean(self, name: str) -> Optional[float]:
        return mean([row[name] for row in self.rows])

    def interval(self, name: str) -> Optional[Interval]:
        return mean_interval([row[name] for row in self.rows])

    def reached(self) -> List[Row]:
        return [row for row in self.rows if row["seconds_to_target"] is not None]

    def cut_short(self) -> bool:
        """Whether a time budget ended one of its runs, which says nothing against the method."""
        return any(row.get("stopped_by") == "time budget" for row in self.rows)

    def reached_always(self) -> bool:
        return len(self.reached()) == len(self.rows) > 0

    def seconds(self) -> Interval:
        """To the target, over the seeds that reached it, of which there must be one.

        With one seed the interval is that of the step time alone: steps x its half width.
        """
        found = estimate(self.reached(), "seconds_to_target")
        assert found is not None
        return Interval(found.mean, found.half_width or 0.0, found.count)


def split_missed(cells: Sequence[Cell]) -> Tuple[List[str], List[str]]:
    """Methods that missed the target: those that trained to the end, and those that a time budget
    stopped before."""
    cut = [cell.method for cell in cells if cell.cut_short()]
    return [cell.method for cell in cells if not cell.cut_short()], cut


def cells(rows: Sequence[Row]) -> List[Cell]:
    """In the order in which links and methods first appear."""
    links = list(dict.fromkeys(row["link"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    grouped = [
        Cell(link, method, [r for r in rows if (r["link"], r["method"]) == (link, method)])
        for link in links
        for method in methods
    ]
    return [cell for cell in grouped if cell.rows]


def difference(slow: Cell, fast: Cell) -> Interval:
    """Seconds to the target, slow minus fast: paired by seed where there are several."""
    found = differences.difference(slow.reached(), fast.reached(), "seconds_to_target")
    assert found is not None
    return Interval(found.mean, found.half_width or 0.0, found.count)


def accuracy_differences(rows: Sequence[Row]) -> List[Row]:
    """Final accuracy minus that of no compression with the same link and seed, in points."""
    found = []
    for cell in cells(rows):
        dense = {
            row["seed"]: row["final_accuracy"]
            for row in rows
            if row["link"] == cell.link and row["method"] == BASELINE
        }
        pairs = [
            100 * (row["final_accuracy"] - dense[row["seed"]])
            for row in cell.rows
            if row["final_accuracy"] is not None and dense.get(row["seed"]) is not None
        ]
        interval = mean_interval(pairs)
        if cell.method != BASELINE and interval:
            found.append(
                {
                    "link": cell.link,
                    "method": cell.method,
                    "points": interval.mean,
                    "half_width": interval.half_width,
                    "seeds": interval.count,
                }
            )
    return found


def equal_epochs(rows: Sequence[Row]) -> int:
    """The last epoch at whose end every row was evaluated; 0: there is none."""
    every = [row.get("accuracy_by_epoch", []) for row in rows]
    complete = min(map(len, every), default=0)
    known = [e for e in range(1, complete + 1) if all(found[e - 1] is not None for found in every)]
    return max(known, default=0)


def accuracy_at(rows: Sequence[Row], epoch: int) -> List[Row]:
    """Of each row, at the end of an epoch that equal_epochs() has named."""
    return [
        dict(
            {name: row[name] for name in ("link", "method", "seed")},
            accuracy=row["accuracy_by_epoch"][epoch - 1],
        )
        for row in rows
        if epoch > 0
    ]


def sentences(rows: Sequence[Row]) -> List[str]:
    """One for each link, and one for each run of auto there that was too short to choose."""
    every = cells(rows)
    found = []
    for link in dict.fromkeys(cell.link for cell in every):
        at_link = [cell for cell in every if cell.link == link]
        found.append(_sentence(link, at_link))
        too_short = filter(None, (choices.sentence(cell.rows) for cell in at_link))
        found += [f"{_where(link)}: {text}." for text in too_short]
    return found


def _where(link: str) -> str:
    return "unshaped" if link == "none" else link


def _sentence(link: str, at_link: List[Cell]) -> str:
    where = _where(link)
    target = at_link[0].rows[0]["target_accuracy"]
    if target is None:
        return _fastest_step(where, at_link)
    ranked = sorted(
        (cell for cell in at_link if cell.reached_always()), key=lambda cell: cell.seconds().mean
    )
    if not ranked:
        return _nobody(where, at_link, target)
    best = ranked[0]
    text = f"{where}: {_label(best)} reaches {target:g} first, after {_pm(best.seconds())} s"
    for other in ranked[1:2] + [c for c in ranked[2:] if c.method == BASELINE]:
        text += "; " + _comparison(other, best)
    slow, cut = split_missed([cell for cell in at_link if not cell.reached_always()])
    if slow:
        text += f"; not reached (with every seed) by {', '.join(slow)}"
    if cut:
        text += f"; stopped by the time budget before it: {', '.join(cut)}"
    if len(best.rows) == 1:
        text += ". One seed: the intervals cover the step time alone"
    return text + "."


def _comparison(other: Cell, best: Cell) -> str:
    gap = difference(other, best)
    ratio = other.seconds().mean / best.seconds().mean if best.seconds().mean > 0 else math.inf
    verdict = (
        f"{ratio:.1f} times as long"
        if gap.excludes_zero()
        else f"the difference {_pm(gap)} s is within the interval, so neither is faster"
    )
    return f"{_label(other)} takes {_pm(other.seconds())} s ({verdict})"


def _fastest_step(where: str, at_link: List[Cell]) -> str:
    known = [cell for cell in at_link if cell.mean("step_ms") is not None]
    if not known:
        return f"{where}: no step was measured."
    best = min(known, key=lambda cell: cell.mean("step_ms") or 0.0)
    return f"{where}: {_label(best)} has the fastest step, {best.mean('step_ms'):.2f} ms."


def _nobody(where: str, at_link: List[Cell], target: float) -> str:
    known = [cell for cell in at_link if cell.mean("best_accuracy") is not None]
    if not known:
        return f"{where}: no method was evaluated."
    best = max(known, key=lambda cell: cell.mean("best_accuracy") or 0.0)
    return (
        f"{where}: no method reached {target:g} with every seed; the highest accuracy is "
        f"{best.mean('best_accuracy'):.4f}, by {_label(best)}."
    )


def _label(cell: Cell) -> str:
    return "no compression" if cell.method == BASELINE else cell.method


def _pm(interval: Interval) -> str:
    return f"{interval.mean:.2f} ± {interval.half_width:.2f}"


def table(rows: Sequence[Row]) -> str:
    """Aligned text, one line per link and method; with several seeds means and 95% intervals."""
    if not rows:
        return "no rows"
    target = rows[0]["target_accuracy"]
    head = ["link", "method", f"s to {target:g}" if target else "s", "accuracy", "ms/step"]
    head += ["compute", "exchange", "compression", "bytes/step", "interface"]
    body = [_line(cell) for cell in cells(rows)]
    epoch = equal_epochs(rows)
    if epoch > 0:  # where nobody stops early it may be that of "accuracy"
        head.insert(4, f"epoch {epoch}")
        equal = cells(accuracy_at(rows, epoch))
        for line, cell in zip(body, equal):
            line.insert(4, _number(cell, "accuracy", 4, len(cell.rows) > 1))
    widths = [max(len(line[i]) for line in [head] + body) for i in range(len(head))]
    lines = [
        "  ".join(
            text.ljust(width) if i < 2 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in [head] + body
    ]
    return "\n".join([lines[0], "-" * len(lines[0])] + lines[1:])


TABLE_NOTE = (
    "seconds are training time, without start-up and evaluation; accuracy is that of the last "
    "evaluation, epoch N that at the end of the last epoch which all have; exchange is the part not "
    "hidden behind backward; bytes are sent per worker and step, as counted by the transport and by "
    "the network interface"
)


def _line(cell: Cell) -> List[str]:
    several = len(cell.rows) > 1
    return [
        cell.link,
        f"{cell.method} (peer)" if cell.rows[0].get("peer") else cell.method,
        _seconds_text(cell, several),
        _number(cell, "final_accuracy", 4, several),
        _number(cell, "step_ms", 2, several),
        _number(cell, "compute_ms", 2, False),
        _number(cell, "exposed_exchange_ms", 2, False),
        _number(cell, "compression_ms", 2, False),
        _count(cell.mean("wire_bytes_per_step")),
        _count(cell.mean("interface_bytes_per_step")),
    ]


def _seconds_text(cell: Cell, several: bool) -> str:
    if cell.rows[0]["target_accuracy"] is None:
        return _number(cell, "seconds", 2, several)
    if not cell.reached():
        return "not reached"
    known = mean([row["seconds_to_target"] for row in cell.reached()])
    if not several:
        return f"{known:.2f}"
    if not cell.reached_always():
        return f"{known:.2f} ({len(cell.reached())} of {len(cell.rows)})"
    return _pm(cell.seconds())


def _number(cell: Cell, name: str, digits: int, several: bool) -> str:
    value = cell.mean(name)
    if value is None:
        return "-"
    interval = cell.interval(name) if several else None
    text = f"{value:.{digits}f}"
    return f"{text} ± {interval.half_width:.{digits}f}" if interval else text


def _count(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:,.0f}"
