"""One table of the final accuracies in several reports of `gradwire bench`.

    gradwire bench --links none --stop-at-target 0 --seeds 10 --methods "none;int4" --json a.json
    gradwire bench --links none --stop-at-target 0 --seeds 10 --methods "1bit;ternary" --json b.json
    python bench/convergence.py a.json b.json

Methods are compared with `none` seed by seed, wherever its rows are: a run depends on its seed and not on
what ran beside it. The reports must be of one job: the same model, data, epochs and workers.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Dict, List

from gradwire.bench import summary

# Settings that decide where training ends.
SAME = ("data", "workers", "hidden", "optimizer", "learning_rate", "schedule", "warmup_steps",
        "batch_size", "epochs", "max_steps", "bucket_kib", "exchange", "stop_at_target")  # fmt: skip


def read(files: List[Path]) -> List[Dict[str, Any]]:
    """The rows of all reports; one job's, or SystemExit."""
    rows: List[Dict[str, Any]] = []
    first: Dict[str, Any] = {}
    for file in files:
        report = json.loads(file.read_text())
        settings = {name: report["settings"][name] for name in SAME}
        if report["settings"]["stop_at_target"]:
            sys.exit(f"{file}: runs stopped at their target, expected --stop-at-target 0")
        first = first or settings
        for name in SAME:
            if settings[name] != first[name]:
                sys.exit(f"{file}: {name} is {settings[name]}, in {files[0]} it is {first[name]}")
        rows += report["rows"]
    return rows


def lines(rows: List[Dict[str, Any]]) -> List[str]:
    """A Markdown table: one line per method, with 95% intervals over its seeds."""
    differences = {found["method"]: found for found in summary.accuracy_differences(rows)}
    table = ["| method | seeds | accuracy | minus `none`, points | bytes/step |", "|---|---|---|---|---|"]
    for cell in summary.cells(rows):
        accuracy, interval = cell.mean("final_accuracy"), cell.interval("final_accuracy")
        found = differences.get(cell.method)
        table.append(
            f"| `{cell.method}` | {len(cell.rows)} | {accuracy:.4f}"
            + (f" ± {interval.half_width:.4f}" if interval else "")
            + " | "
            + (f"{found['points']:+.2f} ± {found['half_width']:.2f}" if found else "")
            + f" | {cell.mean('wire_bytes_per_step'):,.0f} |"
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path, metavar="FILE")
    print("\n".join(lines(read(parser.parse_args().reports))))


if __name__ == "__main__":
    main()
