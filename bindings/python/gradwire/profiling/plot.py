"""The stalls of a job as an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

from gradwire.bench.errors import RunError, UsageError
from gradwire.drawing import COLOURS

__all__ = ["write_plot"]

_NAMES = {"one_gpu": "one worker", "all_gpus": "all workers", "cold_data": "nothing cached",
          "cached_data": "cached", "two_hosts": "two hosts"}  # fmt: skip


def write_plot(document: Dict[str, Any], path: Path) -> None:
    """A bar of milliseconds a step for each run and for each stall that is known.

    :raises UsageError: matplotlib knows no format of this name.
    :raises RunError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    runs = [(row["run"], row["step_s"]) for row in document["runs"] if row["step_s"] is not None]
    stalls = [(name, row["step_s"]) for name, row in document["stalls"].items()]
    figure: Any = Figure(figsize=(9, 3.2), layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, bars, title, colour in (
        (panels[0], runs, "runs", COLOURS[1]), (panels[1], stalls, "stalls", COLOURS[2]),
    ):  # fmt: skip
        names = [_NAMES.get(name, name) for name, _ in bars]
        drawn = panel.barh(names, [1e3 * seconds for _, seconds in bars], color=colour)
        panel.bar_label(drawn, fmt="%.1f", padding=3)
        panel.invert_yaxis()
        panel.margins(x=0.15)
        panel.set_title(title)
        panel.set_xlabel("milliseconds a step")
    figure.suptitle(f"{document['model']}, batch {document['batch']}, {document['workers']} workers")
    try:
        figure.savefig(path)
    except ValueError as error:
        raise UsageError(f"--plot {path}: {error}") from error
    except OSError as error:
        raise RunError(f"--plot {path}: {error.strerror or error}") from error
