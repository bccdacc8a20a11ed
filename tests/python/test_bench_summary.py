"""The statistics against values worked out by hand, and what the sentences claim."""

import bench_support  # noqa: F401
import pytest

from gradwire.bench.intervals import Interval, mean_interval, t95
from gradwire.bench.summary import (
    accuracy_at,
    accuracy_differences,
    cells,
    difference,
    equal_epochs,
    sentences,
    table,
)


def row(method, seconds, link="50mbit", seed=1, accuracy=0.95, **others):
    values = {
        "method": method,
        "link": link,
        "seed": seed,
        "target_accuracy": 0.95,
        "seconds_to_target": seconds,
        "steps_to_target": 100,
        "final_accuracy": accuracy,
        "best_accuracy": accuracy,
        "step_ms": 20.0,
        "step_ms_interval": 1.0,
        "seconds": 3.0,
        "compute_ms": 10.0,
        "exposed_exchange_ms": 8.0,
        "compression_ms": 2.0,
        "wire_bytes_per_step": 6_000_000.0,
        "interface_bytes_per_step": None,
    }
    values.update(others)
    return values


def test_the_interval_of_1_2_3_4():
    # mean 2.5, s = sqrt(5/3) = 1.2909944, s/sqrt(4) = 0.6454972, t(3) = 3.182: 2.0539722
    interval = mean_interval([1, 2, 3, 4])
    assert interval.mean == 2.5
    assert interval.half_width == pytest.approx(2.0539722, abs=1e-6)
    assert interval.count == 4


def test_an_interval_needs_two_values_and_leaves_out_unknown_ones():
    assert mean_interval([5.0]) is None
    assert mean_interval([5.0, None]) is None
    # difference of 2: s/sqrt(2) = 1, t(1) = 12.706
    assert mean_interval([4.0, None, 6.0]) == Interval(5.0, pytest.approx(12.706), 2)


def test_quantiles_are_those_of_students_t():
    scipy_stats = pytest.importorskip("scipy.stats")
    for degrees in range(1, 31):
        assert t95(degrees) == pytest.approx(scipy_stats.t.ppf(0.975, degrees), abs=6e-4)
    for degrees in (31, 45, 77, 500):  # between listed values the wider one
        exact = scipy_stats.t.ppf(0.975, degrees)
        assert exact - 5e-4 <= t95(degrees) <= exact + 0.022


def test_seeds_are_paired_before_the_difference_is_taken():
    # Seeds differ by far more than methods do: only pairing shows the constant gap.
    rows = [row("none", 10.0 * s + 1.0, seed=s) for s in (1, 2, 3)]
    rows += [row("int4", 10.0 * s + 0.1 * (s == 2), seed=s) for s in (1, 2, 3)]
    none, int4 = cells(rows)
    gap = difference(none, int4)
    # 1, 0.9, 1: mean 0.9667, s = 0.057735, / sqrt(3) = 0.033333, x 4.303 = 0.143433
    assert gap.mean == pytest.approx(0.966667, abs=1e-6)
    assert gap.half_width == pytest.approx(0.143433, abs=1e-6)


def test_one_seed_takes_the_interval_of_the_step_time():
    slow, fast = cells([row("none", 10.0), row("int4", 2.0, step_ms_interval=0.5)])
    assert fast.seconds() == Interval(2.0, pytest.approx(100 * 0.5 / 1000), 1)
    gap = difference(slow, fast)
    assert (gap.mean, gap.half_width) == (8.0, pytest.approx((0.1**2 + 0.05**2) ** 0.5))


def test_the_sentence_names_the_fastest_method_the_next_and_no_compression():
    rows = [row("none", 40.0), row("fp16", 20.0), row("topk:1%", 2.0), row("int4", 10.0)]
    (text,) = sentences(rows)
    assert text.startswith("50mbit: topk:1% reaches 0.95 first, after 2.00 ± 0.10 s;")
    assert "int4 takes 10.00 ± 0.10 s (5.0 times as long)" in text
    assert "no compression takes 40.00 ± 0.10 s (20.0 times as long)" in text
    assert "fp16" not in text
    assert "One seed" in text


def test_a_difference_within_the_interval_is_said_to_decide_nothing():
    (text,) = sentences([row("none", 2.05, link="none"), row("int4", 2.0, link="none")])
    assert text.startswith("unshaped: int4 reaches")
    assert "0.05 ± 0.14 s is within the interval, so neither is faster" in text


def test_no_compression_can_win():
    (text,) = sentences([row("none", 1.0), row("int4", 2.0)])
    assert text.startswith("50mbit: no compression reaches 0.95 first")


def test_a_method_that_the_time_budget_stopped_has_not_missed_the_target():
    late = dict(row("int4", None), stopped_by="time budget")
    (text,) = sentences([row("none", 9.0), row("fp16", None), late])
    assert "not reached (with every seed) by fp16; stopped by the time budget before it: int4" in text


