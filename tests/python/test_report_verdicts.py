"""What a report advises, and how it compares runs, against intervals worked out by hand."""

import xml.etree.ElementTree as ElementTree

import pytest
from report_case import document
from test_bench_summary import row

from gradwire.bench.differences import difference
from gradwire.bench.intervals import welch_interval
from gradwire.bench.summary import cells
from gradwire.report import sources
from gradwire.report.build import build
from gradwire.report.forest import forest
from gradwire.report.plots import styles
from gradwire.report.verdict import accuracy_minus, verdict


def says(*rows, where="50 Mbit/s"):
    return verdict(where, cells([{"stopped_by": "target", **each} for each in rows]))


def test_the_fastest_method_is_taken_and_compared_with_none_and_the_next():
    found = says(row("none", 40.0), row("int4", 10.0), row("topk:1%", 2.0))
    assert (found.kind, found.methods) == ("compress", ["topk:1%"])
    assert found.text == (
        "At 50 Mbit/s take topk:1%: 95% accuracy after 2.00 ± 0.10 s, 20 times sooner than without "
        "compression (40.00 ± 0.10 s); next is int4, 5.0 times as long."
    )
    assert "One seed" in found.note


def test_where_dense_is_first_it_says_do_not_compress():
    found = says(row("none", 1.0), row("int4", 2.0))
    assert (found.kind, found.methods) == ("do not compress", ["none"])
    assert found.text.startswith("At 50 Mbit/s do not compress: 95% accuracy after 1.00 ± 0.10 s;")
    assert "int4, takes 2.0 times as long" in found.text
    assert says(row("ddp", 1.0), row("int4", 2.0)).kind == "do not compress"
    assert says(row("ddp", 1.0), row("none", 1.05), row("int4", 2.0)).kind == "do not compress"


def test_within_the_interval_it_is_too_close_to_call():
    found = says(row("none", 2.05), row("int4", 2.0), where="unshaped links")
    assert found.kind == "too close to call"
    assert found.text.startswith("On unshaped links it is too close to call: int4 (2.00 ± 0.10 s), ")


def test_methods_that_tie_are_both_named():
    found = says(row("none", 9.0), row("int4", 2.0), row("topk:1%", 2.05))
    assert (found.kind, found.methods) == ("compress", ["int4", "topk:1%"])
    assert "take int4 or topk:1%, too close to call between them" in found.text


def test_pairing_by_seed_decides_what_the_spread_of_seeds_would_hide():
    rows = [row("none", 10.0 * s + 1.0, seed=s) for s in (1, 2, 3)]
    rows += [row("int4", 10.0 * s + 0.1 * (s == 2), seed=s) for s in (1, 2, 3)]
    assert says(*rows).kind == "compress"
    assert "One seed" not in says(*rows).note


def test_a_method_that_missed_the_target_once_cannot_be_taken():
    rows = [row("none", 9.0, seed=s) for s in (1, 2)]
    rows += [row("int4", 1.0, seed=1), row("int4", None, seed=2)]
    found = says(*rows)
    assert found.kind == "do not compress"
    assert "Not reached with every seed: int4" in found.note


def test_nobody_at_the_target_is_said():
    found = says(row("none", None, accuracy=0.8), row("int4", None, accuracy=0.7))
    assert found.kind == "not reached"
    assert "the highest accuracy is 80%, by no compression" in found.text


def test_without_a_target_the_step_decides():
    rows = [row("none", None, target_accuracy=None, step_ms=90.0, step_ms_interval=2.0)]
    rows += [row("int4", None, target_accuracy=None, step_ms=30.0, step_ms_interval=2.0)]
    found = says(*rows)
    assert found.text == (
        "At 50 Mbit/s take int4: a step takes 30.0 ± 2.0 ms, 3.0 times faster than without compression "
        "(90.0 ± 2.0 ms)."
    )


def at_equal_epochs(method, step_ms, *accuracies):
    return [
        row(method, None, seed=s, accuracy=a, target_accuracy=None, step_ms=step_ms + s, stopped_by="epochs")
        for s, a in enumerate(accuracies, 1)
    ]


def test_without_a_target_who_learns_less_is_not_taken():
    rows = at_equal_epochs("none", 90, 0.90, 0.91, 0.92) + at_equal_epochs("int4", 30, 0.90, 0.91, 0.92)
    rows += at_equal_epochs("1bit", 10, 0.80, 0.811, 0.82)
    found = says(*rows)
    assert (found.kind, found.methods) == ("compress", ["int4"])
    assert "Left out, since they end less accurate than dense: 1bit." in found.note
    assert "int4 ends 0 ± 0 points of accuracy from dense at equal epochs" in found.note
    # -10, -9.9, -10 points: mean -9.967, s = 0.057735, / sqrt(3) x 4.303 = 0.1434
    cell = {c.method: c for c in cells(rows)}
    lost = accuracy_minus(cell["1bit"], cell["none"])
    assert (lost.mean, lost.half_width) == (pytest.approx(-0.0996667), pytest.approx(0.001434, abs=1e-6))
    cut = [dict(r, stopped_by="time budget") for r in rows]
    assert accuracy_minus(cells(cut)[2], cells(cut)[0]) is None


def test_what_the_time_budget_stopped_is_not_told_to_have_missed_the_target():
    late = [row("int4", None), dict(row("topk:1%", None), stopped_by="time budget")]
    found = says(row("none", 9.0), *late)
    assert "Not reached with every seed: int4." in found.note
    assert "Stopped by the time budget before they reached it: topk:1%." in found.note


def test_what_is_not_measured_is_not_compared_with():
    assert "since none was not measured here" in says(row("int4", 2.0), row("fp16", 4.0)).text


