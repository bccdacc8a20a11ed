"""What a report says of auto: how it ended and why, on which numbers, and how right it was."""

from report_case import document
from test_report import Page, made, plain

from gradwire.report.html import html
from gradwire.report.log import numbers_of
from gradwire.report.markdown import markdown

LOG = [
    {"step": 8, "what": "predict", "from": "none", "to": "topk:1%,int4, 3 buckets",
     "reason": "the fastest are timed",
     "numbers": {"bytes_per_s": 2.5e7, "predicted_s of int4, 3 buckets": 0.1027,
                 "predicted_s of topk:1%,int4, 3 buckets": 0.1024, "predicted_s of int8, 3 buckets": 0.119}},
    {"step": 14, "what": "choose", "from": "none", "to": "int4, 3 buckets", "reason": "the least lossy",
     "numbers": {"dense_step_s": 0.4057, "step_s of int4, 3 buckets": 0.1375,
                 "step_s of topk:1%,int4, 3 buckets": 0.4139, "tolerance": 0.03}},
    {"step": 54, "what": "tighten", "from": "int4, 3 buckets", "to": "int8, 3 buckets",
     "reason": "the norm changed", "numbers": {"norm_change": 0.5714}},
    {"step": 94, "what": "keep", "from": "int8, 3 buckets", "to": "int8, 3 buckets",
     "reason": "nothing has changed", "numbers": {}},
]  # fmt: skip


def with_auto(log=LOG, seeds=(1,), **more):
    given = document(methods=(("none", 1.0, 1.0, 0.9), ("auto", 0.2, 1.0, 2.0)), seeds=seeds,
                     links=(("200mbit", 200_000_000), ("none", None)))  # fmt: skip
    for row in given["rows"]:
        row.update(workload="cnn", **more)
        if row["method"] == "auto" and row["link"] == "200mbit":
            row["decisions"] = log
    return given


def test_a_sentence_says_what_was_in_force_at_the_end_and_since_when():
    report, found = made(with_auto())
    said = "At 200 Mbit/s, seed 1: int8, 3 buckets from step 54 on: the norm changed."
    assert said in html(report, found)
    assert f"- {said}" in [line.replace("\\", "") for line in markdown(report).splitlines()]
    again = [*LOG, {"step": 99, "what": "off", "from": "int8", "to": "none", "reason": "it is slower"}]
    report, found = made(with_auto(again, seeds=(1, 2)))
    for seed in (1, 2):
        assert f"seed {seed}: none from step 99 on: it is slower." in html(report, found)


def test_a_run_that_ended_while_plans_were_timed_has_chosen_nothing():
    """Neither in HTML nor in Markdown is the plan whose turn it was called a choice."""
    timing = "the run ended while auto was still timing plans"
    begun = {"step": 0, "what": "begin", "from": "none", "to": "int4", "reason": "dense is slow"}
    again = {"step": 200, "what": "predict", "from": "int8", "to": "bf16", "reason": "the link changed"}
    cases = (
        # Its last turn was the winner's: chosen is it only behind that.
        ([dict(LOG[0], to=LOG[1]["to"]), LOG[1]], "int4, 3 buckets from step 14 on: the least lossy."),
        (LOG[:1], f"{timing}, so it has chosen nothing."),
        ([begun, LOG[0]], f"{timing}, so it has chosen nothing."),
        ([begun], "the run ended while auto was still measuring its first steps, so it has chosen nothing."),
        ([*LOG, again], f"{timing} anew; before that int8, 3 buckets from step 54 on: the norm changed."),
    )
    for log, ends in cases:
        report, found = made(with_auto(log))
        said = f"At 200 Mbit/s, seed 1: {ends}"
        assert said in html(report, found)
        assert f"- {said}" in [line.replace("\\", "") for line in markdown(report).splitlines()]


def test_every_decision_is_a_row_with_the_numbers_it_rests_on():
    report, found = made(with_auto())
    (table,) = [t for t in Page(html(report, found)).tables if t[0][-1][1] == "on which numbers"]
    rows = [[cell[1] for cell in line] for line in table[1:]]
    assert [row[3:7] for row in rows] == [
        [str(each["step"]), each["what"], each["from"], each["to"]] for each in LOG
    ]
    assert {row[0] for row in rows} == {"small CNN on images"}
    assert rows[1][-1] == (
        "dense step 406 ms; step of int4, 3 buckets 138 ms; step of topk:1%,int4, 3 buckets 414 ms; "
        "tolerance 0.03"
    )
    assert all(row in plain(markdown(report)) for row in rows)
    assert numbers_of({"from": "a", "what": "b"}) == ""


def test_numbers_have_the_units_of_their_names():
    numbers = {
        "alpha_s": 0.0000625, "bytes_per_s": 5196301.9, "dense_step_s": 0,
        "dense_step_s, predicted": 1.176, "exchange_s of int4, 3 buckets": 0.0344, "exchange_s": 0,
        "predicted_s of none": None, "next_look_after_steps": 100.0, "norm_change": 0.5714,
        "step_s of topk:1%,int4": 1.5,
    }  # fmt: skip
    assert numbers_of({"numbers": numbers}).split("; ") == [
        "alpha 0.0625 ms", "link 5.20 MB/s", "dense step, predicted 1,176 ms",
        "exchange of int4, 3 buckets 34.4 ms", "exchange 0 ms", "predicted of none not said",
        "next look after steps 100", "norm change 0.5714", "step of topk:1%,int4 1,500 ms",
    ]  # fmt: skip


def test_what_it_predicted_stands_beside_what_it_measured():
    report, _ = made(with_auto())
    found = [p for p in report.predictions if "auto" in p.by]
    assert [(p.by, p.predicted, p.measured) for p in found] == [
        ("auto, before it tried int4, 3 buckets", 102.7, 137.5),
        ("auto, before it tried topk:1%,int4, 3 buckets", 102.4, 413.9),
    ]  # int8 was not tried
    assert {(p.workload, p.workers, p.where, p.method) for p in found} == {
        ("small CNN on images", 4, "200 Mbit/s", "auto")
    }


def test_odd_numbers_are_shown_and_predict_nothing():
    log = [{"step": 1, "to": "x", "numbers": {"predicted_s of x": None, "step_s of x": 1.0, "a": [1, 2]}},
           {"step": 2, "to": "x", "numbers": "none"}]  # fmt: skip
    report, found = made(with_auto(log))
    assert not [p for p in report.predictions if "auto" in p.by]
    assert "predicted of x not said" in html(report, found)
