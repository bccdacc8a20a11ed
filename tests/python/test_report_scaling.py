"""Simulated steps beside measured ones: the two join, and auto, whose plan changes, has none."""

import pytest
from report_case import document
from test_report import Page, made, plain

from gradwire import _core
from gradwire.report.html import html
from gradwire.report.markdown import markdown

if _core.planner_unavailable_reason:
    pytest.skip(_core.planner_unavailable_reason, allow_module_level=True)

LINK = (("200mbit", 200_000_000),)


def slower(given, times):
    """The same with other steps, which is what a machine with too few processors does."""
    for row in given["rows"]:
        row["step_ms"] *= times
    return given


def test_more_workers_are_not_faster_because_the_planner_is_optimistic():
    given = document(links=LINK, methods=(("none", 1.0, 1.0, 0.9),))
    report, found = made(slower(given, 3.0))
    (dense,) = report.scaling
    steps = [point.step_ms for point in dense.points]
    assert [point.workers for point in dense.points] == [4, 8, 16, 32, 64]
    assert steps == sorted(steps)
    measured, *beyond = dense.points
    assert measured.step_ms == pytest.approx(sum(row["step_ms"] for row in given["rows"]) / 3)
    assert measured.model_ms < measured.step_ms / 2
    for point in beyond:
        ratio = point.step_ms / point.model_ms
        assert ratio == pytest.approx(measured.step_ms / measured.model_ms)
        assert point.samples_per_s == pytest.approx(point.workers * 32 / point.step_ms * 1e3)
    # At the measured size the planner's own time stands beside, and the caption says what was done.
    page = html(report, found)
    (table,) = [t for t in Page(page).tables if t[0][-1][1] == "planner says, ms"]
    assert [float(line[-1][0]) for line in table[1:]] == [point.model_ms for point in dense.points]
    (of_step,) = [p.predicted for p in report.predictions if p.what.startswith("step")]
    assert measured.model_ms == of_step
    text = markdown(report)
    assert all([cell[1] for cell in line] in plain(text) for line in table)
    for shown in (page, text):
        assert "times measured over what it says at the largest measured size" in shown


@pytest.mark.parametrize("method", ["auto", "auto:window=10"])
def test_auto_is_measured_alone(method):
    given = document(links=LINK, methods=(("none", 1.0, 1.0, 0.9), (method, 0.2, 1.0, 2.0)))
    report, _ = made(given)
    (auto,) = [each for each in report.scaling if each.method == method]
    assert [(p.workers, p.simulated, p.model_ms) for p in auto.points] == [(4, False, None)]
    assert {p.method for p in report.predictions} == {"none"}
    assert any(f"not simulated for {method}, whose steps hold trials" in s for s in report.not_measured)
