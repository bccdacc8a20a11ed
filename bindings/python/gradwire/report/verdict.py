"""What a link's rows advise, in a sentence."""

from __future__ import annotations

import math
from typing import List, Optional

from gradwire.bench.differences import Difference, Estimate, difference, estimate
from gradwire.bench.summary import BASELINE, Cell, split_missed
from gradwire.report.document import Verdict
from gradwire.report.units import UNSHAPED, percent, plus_minus, times

DENSE = (BASELINE, "ddp")  # methods that send gradients as they are
MOST_NAMED = 3  # methods in a sentence
ONE_SEED = "One seed: the intervals cover the step time alone, not the luck of the seed."


def label(method: str) -> str:
    """A method as sentences name it."""
    return "no compression" if method == BASELINE else method


def at(where: str) -> str:
    """The beginning of a sentence about a link."""
    return f"On {where}" if where == UNSHAPED else f"At {where}"


def quantity(target: Optional[float]) -> str:
    """What decides: the time to the target, or where there is none the time of a step."""
    return "seconds_to_target" if target else "step_ms"


def dense_of(cells: List[Cell]) -> Optional[Cell]:
    """The cell that compression is compared with: ``none``, else DDP's own."""
    by_name = {cell.method: cell for cell in cells}
    return next((by_name[name] for name in DENSE if name in by_name), None)


def verdict(where: str, cells: List[Cell]) -> Verdict:
    """:param cells: of one link, not empty."""
    target: Optional[float] = cells[0].rows[0]["target_accuracy"]
    name = quantity(target)
    known = [c for c in cells if (c.reached_always() if target else estimate(c.rows, name))]
    if not known:
        return _nobody(where, cells, target)
    dense = dense_of(cells)
    # The step alone would advise whatever sends least: who has learnt less than dense is out.
    worse = [] if target else [c for c in known if _is_worse(accuracy_minus(c, dense))]
    known = [c for c in known if c not in worse]
    ranked = sorted(known, key=lambda cell: _of(cell, name).mean)
    best = ranked[0]
    tied = [best] + [c for c in ranked[1:] if not _slower(c, best, name)]
    one_seed = any(_of(cell, name).count == 1 for cell in tied + ranked[:2])
    note = ONE_SEED if one_seed else "Student's t at 95% over seeds."
    note += _learnt(best, dense)
    if worse:
        note += f" Left out, since they end less accurate than dense: {', '.join(c.method for c in worse)}."
    missed = [cell for cell in cells if cell not in known] if target else []
    slow, cut = split_missed(missed)
    if slow:
        note += f" Not reached with every seed: {', '.join(slow)}."
    if cut:
        note += f" Stopped by the time budget before they reached it: {', '.join(cut)}."
    if all(cell.method in DENSE for cell in tied):
        return Verdict("do not compress", [best.method], _no(where, best, ranked, target), note)
    if any(cell.method in DENSE for cell in tied):
        # The first, those that are dense, and as many others as a sentence holds.
        told = [c for i, c in enumerate(tied) if i < MOST_NAMED or c.method in DENSE]
        named = ", ".join(f"{label(c.method)} ({_amount(c, target)})" for c in told)
        if len(tied) > len(told):
            named += f" and {len(tied) - len(told)} more"
        text = (
            f"{at(where)} it is too close to call: {named} differ by less than their intervals, "
            "so nothing shows that compression pays here."
        )
        return Verdict("too close to call", [cell.method for cell in tied], text, note)
    return Verdict(
        "compress", [cell.method for cell in tied], _yes(where, tied, ranked, dense, target), note
    )


def accuracy_minus(cell: Cell, dense: Optional[Cell]) -> Optional[Difference]:
    """Final accuracy minus dense's, where neither stopped before its last epoch; None: not known."""
    if dense is None or cell is dense:
        return None
    if any(row["stopped_by"] in ("target", "time budget") for row in cell.rows + dense.rows):
        return None
    return difference(cell.rows, dense.rows, "final_accuracy")


