"""A report says what its results say: plots read back, the same numbers in every form, no tricks."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
import report_case
from report_case import document

from gradwire.report import sources
from gradwire.report.build import build
from gradwire.report.html import html
from gradwire.report.markdown import markdown
from gradwire.report.write import rendered

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</script><script>alert(1)</script>\"'<img src=http://evil.example/x onerror=alert(1)>\x00|`[a](b)"


class Page(HTMLParser):
    """Tags, texts and tables of a page."""

    VOID = ("meta", "line", "path", "rect", "polyline", "br")

    def __init__(self, text):
        super().__init__()
        self.tags, self.tables, self.headings = [], [], []
        self._open, self._cell = [], None
        self.feed(text)
        self.close()
        assert self._open == [], f"not closed: {self._open}"

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th", "h1", "h2", "h3", "caption"):
            self._cell = [dict(attributes).get("data-value"), ""]

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self._cell is not None:
            self._cell[1] += data

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        assert self._open.pop() == tag
        if tag in ("td", "th"):
            self.tables[-1][-1].append(tuple(self._cell))
        if tag in ("h1", "h2", "h3"):
            self.headings.append((tag, self._cell[1]))
        if tag in ("td", "th", "h1", "h2", "h3", "caption"):
            self._cell = None


def made(*documents, names=None):
    found = [sources.of(name, d) for name, d in zip(names or "abcdefgh", documents)]
    return build(found), found


def svgs(page, kind):
    """Plots of a kind, as XML."""
    for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        root = ElementTree.fromstring(text)
        if root.get("data-plot") == kind:
            yield root


def value_at(plot, axis):
    """The inverse of a plot's scale, from its own attribute alone."""
    low, high, begin, end, kind = plot.get(f"data-{axis}").split()
    low, high, begin, end = map(float, (low, high, begin, end))
    warp, back = (math.log10, lambda v: 10**v) if kind == "log" else (float, float)
    return lambda at: back(warp(low) + (at - begin) / (end - begin) * (warp(high) - warp(low)))


def test_every_curve_read_back_from_the_page_is_the_input():
    given = document()
    report, found = made(given)
    page = html(report, found)
    for by in ("seconds", "bytes"):
        plots = list(svgs(page, f"accuracy-{by}"))
        assert len(plots) == len(report_case.LINKS)
        for link, plot in zip(report_case.LINKS, plots):
            x, y = value_at(plot, "x"), value_at(plot, "y")
            drawn = {
                (group.get("data-method"), int(group.get("data-seed"))): [
                    tuple(map(float, point.split(",")))
                    for point in group.find("polyline").get("points").split()
                ]
                for group in plot.iter("g")
                if group.get("data-seed")
            }
            expected = [c for c in given["curves"] if c["link"] == link[0]]
            assert len(drawn) == len(expected)
            for curve in expected:
                line = drawn[curve["method"], curve["seed"]]
                assert len(line) == len(curve["points"])
                for (px, py), point in zip(line, curve["points"]):
                    assert x(px) == pytest.approx(point[by], rel=2e-3)
                    assert y(py) == pytest.approx(point["accuracy"], abs=2e-4)


def test_bars_are_the_rows_means():
    given = document()
    report, found = made(given)
    page = html(report, found)
    for link, plot in zip(report_case.LINKS, svgs(page, "split")):
        for group in plot.iter("g"):
            place = (link[0], group.get("data-method"))
            rows = [r for r in given["rows"] if (r["link"], r["method"]) == place]
            bars = {bar.get("class"): bar for bar in group.iter("rect")}
            for kind, name in (("compute", "compute_ms"), ("wait", "exposed_exchange_ms")):
                mean = sum(row[name] for row in rows) / len(rows)
                assert float(bars[kind].get("data-ms")) == pytest.approx(mean)
            # The drawn lengths are in the proportion of the values.
            ratio = float(bars["compute"].get("width")) / max(float(bars["wait"].get("width")), 0.01)
            both = [float(bars[kind].get("data-ms")) for kind in ("compute", "wait")]
            assert ratio == pytest.approx(both[0] / both[1], rel=0.05, abs=0.2)


