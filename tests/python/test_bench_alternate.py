"""bench/alternate.py: two trees by turns, and what their times say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
# Writes the times that lie in its folder, one set for each call, and notes who was called when.
COMMAND = """
import json, pathlib, sys
here = pathlib.Path.cwd()
log = here.parent / "log"
with log.open("a") as file:
    file.write(here.name + "\\n")
calls = log.read_text().split().count(here.name)
times = json.loads((here / "times.json").read_text())
rows = [{"operation": name, "ms": each[(calls - 1) % len(each)]} for name, each in times.items()]
pathlib.Path(sys.argv[1]).write_text(json.dumps({"rows": rows}))
"""


@pytest.fixture(scope="module")
def alternate():
    sys.path.insert(0, str(BENCH))
    try:
        import alternate
    finally:
        sys.path.remove(str(BENCH))
    return alternate


def run(folder, old, new, rounds=15):
    for name, times in (("old", old), ("new", new)):
        (folder / name).mkdir()
        (folder / name / "times.json").write_text(json.dumps(times))
    (folder / "command.py").write_text(COMMAND)
    done = subprocess.run([sys.executable, BENCH / "alternate.py", folder / "old", folder / "new", "--rounds",
                           str(rounds), "--json", folder / "out.json", "--", sys.executable,
                           folder / "command.py", "{json}"], capture_output=True, text=True)
    return done, json.loads((folder / "out.json").read_text()), (folder / "log").read_text().split()


def test_the_trees_take_turns_and_a_slower_row_is_told(tmp_path):
    wide = [1.0, 1.2] * 8
    done, found, calls = run(tmp_path, {"same": [2.0], "slower": [2.0], "wide": [1.0]},
                             {"same": [2.0], "slower": [2.2], "wide": wide})
    assert done.returncode == 1, done.stderr
    assert calls == ["old", "new", "new", "old"] * 7 + ["old", "new"]
    rows = {row["row"]: row for row in found["rows"]}
    assert rows["same"]["median"] == 1 and rows["same"]["no_slower"]
    assert rows["slower"]["median"] == pytest.approx(1.1) and not rows["slower"]["no_slower"]
    assert (rows["wide"]["low"], rows["wide"]["high"]) == (1.0, 1.2) and not rows["wide"]["no_slower"]
    assert "1 of 3 rows are no slower" in done.stdout


def test_rows_that_are_not_in_both_are_told(tmp_path):
    done, found, _ = run(tmp_path, {"a": [1.0], "gone": [1.0]}, {"a": [1.0]}, rounds=2)
    assert done.returncode == 1 and found["missing"] == ["gone"] and "not in both: gone" in done.stdout


@pytest.mark.parametrize("document, times", [
    ({"benchmarks": [{"run_name": "a", "real_time": 3.0}, {"run_name": "a", "real_time": 5.0},
                     {"run_name": "a", "real_time": 9.0, "run_type": "aggregate"}]}, {"a": 4.0}),
    ({"results": [{"op": "sgd", "ms": 2.0}]}, {"sgd": 2.0}),
    ({"crossings": {},
      "rows": [{"link": "1gbit", "ranks": 4, "what": "ring", "density": "", "seconds": 0.5}]},
     {"1gbit 4 ring": 0.5}),
    ({"rows": [{"operation": "x", "ms": 1.0}, {"operation": "y", "absent": "not here"}]}, {"x": 1.0}),
])  # fmt: skip
def test_rows_of_every_benchmark(alternate, document, times):
    assert alternate.times_of(document) == times
