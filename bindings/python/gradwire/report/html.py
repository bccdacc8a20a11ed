"""The report as one HTML file that needs nothing else: style, script, plots and results are in it."""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional, Sequence

from gradwire.report import plots, sources, steps, tables
from gradwire.report.compare import QUANTITIES
from gradwire.report.document import Comparison, Link, Report, Study, Timeline
from gradwire.report.forest import forest
from gradwire.report.log import in_force
from gradwire.report.markup import Markup, join, tag
from gradwire.report.plots import Styles
from gradwire.report.sources import Source
from gradwire.report.tables import Table
from gradwire.report.verdict import at, label
from gradwire.report.words import HOW_TO_READ, SCALED, facts, heading, run_lines, settings_lines, subtitle

# The page may load nothing at all, whatever stands in it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_BADGES = {
    "compress": "compress",
    "do not compress": "do not compress",
    "too close to call": "too close to call",
    "not reached": "target not reached",
    "not measured": "not measured",
}


def html(report: Report, results: Sequence[Source]) -> str:
    """:param results: packed into the page, so that `gradwire report` can read it again."""
    names = [m.method for s in report.studies for link in s.links for m in link.methods]
    drawn = plots.styles([*names, *(each.method for each in report.scaling)])
    body = join(
        _header(report, drawn),
        *(_comparison(found, drawn) for found in report.comparisons),
        *(_study(study, drawn) for study in report.studies),
        *_rest(report, drawn),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", "gradwire report"),
        tag("style", Markup(_file("page.css"))),
    )
    carried = tag(
        "script",
        Markup(sources.packed_text(list(results))),
        id=sources.CARRIED_ID,
        type="application/octet-stream",
    )
    page = tag(
        "html", head, tag("body", body, carried, tag("script", Markup(_file("page.js")))), lang="en"
    )
    return "<!DOCTYPE html>\n" + page + "\n"


def _file(name: str) -> str:
    return (Path(__file__).resolve().parent / name).read_text(encoding="utf-8")


def _header(report: Report, drawn: Styles) -> Markup:
    groups = [
        join(
            tag("h2", heading(study)) if len(report.studies) > 1 else None,
            tag(
                "div",
                *(_card(study, link, drawn) for link in study.links),
                class_="cards" if len(study.links) % 3 == 0 else "cards two",
            ),
        )
        for study in report.studies
    ]
    overview = tables.overview_table(report)
    return tag(
        "header",
        tag("p", "gradwire bench", class_="kicker"),
        tag("h1", report.question),
        tag("p", subtitle(report), class_="sub"),
        tag("ul", *(tag("li", line) for line in run_lines(report)), class_="sub runs")
        if len(report.runs) > 1
        else None,
        *(tag("p", found.verdict, class_="says big") for found in report.comparisons),
        _table(overview, sortable=False) if overview else None,
        *groups,
        _legend(drawn),
    )


def _card(study: Study, link: Link, drawn: Styles) -> Markup:
    kind = link.verdict.kind
    return tag(
        "article",
        tag(
            "div",
            tag("h3", link.where),
            tag("span", _BADGES[kind], class_="badge"),
            class_="top",
        ),
        tag("p", link.verdict.text, class_="says"),
        plots.strip(link, study.target_accuracy, drawn),
        tag("p", link.verdict.note, class_="note") if link.verdict.note else None,
        class_="card " + kind.replace(" ", "-"),
    )


def _legend(drawn: Styles) -> Markup:
    items = [
        tag(
            "button",
            tag(
                "svg",
                tag("line", x1=1, x2=33, y1=8, y2=8, class_=f"{style.colour} l",
                    stroke_dasharray=style.dashes),
                style.marker(17.0, 8.0, 4.0),
                viewBox="0 0 34 16",
                width="34",
                height="16",
                aria_hidden="true",
            ),
            label(name),
            type="button",
            aria_pressed="true",
            data_toggle=name,
        )
        for name, style in drawn.items()
    ]  # fmt: skip
    return tag(
        "div", *items, class_="legend", role="group", aria_label="Methods: press to hide or show"
    )


def _study(study: Study, drawn: Styles) -> Markup:
    links = [_link(study, link, drawn) for link in study.links]
    return tag("section", tag("h2", heading(study)), tag("p", facts(study), class_="sub"), *links)


def _link(study: Study, link: Link, drawn: Styles) -> Markup:
    target = study.target_accuracy
    found = [
        ("Accuracy against time", plots.accuracy(link, target, "seconds", drawn)),
        ("Accuracy against bytes", plots.accuracy(link, target, "bytes", drawn)),
        ("Accuracy, time and bytes", plots.pareto(link, drawn)),
        ("Where a step's time goes", plots.split(link)),
    ]
    return tag(
        "section",
        tag("h3", link.where),
        tag("p", link.verdict.text, class_="says"),
        tag("div", *(_figure(title, plot) for title, plot in found), class_="plots"),
        _table(tables.link_table(link, target)),
        *_timelines(f"{at(link.where)}, one step: what goes on at the same time", link.timelines),
        class_="link",
    )


