"""The model of how ranks agree on the group that follows one that broke (tests/model), in spin."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from sampling import SOAK

MODEL = Path(__file__).resolve().parents[1] / "model"
EXACT = ("-DCOLLAPSE",)  # beside -DSAFETY or -DNP


def search(folder, settings, kind=(*EXACT, "-DSAFETY"), arguments=("-w24",)):
    """What spin's search of all states says."""
    missing = [tool for tool in ("spin", "cc") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} here: ./run.sh test installs what Debian has")
    defined = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in settings.items()]
    # Without a partial order reduction: it knows nothing of what C does.
    subprocess.run(["spin", *defined, "-a", str(MODEL / "succession.pml")], cwd=folder, check=True,
                   capture_output=True)
    subprocess.run(["cc", "-O2", "-w", *defined, *kind, "-DNOREDUCE", "-DMEMLIM=14000",
                    f"-I{MODEL}", "-o", "pan", "pan.c"], cwd=folder, check=True)
    said = subprocess.run(["./pan", "-m100000", *arguments], cwd=folder, check=True, capture_output=True,
                          text=True).stdout
    print(said)
    return said


def expect_right(said, least):
    """All states were looked at, at least so many, and none is wrong."""
    assert "errors: 0" in said, said
    assert "Search not completed" not in said and "max search depth too small" not in said, said
    assert float(re.search(r"([0-9.e+]+) states, stored", said)[1]) >= least, said


def test_three_ranks_with_one_loss_one_cut_and_a_late_frame_are_right(tmp_path):
    expect_right(search(tmp_path, {"RANKS": 3, "KILLS": 1, "CUTS": 1, "LATE": 1}), 20_000)


def test_no_rank_goes_round_in_circles(tmp_path):
    said = search(tmp_path, {"RANKS": 3, "KILLS": 1, "CUTS": 1, "LATE": 1}, (*EXACT, "-DNP"), ("-w24", "-l"))
    expect_right(said, 20_000)


def test_a_decision_that_counts_at_once_makes_two_groups(tmp_path):
    said = search(tmp_path, {"RANKS": 3, "KILLS": 1, "CUTS": 2, "LATE": 1, "OLD_RULE": None})
    assert "assertion violated: !two_groups" in said, said


@pytest.mark.soak
@pytest.mark.parametrize("settings, least", [
    # 6.5 million states.
    ({"RANKS": 3, "KILLS": 2, "CUTS": 2, "LATE": 1}, 1_000_000),
    # 13.6 million.
    ({"RANKS": 3, "KILLS": 1, "CUTS": 1, "LATE": 1, "LOST": 1}, 1_000_000),
])
def test_three_ranks_with_more_faults_are_right(tmp_path, settings, least):
    if not SOAK:
        settings = {**settings, "KILLS": 1, "LOST": 0, "CUTS": 1, "LATE": 0}
        least = 1_000
    expect_right(search(tmp_path, settings), least)
