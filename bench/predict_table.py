"""How well predictions meet measurements: intervals, errors, the order of plans; as a table."""

import itertools
import statistics
from typing import Callable, List, Optional, Sequence, Tuple

from text_table import print_table

from gradwire.bench.intervals import median_interval

Interval = Tuple[float, float]


def kendall_tau(
    predicted: Sequence[float], measured: Sequence[float], intervals: Sequence[Interval],
    comparable: Callable[[int, int], bool] = lambda i, j: True,
) -> Tuple[Optional[float], int]:
    """(agreeing - disagreeing pairs) / pairs, over pairs whose intervals do not overlap, and how many
    those are. None: there is no such pair. Equal predictions of such a pair count as neither."""
    score = pairs = 0
    for i, j in itertools.combinations(range(len(measured)), 2):
        (low_i, high_i), (low_j, high_j) = intervals[i], intervals[j]
        if not comparable(i, j) or (low_i <= high_j and low_j <= high_i):
            continue
        pairs += 1
        difference = (predicted[i] - predicted[j]) * (measured[i] - measured[j])
        score += (difference > 0) - (difference < 0)
    return (score / pairs if pairs else None), pairs


def summary(rows: List[dict]) -> dict:
    """Of rows with predicted_s, measured_s, interval_s and what they are of."""
    errors = [abs(row["error"]) for row in rows]
    columns = [[row[key] for row in rows] for key in ("predicted_s", "measured_s", "interval_s")]

    def same_job(i: int, j: int) -> bool:
        return all(rows[i][key] == rows[j][key] for key in ("model", "batch", "link", "ranks"))

    over_all, pairs = kendall_tau(*columns)
    within, pairs_within = kendall_tau(*columns, comparable=same_job)
    unseen = [abs(row["error"]) for row in rows if not (row["profiled"] and row["probed"])]
    return {
        "combinations": len(rows),
        "mean_error": statistics.fmean(errors),
        "largest_error": max(errors),
        "unseen_combinations": len(unseen),
        "mean_error_unseen": statistics.fmean(unseen) if unseen else None,
        "kendall_tau": over_all,
        "pairs": pairs,
        "kendall_tau_within_jobs": within,
        "pairs_within_jobs": pairs_within,
    }


def row_of(case: dict, predicted_s: float, steps_s: Sequence[float], seen: Tuple[bool, bool]) -> dict:
    """One combination; `seen`: whether its number of ranks was profiled, its link probed there."""
    measured = statistics.median(steps_s)
    return {
        **case, "predicted_s": predicted_s, "measured_s": measured,
        "interval_s": median_interval(steps_s) or (min(steps_s), max(steps_s)), "steps": len(steps_s),
        "error": predicted_s / measured - 1, "profiled": seen[0], "probed": seen[1],
    }


def show(rows: List[dict], markdown: bool) -> None:
    """The table and what follows from it."""
    head = ["model", "batch", "method", "link", "ranks", "predicted ms", "measured ms",
            "95% interval", "steps", "error", "never seen"]
    body = []
    for row in rows:
        low, high = row["interval_s"]
        unseen = [name for name in ("profiled", "probed") if not row[name]]
        body.append([
            row["model"], str(row["batch"]), row["method"], row["link"], str(row["ranks"]),
            f"{1e3 * row['predicted_s']:.1f}", f"{1e3 * row['measured_s']:.1f}",
            f"{1e3 * low:.1f} .. {1e3 * high:.1f}", str(row["steps"]), f"{row['error']:+.1%}",
            " ".join({"profiled": "ranks", "probed": "link"}[name] for name in unseen)])
    print_table(head, body, markdown)
    found = summary(rows)
    print(f"\n{found['combinations']} combinations: mean error {found['mean_error']:.1%}, largest "
          f"{found['largest_error']:.1%}")
    if found["unseen_combinations"]:
        print(f"{found['unseen_combinations']} of them on a number of ranks or a link that nobody "
              f"measured: mean error {found['mean_error_unseen']:.1%}")
    for tau, pairs, which in ((found["kendall_tau"], found["pairs"], "of all combinations"),
                              (found["kendall_tau_within_jobs"], found["pairs_within_jobs"],
                               "of methods for one job")):
        if tau is not None:
            print(f"Kendall's tau {tau:.3f} over the {pairs} pairs {which} whose intervals do not overlap")


def show_sharing(rows: List[dict], markdown: bool) -> None:
    """What exchanges take alone, of the processor, and beside ranks that compute."""
    head = ["ranks", "link", "elements", "alone ms", "processor ms", "beside computing ms", "by the rule ms",
            "error"]
    print()
    print_table(head, [
        [str(row["ranks"]), row["link"], str(row["numel"]),
         *(f"{1e3 * row[key]:.2f}" for key in ("alone_s", "cpu_s", "beside_s", "predicted_s")),
         f"{row['error']:+.0%}"] for row in rows], markdown)