def test_welchs_interval_by_hand():
    # a: 1 2 3 4, mean 2.5, s^2/n = 5/12; b: 10 14, mean 12, s^2/n = 8/2 = 4.
    # degrees (5/12 + 4)^2 / ((5/12)^2 / 3 + 16 / 1) = 19.5069 / 16.0579 = 1.21: 1, t = 12.706
    found = welch_interval([1, 2, 3, 4], [10, 14])
    assert found.mean == -9.5
    assert found.half_width == pytest.approx(12.706 * (5 / 12 + 4) ** 0.5)
    # equal spreads: (2 u)^2 / (2 u^2 / 3) = 6 degrees, t = 2.447
    found = welch_interval([1, 2, 3, 4], [2, 3, 4, 5])
    assert found.half_width == pytest.approx(2.447 * (10 / 12) ** 0.5)
    assert welch_interval([1.0], [1.0, 2.0]) is None


def test_seeds_that_match_are_paired_others_are_not():
    a = [row("int4", float(s), seed=s) for s in (1, 2, 3, 4)]
    paired = difference(a, [row("int4", s + 1.0, seed=s) for s in (1, 2, 3, 4)], "seconds_to_target")
    assert (paired.mean, paired.half_width, paired.basis) == (-1.0, 0.0, "paired")
    other = difference(a, [row("int4", s - 3.0, seed=s) for s in (5, 6, 7, 8)], "seconds_to_target")
    assert other.basis == "welch"
    assert other.half_width == pytest.approx(2.447 * (10 / 12) ** 0.5)
    assert not other.beyond()
    alone = difference(a[:1], [row("int4", 4.0)], "seconds_to_target")
    assert (alone.basis, alone.half_width) == ("steps", pytest.approx(0.1 * 2**0.5))
    assert difference(a[:1], [row("int4", 4.0)], "final_accuracy").half_width is None


def runs(*documents):
    return build([sources.of(f"{n}.json", d) for n, d in enumerate(documents)])


def test_a_second_run_of_the_same_shows_no_difference_beyond_its_intervals():
    report = runs(document(), document())
    (found,) = report.comparisons
    assert [run.label for run in report.runs] == ["A", "B"]
    assert "no difference beyond its intervals" in found.verdict
    assert not any(r.beyond for r in found.rows)


def test_a_slower_machine_is_found_method_by_method_paired_by_seed():
    slow = document(speed=1.5, machine={"cpu": "Other", "cores": 4})
    report = runs(document(), slow)
    (found,) = report.comparisons
    steps = [r for r in found.rows if r.quantity == "step, ms" and r.where == "unshaped links"]
    assert steps and all(r.beyond and r.basis == "paired" for r in steps)
    for r in steps:
        rows = {
            label: sorted((q["seed"], q["step_ms"]) for q in d["rows"]
                          if (q["link"], q["method"]) == ("none", r.method))
            for label, d in (("a", document()), ("b", slow))
        }  # fmt: skip
        gaps = [b[1] - a[1] for a, b in zip(rows["a"], rows["b"])]
        mean = sum(gaps) / 3
        spread = (sum((g - mean) ** 2 for g in gaps) / 2) ** 0.5
        assert r.difference == pytest.approx(mean)
        assert r.half_width == pytest.approx(4.303 * spread / 3**0.5)
    assert "differs from A beyond the intervals" in found.verdict
    assert "would by chance alone" in found.verdict


def test_the_plot_of_differences_read_back_is_the_table():
    report = runs(document(), document(speed=1.5))
    (found,) = report.comparisons
    drawn = styles([r.method for r in found.rows])
    assert forest(found, "bytes per step", drawn) is None  # all equal
    root = ElementTree.fromstring(str(forest(found, "step, ms", drawn)))
    low, high, begin, end, _ = root.get("data-x").split()
    scale = (float(high) - float(low)) / (float(end) - float(begin))
    rows = [r for r in found.rows if r.quantity == "step, ms"]
    groups = [group for group in root.iter("g") if group.get("data-method")]
    assert [group.get("data-method") for group in groups] == [r.method for r in rows]
    for group, r in zip(groups, rows):
        line, mark = group.find("line"), group.find("path")
        ends = [float(low) + (float(line.get(x)) - float(begin)) * scale for x in ("x1", "x2")]
        expected = [100 * (r.difference + sign * r.half_width) / r.base.mean for sign in (-1, 1)]
        assert ends == pytest.approx(expected, abs=0.05)
        assert ("hollow" in mark.get("class")) is not r.beyond


def test_settings_that_differ_and_what_only_one_run_has_are_listed():
    other = document(links=(("50mbit", 50_000_000),), methods=(("none", 1.0, 1.0, 0.9),))
    other["settings"]["learning_rate"] = 0.1
    (found,) = runs(document(), other).comparisons
    assert found.unlike == ["learning_rate: 0.02 | 0.1"]
    assert len(found.only_base) == 4 * 8 - 1
    assert found.only_run == []


def test_parts_of_a_sweep_are_one_run():
    slow, fast = (("50mbit", 50_000_000),), (("1gbit", 10**9),)
    report = runs(document(links=fast), document(links=slow), document(links=slow, workers=8))
    assert len(report.runs) == 1 and report.comparisons == []
    assert [s.workers for s in report.studies] == [4, 8]
    assert [link.name for link in report.studies[0].links] == ["50mbit", "1gbit"]


def test_accuracies_are_compared_only_after_equal_epochs():
    early = runs(document(), document()).comparisons[0].rows
    assert not [r for r in early if r.quantity == "final accuracy"]
    full = [document(), document()]
    for d in full:
        for r in d["rows"]:
            r["stopped_by"] = "epochs"
    assert [r for r in runs(*full).comparisons[0].rows if r.quantity == "final accuracy"]
