"""The model of how ranks agree on the group that follows one that broke (tests/model), in spin."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from sampling import SOAK, sample

MODEL = Path(__file__).resolve().parents[1] / "model"
EXACT = ()
COMPACT = ("-DHC4",)  # states are told apart by 12 bytes of hash
BITSTATE = ("-DBITSTATE",)
THREE = {"RANKS": 3, "KILLS": 1, "CUTS": 1, "LATE": 1}
MOVING = {"RANKS": 3, "KILLS": 1, "CUTS": 2, "LATE": 0, "CUT_FIRST": None}
MEGABYTES, MINUTES = 8000, 20  # of a search


def search(folder, settings, kind=(*EXACT, "-DSAFETY"), arguments=("-w22",)):
    """What spin's search of all states says."""
    missing = [tool for tool in ("spin", "cc") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {' and no '.join(missing)} here: ./run.sh test installs what Debian has")
    defined = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in settings.items()]
    # Without a partial order reduction: it knows nothing of what C does.
    subprocess.run(["spin", *defined, "-a", str(MODEL / "succession.pml")], cwd=folder, check=True,
                   capture_output=True)
    subprocess.run(["cc", "-O3" if SOAK else "-O1", "-w", *defined, *kind, "-DNOREDUCE",
                    f"-DMEMLIM={MEGABYTES}", f"-I{MODEL}", "-o", "pan", "pan.c"], cwd=folder, check=True)
    said = subprocess.run(["./pan", "-m1000000", *arguments], cwd=folder, check=True, capture_output=True,
                          text=True).stdout
    print(said)
    return said


def expect_right(said, least, all_of_them=True):
    """States were looked at, at least so many, and none is wrong."""
    assert "errors: 0" in said, said
    assert "max search depth too small" not in said, said
    assert not all_of_them or "Search not completed" not in said, said
    assert float(re.search(r"([0-9.e+]+) states, stored", said)[1]) >= least, said


def test_three_ranks_with_one_loss_one_cut_and_a_late_frame_are_right(tmp_path):
    expect_right(search(tmp_path, THREE), 200_000)


@pytest.mark.soak
def test_no_rank_goes_round_in_circles(tmp_path):
    settings = THREE if SOAK else {**THREE, "LATE": 0}
    expect_right(search(tmp_path, settings, (*EXACT, "-DNP"), ("-w22", "-l")), 20_000)


@pytest.mark.parametrize("wrong, settings, order, violated", [  # in the order that finds them soonest
    ("OLD_RULE", {**THREE, "CUTS": 2}, "-DREVERSE", "!two_groups"),
    ("UNBOUND", MOVING, "-DREVERSE", "!two_groups"),
    ("LATER_BINDS", MOVING, "-DT_REVERSE", "went_on"),
])
def test_wrong_rules_are_found(tmp_path, wrong, settings, order, violated):
    said = search(tmp_path, {**settings, wrong: None}, (*EXACT, "-DSAFETY", order))
    assert f"assertion violated: {violated}" in said, said


CASES = {
    "three ranks, one dies, the cut moves twice": (MOVING, 1_000_000),
    "three ranks, two die": ({**THREE, "KILLS": 2, "CUTS": 2}, 6_000_000),
    "three ranks, one dies and one is missed": ({**THREE, "LOST": 1}, 300_000),
    "four ranks, cut in two, one dies": ({**MOVING, "RANKS": 4, "CUTS": 0}, 1_000_000),
}


@pytest.mark.soak
@pytest.mark.parametrize("case", sample(CASES, 1))
def test_more_faults_are_right(tmp_path, case):
    settings, least = CASES[case]
    if not SOAK:
        settings, least = {**settings, "RANKS": 3, "KILLS": 1, "LOST": 0, "CUTS": 1, "LATE": 0}, 20_000
    expect_right(search(tmp_path, settings, (*COMPACT, "-DSAFETY"), ("-w28",) if SOAK else ("-w22",)), least)


@pytest.mark.soak
@pytest.mark.parametrize("ranks", sample([4, 5], 1))
def test_a_moving_cut_and_a_loss_are_right_as_far_as_a_search_comes(tmp_path, ranks):
    """Not all states: those that are told apart by three bits each, and the search's coverage is printed."""
    settings, how = {**MOVING, "RANKS": ranks, "CUTS": 1}, ("-w35", f"-Q{MINUTES}")
    if not SOAK:
        settings, how = {**settings, "KILLS": 0, "CUTS": 0}, ("-w16", "-m1000")
    said = search(tmp_path, settings, (*BITSTATE, "-DSAFETY"), how)
    assert re.search("hash factor: [0-9.]+", said), said
    assert "errors: 0" in said, said
    assert float(re.search(r"([0-9.e+]+) states, stored", said)[1]) >= (10_000_000 if SOAK else 1_000), said
