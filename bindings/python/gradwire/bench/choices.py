"""How far method ``auto`` had come when its run ended: of a choice that was not made nothing is known."""

from __future__ import annotations

from typing import Optional, Sequence

from gradwire.bench.types import Row

# Decisions behind which plans are tried; behind all others one is in force (planner/decision.h).
TRYING = ("begin", "predict", "time", "drop", "retry")
_TIMING = ("predict", "time", "retry")


def is_auto(method: str) -> bool:
    """Whether the method chooses its plan while it runs: auto, auto:window=10."""
    return method.partition(":")[0] == "auto"


def unfinished(whats: Sequence[str]) -> Optional[str]:
    """What auto was doing at the end of a log.

    :param whats: ``what`` of each decision, in order; none were made in the first steps.
    :return: such as "timing plans"; None where a plan had been chosen and was in force.
    """
    if whats and whats[-1] not in TRYING:
        return None
    timing = any(what in _TIMING for what in whats)
    return "timing plans" if timing else "measuring its first steps"


def sentence(rows: Sequence[Row]) -> str:
    """Of one method's rows: which ended before auto had chosen, and what that means; "" where none."""
    doing = [
        found
        for row in rows
        if is_auto(row["method"])
        for found in [unfinished([str(each.get("what")) for each in row.get("decisions", [])])]
        if found
    ]
    if not doing:
        return ""
    runs = "the run" if len(rows) == 1 else f"{len(doing)} of {len(rows)} runs"
    what = " or ".join(dict.fromkeys(doing))
    return (
        f"{rows[0]['method']}: {runs} ended while auto was still {what}, so its time is that of trials "
        "and not of a choice: more steps are needed"
    )
