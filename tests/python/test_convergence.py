"""bench/convergence.py: several reports become one table, and reports of different jobs none."""

import importlib.util
import json

import bench_support
import pytest

_spec = importlib.util.spec_from_file_location(
    "convergence", bench_support.ROOT / "bench" / "convergence.py"
)
convergence = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(convergence)


def report(path, rows, **settings):
    values = dict.fromkeys(convergence.SAME, 1) | {"stop_at_target": False} | settings
    made = [
        dict(
            method=method,
            link="none",
            seed=seed,
            final_accuracy=accuracy,
            wire_bytes_per_step=1234567.0,
        )
        for method, seed, accuracy in rows
    ]
    path.write_text(json.dumps({"settings": values, "rows": made}))
    return path


def test_methods_are_paired_with_the_baseline_of_another_report(tmp_path):
    one = report(tmp_path / "one.json", [("none", 1, 0.90), ("none", 2, 0.80)])
    two = report(tmp_path / "two.json", [("int4", 2, 0.79), ("int4", 1, 0.89)])
    table = convergence.lines(convergence.read([one, two]))
    # Seeds differ by 10 points, the methods by 1 in each.
    assert table[2].startswith("| `none` | 2 | 0.8500 ± ")
    assert table[3].startswith("| `int4` | 2 | 0.8400 ± ")
    assert table[3].endswith("| -1.00 ± 0.00 | 1,234,567 |")


@pytest.mark.parametrize("other", [{"epochs": 2}, {"stop_at_target": True}])
def test_reports_of_different_jobs_are_refused(tmp_path, other):
    one = report(tmp_path / "one.json", [("none", 1, 0.9)])
    two = report(tmp_path / "two.json", [("int4", 1, 0.9)], **other)
    with pytest.raises(SystemExit, match="two.json"):
        convergence.read([one, two])