def _timelines(name: str, found: Sequence[Timeline]) -> List[Markup]:
    """The picture, and the same in numbers for those who cannot see it."""
    if not found:
        return []
    drawn = tag("div", steps.picture(name, found), class_="scroll wide", tabindex="0", role="region",
                aria_label=name)  # fmt: skip
    numbers = _folded("The same in numbers", _table(tables.timeline_table(name, found), sortable=False))
    return [tag("h4", name), drawn, numbers]


def _figure(title: str, plot: Optional[Markup]) -> Markup:
    shown = plot if plot is not None else tag("p", "Not measured.", class_="none")
    return tag("figure", tag("figcaption", title), shown)


def _table(found: Table, sortable: bool = True) -> Markup:
    head = [
        tag("th", tag("button", name, type="button") if sortable else name, scope="col")
        for name in found.head
    ]
    rows = [
        tag(
            "tr",
            *(
                tag(
                    "th" if j == 0 else "td",
                    cell.text,
                    scope="row" if j == 0 else None,
                    data_value=repr(cell.value)
                    if isinstance(cell.value, (int, float))
                    else cell.value,
                    class_="n" if isinstance(cell.value, (int, float)) else None,
                )
                for j, cell in enumerate(row)
            ),
            class_="best" if i in found.best else None,
        )
        for i, row in enumerate(found.rows)
    ]
    whole = tag(
        "table",
        tag("caption", found.caption),
        tag("thead", tag("tr", *head)),
        tag("tbody", *rows),
        class_="sortable" if sortable else None,
    )
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=found.caption)


def _comparison(found: Comparison, drawn: Styles) -> Markup:
    shown = [
        _figure(name[0].upper() + name[1:], plot)
        for name in QUANTITIES.values()
        for plot in [forest(found, name, drawn)]
        if plot is not None
    ]
    parts: List[Optional[Markup]] = [
        tag("h2", f"{found.run} beside {found.base}"),
        tag("p", "Filled marks: the 95% interval of the difference leaves zero out.", class_="sub"),
        tag("div", *shown, class_="plots") if shown else None,
        _folded("All differences", _table(tables.comparison_table(found))) if found.rows else None,
        _list("Settings that differ", found.unlike),
        _list(f"Only in {found.base}", found.only_base),
        _list(f"Only in {found.run}", found.only_run),
    ]
    return tag("section", *parts)


def _list(title: str, items: Sequence[str]) -> Optional[Markup]:
    if not items:
        return None
    return _folded(f"{title} ({len(items)})", tag("ul", *(tag("li", item) for item in items)))


def _folded(title: str, *contents: Markup) -> Markup:
    return tag("details", tag("summary", title), *contents)


def _rest(report: Report, drawn: Styles) -> List[Markup]:
    parts: List[Markup] = []
    if report.scaling:
        places = list(dict.fromkeys((s.run, s.workload, s.where) for s in report.scaling))
        shown = []
        for run, work, where in places:
            its = [s for s in report.scaling if (s.run, s.workload, s.where) == (run, work, where)]
            plot = plots.scaling(where, its, drawn)
            if plot is not None:
                prefix = f"{run}: " if run else ""
                shown.append(_figure(f"{prefix}{work}, {where}", plot))
        note = f"Hollow and dotted: simulated by gradwire.planner; {SCALED}."
        parts.append(
            tag(
                "section",
                tag("h2", "Scaling with workers"),
                tag("p", note, class_="sub"),
                tag("div", *shown, class_="plots") if shown else None,
                _folded("All points", _table(tables.scaling_table(report.scaling))),
            )
        )
    if report.predictions:
        plot = plots.predicted(report.predictions, drawn)
        parts.append(
            tag(
                "section",
                tag("h2", "Predicted against measured"),
                tag("div", _figure("Time of a step", plot), class_="plots") if plot else None,
                _folded("All predictions", _table(tables.prediction_table(report.predictions))),
            )
        )
    if report.decisions:
        ends = tag("ul", *(tag("li", line) for line in in_force(report.decisions)))
        shown_log = _folded("Every decision", _table(tables.decision_table(report.decisions)))
        parts.append(tag("section", tag("h2", "What auto chose and why"), ends, shown_log))
    if report.timelines:
        shown_steps = _timelines("Steps of traces: what goes on at the same time", report.timelines)
        parts.append(tag("section", tag("h2", "What overlaps in a step"), *shown_steps))
    parts.append(_origin(report))
    return parts


def _origin(report: Report) -> Markup:
    commands = [command for run in report.runs for command in run.commands]
    return tag(
        "section",
        tag("h2", "Where the numbers are from"),
        _table(tables.run_table(report.runs), sortable=False),
        tag("h3", "To repeat it"),
        *(tag("pre", tag("code", command)) for command in commands),
        _folded("All settings", tag("ul", *(tag("li", line) for line in settings_lines(report)))),
        tag("h3", "What was not measured"),
        tag("ul", *(tag("li", line) for line in report.not_measured)),
        tag("h3", "How to read this"),
        tag("ul", *(tag("li", line) for line in HOW_TO_READ)),
        class_="origin",
    )