def _is_worse(found: Optional[Difference]) -> bool:
    return found is not None and found.beyond() and found.mean < 0


def _learnt(cell: Cell, dense: Optional[Cell]) -> str:
    found = accuracy_minus(cell, dense)
    if found is None or found.half_width is None:
        return ""
    points = plus_minus(found.mean, found.half_width, 100)
    known = (
        "which is beyond its interval" if found.beyond() else "no difference beyond its interval"
    )
    return f" {cell.method} ends {points} points of accuracy from dense at equal epochs, {known}."


def _of(cell: Cell, name: str) -> Estimate:
    rows = cell.reached() if name == "seconds_to_target" else cell.rows
    found = estimate(rows, name)
    assert found is not None
    return found


def _slower(cell: Cell, best: Cell, name: str) -> bool:
    found = difference(cell.rows, best.rows, name)
    return found is not None and found.beyond()


def _amount(cell: Cell, target: Optional[float]) -> str:
    found = _of(cell, quantity(target))
    unit = "s" if target else "ms"
    return f"{plus_minus(found.mean, found.half_width)} {unit}"


def _after(cell: Cell, target: Optional[float]) -> str:
    amount = _amount(cell, target)
    return f"{percent(target)} accuracy after {amount}" if target else f"a step takes {amount}"


def _ratio(slow: Cell, fast: Cell, target: Optional[float]) -> str:
    name = quantity(target)
    least = _of(fast, name).mean
    return times(_of(slow, name).mean / least if least > 0 else math.inf)


def _no(where: str, best: Cell, ranked: List[Cell], target: Optional[float]) -> str:
    text = f"{at(where)} do not compress: {_after(best, target)}"
    lossy = [cell for cell in ranked if cell.method not in DENSE]
    if lossy:
        text += (
            f"; the best that compresses, {lossy[0].method}, takes {_ratio(lossy[0], best, target)} "
            f"times as long ({_amount(lossy[0], target)})"
        )
    else:
        text += "; no method that compresses " + ("reached it" if target else "was measured")
    return text + "."


def _yes(
    where: str, tied: List[Cell], ranked: List[Cell], dense: Optional[Cell], target: Optional[float]
) -> str:
    best = tied[0]
    names = " or ".join(cell.method for cell in tied[:MOST_NAMED])
    if len(tied) > MOST_NAMED:
        names += f" or {len(tied) - MOST_NAMED} more"
    text = f"{at(where)} take {names}"
    text += ", too close to call between them: " if len(tied) > 1 else ": "
    text += _after(best, target)
    if dense is None:
        text += "; whether compressing pays is not known, since none was not measured here"
    elif dense in ranked:
        word = "sooner" if target else "faster"
        text += f", {_ratio(dense, best, target)} times {word} than without compression"
        text += f" ({_amount(dense, target)})"
    else:
        text += "; without compression it was not reached in the time there was"
    others = [c for c in ranked if c not in tied and c.method not in DENSE]
    if others:
        text += f"; next is {others[0].method}, {_ratio(others[0], best, target)} times as long"
    return text + "."


def _nobody(where: str, cells: List[Cell], target: Optional[float]) -> Verdict:
    known = [cell for cell in cells if cell.mean("best_accuracy") is not None]
    if target is None or not known:
        text = f"{at(where)} nothing was measured that could be compared."
        return Verdict("not measured", [], text, "")
    best = max(known, key=lambda cell: cell.mean("best_accuracy") or 0.0)
    text = (
        f"{at(where)} no method reached {percent(target)} with every seed; the highest accuracy is "
        f"{percent(best.mean('best_accuracy') or 0.0, 2)}, by {label(best.method)}"
    )
    steps = [cell for cell in cells if estimate(cell.rows, "step_ms")]
    if steps:
        fast = min(steps, key=lambda cell: _of(cell, "step_ms").mean)
        text += f"; the fastest step is that of {label(fast.method)}, {_amount(fast, None)}"
    return Verdict("not reached", [], text + ".", "")