def test_scaling_is_drawn_as_measured_and_simulated_points_are_marked():
    parts = [document(workers=n) for n in (2, 4, 8)]
    report, found = made(*parts)
    assert len(report.runs) == 1  # files that complete one another
    for each in report.scaling:
        rows = [r for d in parts for r in d["rows"] if (r["link"], r["method"]) == (each.link, each.method)]
        for workers in (2, 4, 8):
            (point,) = [p for p in each.points if p.workers == workers]
            steps = [r["step_ms"] for r in rows if r["world_size"] == workers]
            assert not point.simulated
            assert point.step_ms == pytest.approx(sum(steps) / 3)
            assert point.samples_per_s == pytest.approx(workers * 32 / point.step_ms * 1e3)
        beyond = [p for p in each.points if p.simulated]
        assert all(p.simulated == (p.workers > 8) for p in each.points)
        if each.link == "none" or each.method.startswith("ddp"):
            assert beyond == []
    page = html(report, found)
    plot = next(svgs(page, "scaling"))
    x, y = value_at(plot, "x"), value_at(plot, "y")
    places = [
        tuple(map(float, re.match(r"translate\((\S+) (\S+)\)", mark.get("transform")).groups()))
        for mark in plot.iter("path")
    ]
    drawn = sorted((round(x(a)), y(b)) for a, b in places)
    first = [each for each in report.scaling if each.link == report.scaling[0].link]
    expected = sorted((p.workers, p.samples_per_s) for each in first for p in each.points)
    assert [n for n, _ in drawn] == [n for n, _ in expected]
    for (_, a), (_, b) in zip(drawn, expected):
        assert a == pytest.approx(b, rel=5e-3)


def test_the_simulation_grows_with_workers_and_meets_a_step_worked_out_by_hand():
    pytest.importorskip("gradwire").__dict__.get("_core") or pytest.skip("no compiled module")
    from gradwire import _core

    if _core.planner_unavailable_reason:
        pytest.skip(_core.planner_unavailable_reason)
    report, _ = made(document(links=(("50mbit", 50_000_000),)))
    (dense,) = [s for s in report.scaling if s.method == "none"]
    (found,) = [p for p in dense.points if p.workers == 8]
    # 7/8 of twice the gradient over 50 Mbit/s; computing hides a few percent of it at most.
    wire_ms = 2 * 7 / 8 * 4 * report_case.PARAMETERS * 8 / 50e6 * 1e3
    assert wire_ms <= found.model_ms <= wire_ms + 80
    steps = [p.step_ms for p in dense.points if p.simulated]
    assert steps == sorted(steps)


