"""How long the runs that are left will take, and what of that is shown."""

from dataclasses import replace

import pytest
from test_bench_budget import FREE, JOB, SLOW, trials

from gradwire.bench import progress
from gradwire.bench.job import Case, Trial


def test_a_run_takes_what_it_took_with_another_seed_else_what_its_neighbours_take():
    asked = trials(seeds=(1, 2), methods=["none", "int4"], links=[SLOW, FREE])
    left = progress.Left(asked)
    assert left.seconds() is None  # nothing is known yet
    left.ended(asked[0], 10.0)  # none on the slow link
    assert left.seconds() == pytest.approx(7 * 10)  # everybody's mean
    left.ended(asked[1], 4.0)  # int4 there
    left.ended(asked[2], 1.0)  # none on the free link
    # Left: int4 free (as none there: 1), then with seed 2 10 + 4 + 1 and int4 free (1).
    assert left.seconds() == pytest.approx(1 + 10 + 4 + 1 + 1)
    assert left.seconds(spent_s=0.4) == pytest.approx(17 - 0.4)
    assert left.seconds(spent_s=50) == pytest.approx(16)  # the present run alone is late
    left.skipped(asked[3])
    assert left.seconds() == pytest.approx(16)
    other = Trial(replace(JOB, optimizer="lamb"), Case(FREE, "none", 1))
    left = progress.Left([asked[0], other])
    left.ended(asked[0], 3.0)
    assert left.seconds() == pytest.approx(3.0)  # of another training, where there is no better
    left.ended(other, 1.0)
    assert left.seconds() == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (720, "12 min"), (7500, "2 h 05 min")],
)
def test_an_estimate_is_told_as_exactly_as_it_is(seconds, text):
    assert progress.duration(seconds) == text


def test_lines_where_there_is_no_terminal_name_the_run_and_what_is_left(capfd):
    now = [0.0]
    asked = trials(methods=["none", "int4"], links=[FREE])
    shown = progress.Progress(asked, clock=lambda: now[0])
    shown.begin(asked[0], None)
    shown.observe(dict(event="start", steps_per_epoch=5))
    now[0] = 6.0
    shown.observe(dict(event="step", step=10, seconds=2.0))
    now[0] = 8.0
    shown.end("done")
    shown.begin(asked[1], None)
    now[0] = 14.0
    shown.observe(dict(event="step", step=1, seconds=1.0))
    shown.close()
    assert capfd.readouterr().err.splitlines() == [
        "[1/2] none on unshaped links, seed 1: step 10 of at most 100, accuracy -, at most 18 s left in "
        "this run",
        "[1/2] none on unshaped links, seed 1: done; about 8 s left in all",
        "[2/2] int4 on unshaped links, seed 1: step 1 of at most 0, accuracy -; about 2 s left in all",
    ]


def test_what_is_left_in_a_run_is_never_more_than_what_is_left_in_all(capfd):
    now = [0.0]
    asked = trials(methods=["none", "int4", "int8"], links=[FREE])
    shown = progress.Progress(asked, clock=lambda: now[0])
    for trial in asked[:2]:
        shown.begin(trial, None)
        shown.observe(dict(event="start", steps_per_epoch=5))  # 100 steps, if the target is never reached
        if trial is asked[1]:
            for now[0], step in [(16.0, 20), (24.0, 40)]:
                shown.observe(dict(event="step", step=step, seconds=0.4 * step))
        now[0] += 10
        shown.end("done")
    shown.close()
    assert capfd.readouterr().err.splitlines() == [
        "[1/3] none on unshaped links, seed 1: done; about 20 s left in all",
        # It takes 10 s like the first one, though its steps might last 32 s.
        "[2/3] int4 on unshaped links, seed 1: step 20 of at most 100, accuracy -, about 4 s left in this "
        "run; about 14 s left in all",
        # It takes longer than the first one, nobody knows how long.
        "[2/3] int4 on unshaped links, seed 1: step 40 of at most 100, accuracy -, at most 24 s left in this "
        "run; about 34 s left in all",
        "[2/3] int4 on unshaped links, seed 1: done; about 17 s left in all",
    ]


def test_a_terminal_has_a_bar_of_the_run_and_one_of_all():
    pytest.importorskip("rich", reason="rich draws the bars")
    bar = progress._Bar(3)
    try:
        bar.begin("[1/3] none", "")
        bar.update(5, 10, "step 5", "about 9 s left in all")
        run, every = bar._rich.tasks
        assert (run.completed, run.total, run.fields["state"]) == (5, 10, "step 5")
        assert (every.completed, every.total) == (0, 3)
        assert every.fields["state"] == "about 9 s left in all"
        bar.begin("[2/3] int4", "about 8 s left in all")
        assert bar._rich.tasks[1].completed == 1
    finally:
        bar.close()