def test_a_method_that_missed_the_target_with_one_seed_cannot_win():
    rows = [row("none", 9.0, seed=s) for s in (1, 2)]
    rows += [row("int4", 1.0, seed=1), row("int4", None, seed=2, accuracy=0.9)]
    (text,) = sentences(rows)
    assert text.startswith("50mbit: no compression reaches")
    assert "not reached (with every seed) by int4" in text
    assert "1.00 (1 of 2)" in table(rows)


def test_nobody_at_the_target_names_the_highest_accuracy():
    (text,) = sentences([row("none", None, accuracy=0.8), row("int4", None, accuracy=0.7)])
    assert text == (
        "50mbit: no method reached 0.95 with every seed; the highest accuracy is 0.8000, by "
        "no compression."
    )


def test_accuracy_is_compared_with_none_seed_by_seed():
    rows = [row("none", 1.0, seed=s, accuracy=0.90 + 0.01 * s) for s in (1, 2, 3)]
    rows += [row("int4", 1.0, seed=s, accuracy=0.90 + 0.01 * s - 0.002 * s) for s in (1, 2, 3)]
    (found,) = accuracy_differences(rows)
    # -0.2, -0.4, -0.6 points: s = 0.2, / sqrt(3) x 4.303 = 0.496868
    assert found["points"] == pytest.approx(-0.4)
    assert found["half_width"] == pytest.approx(0.496868, abs=1e-5)
    assert (found["method"], found["seeds"]) == ("int4", 3)


def test_the_table_has_one_line_per_link_and_method_in_the_order_given():
    rows = [row(m, 2.0, link=k) for k in ("50mbit", "none") for m in ("none", "topk:1%")]
    lines = table(rows).splitlines()
    assert [line.split()[:2] for line in lines[2:]] == [
        ["50mbit", "none"],
        ["50mbit", "topk:1%"],
        ["none", "none"],
        ["none", "topk:1%"],
    ]
    assert "6,000,000" in lines[2]
    assert len({len(line) for line in lines[1:]}) == 1


def test_several_seeds_show_means_with_intervals():
    rows = [row("none", 1.0, seed=1, accuracy=0.9), row("none", 3.0, seed=2, accuracy=0.9)]
    assert "2.00 ± 12.71" in table(rows)
    assert "0.9000 ± 0.0000" in table(rows)


def test_accuracies_are_compared_after_the_last_epoch_that_all_have_ended():
    rows = [
        row("none", 2.0, accuracy_by_epoch=[0.5, None, 0.75, 0.875]),
        row("int4", 1.0, accuracy_by_epoch=[0.25, 0.5, 0.625]),  # reached its target sooner
    ]
    assert equal_epochs(rows) == 3
    assert [(found["method"], found["accuracy"]) for found in accuracy_at(rows, 3)] == [
        ("none", 0.75), ("int4", 0.625)
    ]  # fmt: skip
    head, _, *lines = table(rows).splitlines()
    place = head.index("epoch 3")
    assert [line[place:].split()[0] for line in lines] == ["0.7500", "0.6250"]
    # Behind the second one was not evaluated, and behind none of its own that one which ends soonest.
    assert equal_epochs([rows[0], row("fp16", 1.0, accuracy_by_epoch=[0.25, 0.5])]) == 1
    none_in_common = [rows[0], row("fp16", 1.0, accuracy_by_epoch=[])]
    assert equal_epochs(none_in_common) == 0 and accuracy_at(none_in_common, 0) == []
    assert "epoch" not in table(none_in_common)


def test_a_run_too_short_for_auto_to_choose_is_not_called_slow():
    tried = [{"what": "predict", "to": "int4"}]
    chosen = [*tried, {"what": "choose", "to": "int8"}]
    short = row("auto", 9.0, decisions=tried)
    fast, said = sentences([row("none", 2.0), short])
    assert "no compression reaches 0.95 first" in fast
    assert said == (
        "50mbit: auto: the run ended while auto was still timing plans, so its time is that of trials and "
        "not of a choice: more steps are needed."
    )
    seeds = [row("auto", 9.0, seed=s, decisions=log) for s, log in ((1, tried), (2, chosen), (3, chosen))]
    assert "auto: 1 of 3 runs ended while" in sentences([row("none", 2.0), *seeds])[1]
    # Without a decision it was measuring still; behind later ones plans may be timed again.
    (_, measuring) = sentences([row("none", 2.0), row("auto:window=9", 9.0)])
    assert measuring.startswith("50mbit: auto:window=9: the run ended while auto was still measuring its")
    begun = row("auto", 9.0, decisions=[{"what": "begin", "to": "int4"}])
    assert "still measuring its first steps" in sentences([begun])[1]
    again = row("auto", 9.0, decisions=[*chosen, {"what": "retry", "to": "int8"}])
    assert "still timing plans" in sentences([again])[1]
    for whats in (["choose"], ["choose", "tighten"], ["choose", "retry", "off"], ["choose", "link"]):
        log = [{"what": what, "to": "none"} for what in whats]
        assert len(sentences([row("auto", 9.0, decisions=log)])) == 1, whats
    assert len(sentences([row("none", 2.0), row("int4", 3.0)])) == 1