def plain(markdown_text):
    """Cells of its tables, without escapes."""
    found = []
    for line in markdown_text.splitlines():
        if line.startswith("|") and not line.startswith("| ---"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            texts = [re.sub(r"\\(.)", r"\1", cell.strip().strip("*")) for cell in cells]
            found.append([text.strip("*") for text in texts])
    return found


def test_html_markdown_and_json_have_the_same_numbers(tmp_path):
    report, found = made(*(document(workers=n) for n in (4, 8)))
    page = Page(html(report, found))
    text = markdown(report)
    in_html = sorted(
        [cell[1] for cell in row] for table in page.tables for row in table
    )
    in_markdown = sorted(plain(text))
    assert in_html == in_markdown
    given = json.loads(rendered(report, found, tmp_path / "x.json"))
    tables = [t for t in page.tables if t[0][0][1] == "method"]
    links = [link for study in given["studies"] for link in study["links"]]
    assert len(tables) == len(links)
    assert all(len(row) == len(table[0]) for table in page.tables for row in table)
    for table, link in zip(tables, links):
        names = [cell[1] for cell in table[0]]
        for row, method in zip(table[1:], link["methods"]):
            values = dict(zip(names, (cell[0] for cell in row)))
            assert float(values["s to 95%"]) == method["seconds_to_target"]["mean"]
            assert float(values["step, ms"]) == method["step_ms"]["mean"]
            assert float(values["computing, ms"]) == method["compute_ms"]
            assert float(values["waiting, ms"]) == method["exposed_exchange_ms"]
            assert float(values["interface/step"]) == method["interface_bytes_per_step"]
            assert float(values["bytes in all"]) == method["bytes_sent"]
            assert values["minus dense, points"] is None  # all stopped at the target
    for study in report.studies:
        for link in study.links:
            assert link.verdict.text in re.sub(r"\\(.)", r"\1", text)


def test_names_from_files_stay_text():
    methods = (("none", 1.0, 1.0, 0.9), (HOSTILE, 0.5, 1.0, 1.0))
    given = document(links=((HOSTILE, 50_000_000),), methods=methods, seeds=(1, 2))
    given["machine"]["cpu"] = given["network"] = given["ended"] = HOSTILE
    given["settings"]["optimizer"] = HOSTILE
    given["command_line"] = ["gradwire", HOSTILE]
    given["rows"][0]["decisions"] = [{"step": 1, "to": HOSTILE, "reason": HOSTILE, HOSTILE: HOSTILE}]
    report, found = made(given, names=[HOSTILE])
    text = html(report, found)
    page = Page(text)
    assert [t for t, _ in page.tags].count("script") == 2  # the results and ours
    assert not {"img", "iframe", "object", "link", "a"} & {t for t, _ in page.tags}
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "\x00" not in text
    for root in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(root)
    for line in markdown(report).splitlines():
        if not line.startswith("    "):  # there stands a command, in which nothing means anything
            assert not re.search(r"(?<!\\)[<`]|(?<!\\)\]\(", line)


def test_a_page_needs_nothing_and_stays_small():
    report, found = made(document(seeds=tuple(range(1, 6))))
    text = html(report, found)
    assert len(text.encode()) < 2_000_000
    page = Page(text)
    assert not [a for _, a in page.tags if {"src", "href", "xlink:href", "srcset"} & set(a)]
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttp", text)
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_a_published_sweep_stays_below_two_megabytes():
    """Three workloads, four links, eight methods, three seeds, in one file."""
    given = document()
    rows, curves = [], []
    for workload in ("mlp", "cnn", "bytes"):
        rows += [dict(row, workload=workload) for row in given["rows"]]
        curves += given["curves"]
    report, found = made(dict(given, rows=rows, curves=curves))
    names = [study.workload for study in report.studies]
    assert names == ["MLP", "small CNN on images", "byte-level transformer"]
    assert len(html(report, found).encode()) < 2_000_000


def test_headings_captions_and_titles_are_there():
    report, found = made(document(), document(speed=1.1))
    text = html(report, found)
    page = Page(text)
    assert page.headings[0] == ("h1", report.question)
    assert [h for h, _ in page.headings].count("h1") == 1
    assert text.count("<table") == text.count("<caption")
    for root in re.findall(r"<svg class=\"plot\".*?</svg>|<svg[^>]*data-plot.*?</svg>", text, re.DOTALL):
        assert ElementTree.fromstring(root).find("title").text
    for name in ("To repeat it", "What was not measured", "How to read this"):
        assert ("h3", name) in page.headings


def test_what_is_missing_is_said_and_not_invented():
    given = document(methods=(("none", 1.0, 1.0, 0.9), ("int4", 0.1, 1.0, 2.0)), seeds=(1,))
    for row in given["rows"]:
        row.update(interface_bytes_per_step=None, compression_ms=None, final_accuracy=None)
        row.pop("timeline", None)
    given["curves"] = []
    given["failures"] = [{"error": "rank 2 died"}]
    given["ended"] = "interrupted by SIGINT"
    report, found = made(given)
    text = html(report, found)
    said = " ".join(report.not_measured)
    for word in ("one number of workers", "one seed", "Bytes of the network interface", "auto", "trace"):
        assert word in said
    assert "rank 2 died" in said and "interrupted by SIGINT" in said
    assert "Not measured." in text
    assert "not measured" in markdown(report)
    assert list(svgs(text, "accuracy-seconds")) == []


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["/home/me/bin/gradwire", "bench", "'a b'"], "gradwire bench 'a b'"),
        (["/usr/lib/python3/gradwire/__main__.py", "bench"], "gradwire bench"),
        (["'/my venv/bin/gradwire'", "bench"], "gradwire bench"),
        (["mine.py", "--fast"], "mine.py --fast"),
        ([], "not said"),
    ],
)
def test_commands_can_be_typed_again_elsewhere(typed, shown):
    report, _ = made(document(command_line=typed))
    assert report.runs[0].commands == [shown]


def test_decisions_of_auto_are_shown_in_order_with_their_reasons():
    given = document(methods=(("none", 1.0, 1.0, 0.9),), seeds=(1,), links=(("1gbit", 10**9),))
    given["rows"][0]["decisions"] = [
        {"step": 3, "from": "none", "to": "int4", "reason": "12 ms shorter", "numbers": {"a": 1.5}},
        {"step": 40, "from": "int4", "to": "none", "reason": "it was not"},
    ]
    report, _ = made(given)
    assert [(d.step, d.chosen, d.why) for d in report.decisions] == [
        (3, "int4", "12 ms shorter"),
        (40, "none", "it was not"),
    ]
    assert report.decisions[0].details == {"from": "none", "numbers": {"a": 1.5}}
    assert "12 ms shorter" in markdown(report)
    # The same, where the file keeps them beside its rows.
    beside = document(methods=(("none", 1.0, 1.0, 0.9),), seeds=(1,), links=(("1gbit", 10**9),))
    run = {"link": "1gbit", "method": "none", "seed": 1}
    beside["decisions"] = [dict(run, decisions=given["rows"][0]["decisions"])]
    assert made(beside)[0].decisions == report.decisions
    assert {(d.where, d.seed) for d in report.decisions} == {("1 Gbit/s", 1)}
