"""Steps as pictures and in numbers: read back, chosen, refused where they are not as they should be."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from report_case import LINKS, METHODS, document, row, timeline
from test_report import Page, made, plain, svgs, value_at

from gradwire.bench.errors import UsageError
from gradwire.report import sources
from gradwire.report.document import Span, Timeline, Track
from gradwire.report.html import html
from gradwire.report.markdown import markdown
from gradwire.report.steps import parts, picture

AUTO = ("auto", 0.3, 1.05, 2.0)


def test_every_bar_read_back_from_the_page_is_the_rows_span():
    given = document(methods=(*METHODS, AUTO))
    report, found = made(given)
    plots = list(svgs(html(report, found), "timeline"))
    assert len(plots) == len(LINKS)
    for link, plot in zip(report.studies[0].links, plots):
        x = value_at(plot, "x")
        drawn = {
            (step.get("data-step"), track.get("data-track")): [
                (x(float(bar.get("x"))), x(float(bar.get("x")) + float(bar.get("width"))))
                for bar in track.findall("rect")
            ]
            for step in plot.findall("g")
            for track in step.findall("g")
        }
        names = list(dict.fromkeys(method for method, _ in drawn))
        assert names[:2] == ["none", "auto"] and len(names) == 3
        rows = {r["method"]: r for r in given["rows"] if (r["link"], r["seed"]) == (link.name, 1)}
        for name in names:
            for track in rows[name]["timeline"]["tracks"]:
                bars = drawn.pop((name, track["name"]))
                step = x(float(plot.get("viewBox").split()[2]))
                for (begin, end), span in zip(bars, track["spans"], strict=True):
                    assert begin == pytest.approx(span["begin_ms"], abs=step / 2e3)
                    assert end == pytest.approx(span["begin_ms"] + span["ms"], abs=step / 500)
        assert drawn == {}


def test_beside_dense_and_auto_stands_the_method_that_the_verdict_takes():
    for methods in (METHODS, (*METHODS, AUTO), METHODS[5:]):
        report, _ = made(document(methods=methods))
        for link in report.studies[0].links:
            shown = [step.source for step in link.timelines]
            dense = "none" if methods != METHODS[5:] else "ddp"
            assert shown[0] == dense
            taken = [m for m in link.verdict.methods if m not in (dense, "auto", "ddp")]
            if taken:
                assert taken[0] == shown[-1]
            if AUTO in methods:
                assert shown[1] == "auto"
            assert len(shown) == len(set(shown)) == 2 + (AUTO in methods)


def test_parts_are_those_of_a_clock_that_looks_every_microsecond():
    given = timeline(row("50mbit", 50_000_000, METHODS[3], 1))
    tracks = [
        Track(t["name"], [Span(s["name"], s["begin_ms"], s["ms"]) for s in t["spans"]])
        for t in given["tracks"]
    ]
    tracks.append(Track("exchange 1", [Span("bucket 9", 10.0, 40.0), Span("bucket 10", 70.0, 30.0)]))
    found = parts(Timeline("topk", 1, tracks, given["step_ms"], 1))
    # Independent: a flag for each microsecond.
    length = 200_000  # beyond all of them
    exchanging, waiting = bytearray(length), bytearray(length)
    for track in tracks:
        for span in track.spans:
            begin, end = round(1e3 * span.begin_ms), round(1e3 * (span.begin_ms + span.ms))
            flags = exchanging if "exchange" in track.name else waiting if span.name == "wait" else None
            if flags is not None:
                flags[begin:end] = b"\1" * (end - begin)
    assert found.exchange == pytest.approx(sum(exchanging) / 1e3, abs=0.02)
    beside = sum(e and not w for e, w in zip(exchanging, waiting))
    assert 0 < beside < sum(exchanging)
    assert found.beside == pytest.approx(beside / 1e3, abs=0.02)
    assert found.waiting == pytest.approx(sum(waiting) / 1e3, abs=0.01)
    assert found.forward == given["tracks"][0]["spans"][0]["ms"]
    assert found.decoding is None


def test_the_numbers_stand_beside_the_picture_and_in_markdown():
    report, found = made(document(methods=(*METHODS, AUTO)))
    page = Page(html(report, found))
    tables = [t for t in page.tables if t[0][0][1] == "step"]
    assert len(tables) == len(LINKS)
    lines = plain(markdown(report))
    for table, link in zip(tables, report.studies[0].links):
        assert [line[0][0] for line in table[1:]] == [step.source for step in link.timelines]
        for line, step in zip(table[1:], link.timelines):
            assert float(line[1][0]) == parts(step).forward
            assert [cell[1] for cell in line] in lines
    told = [a.get("aria-label") for t, a in page.tags if a.get("data-plot") == "timeline"]
    assert told[0] == "At 50 Mbit/s, one step: what goes on at the same time"


def test_without_a_step_it_is_said():
    given = document()
    for one in given["rows"]:
        one.pop("timeline", None)
    report, found = made(given)
    assert not list(svgs(html(report, found), "timeline"))
    assert any("no row has one" in line for line in report.not_measured)
    assert not any("timeline" in line for line in made(document())[0].not_measured)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update(step="x"), "timeline.step: 'x', expected a finite number"),
        (lambda t: t.update(tracks=[]), "timeline.tracks: [], expected a list that is not empty"),
        (lambda t: t["tracks"].insert(0, 5), "timeline.tracks[0]: 5, expected an object"),
        (lambda t: t["tracks"][1].update(name=None), "timeline.tracks[1].name: None, expected a text"),
        (lambda t: t["tracks"][0]["spans"][2].update(ms=-1), "spans[2].ms: -1, expected a finite number"),
        (lambda t: t["tracks"][0]["spans"][2].pop("begin_ms"), "spans[2].begin_ms: None, expected a finite"),
    ],
)
def test_a_step_that_is_none_is_refused_with_its_place(change, said):
    given = json.loads(json.dumps(document(seeds=(1,))))
    change(given["rows"][3]["timeline"])
    with pytest.raises(UsageError) as caught:
        sources.of("x.json", given)
    assert str(caught.value).startswith("x.json: rows[3].timeline") and said in str(caught.value)


def test_names_of_spans_stay_text_and_short_steps_are_drawn():
    name = "<script>alert(1)</script>"
    step = Timeline(name, 3, [Track("caller", [Span(name, 0.0, 0.0)]), Track(name, [Span("x", 0.0, 0.0)])])
    root = ElementTree.fromstring(picture(name, [step]))
    assert root.find("title").text == name
    assert not list(root.iter("script"))
