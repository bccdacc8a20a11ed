"""The report as Markdown: the same sentences and tables as the HTML, without its pictures."""

from __future__ import annotations

import re
from typing import List, Sequence

from gradwire.report import tables
from gradwire.report.document import Report, Study
from gradwire.report.log import in_force
from gradwire.report.tables import Table
from gradwire.report.verdict import at
from gradwire.report.words import HOW_TO_READ, heading, run_lines, settings_lines, subtitle

# Whatever Markdown or the HTML in it would take for more than a letter.
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&$])")


def escaped(text: str) -> str:
    """One line in which no character means anything."""
    plain = "".join(c if c.isprintable() else " " for c in text.replace("\n", " "))
    return _SPECIAL.sub(r"\\\1", plain)


def markdown(report: Report) -> str:
    lines = [f"# {escaped(report.question)}", "", escaped(subtitle(report)), ""]
    if len(report.runs) > 1:
        lines += [*_items(run_lines(report)), ""]
        lines += [f"**{escaped(found.verdict)}**\n" for found in report.comparisons]
    overview = tables.overview_table(report)
    lines += [*table(overview), ""] if overview else []
    for study in report.studies:
        lines += _study(study)
    lines += _rest(report)
    return "\n".join(lines).rstrip() + "\n"


def _study(study: Study) -> List[str]:
    lines = [f"## {escaped(heading(study))}", ""]
    for link in study.links:
        lines.append(f"- **{escaped(link.verdict.text)}** {escaped(link.verdict.note)}".rstrip())
    for link in study.links:
        lines += ["", f"### {escaped(link.where)}", ""]
        lines += table(tables.link_table(link, study.target_accuracy))
        if link.timelines:
            name = f"{at(link.where)}, one step: what goes on at the same time"
            lines += ["", *table(tables.timeline_table(name, link.timelines))]
    return [*lines, ""]


def _rest(report: Report) -> List[str]:
    lines: List[str] = []
    for comparison in report.comparisons:
        lines += [f"## {escaped(f'{comparison.run} beside {comparison.base}')}", ""]
        lines += [f"**{escaped(comparison.verdict)}**", ""]
        if comparison.unlike:
            lines += ["Settings that differ:", *_items(comparison.unlike), ""]
        lines += table(tables.comparison_table(comparison))
        for name, only in (
            (comparison.base, comparison.only_base),
            (comparison.run, comparison.only_run),
        ):
            if only:
                lines += ["", f"Only in {escaped(name)}:", *_items(only)]
        lines.append("")
    if report.scaling:
        lines += ["## Scaling with workers", "", *table(tables.scaling_table(report.scaling)), ""]
    if report.predictions:
        lines += ["## Predicted against measured", ""]
        lines += [*table(tables.prediction_table(report.predictions)), ""]
    if report.decisions:
        lines += [
            "## What auto chose and why",
            "",
            *_items(in_force(report.decisions)),
            "",
            *table(tables.decision_table(report.decisions)),
            "",
        ]
    if report.timelines:
        name = "Steps of traces: what goes on at the same time"
        lines += ["## What overlaps in a step", ""]
        lines += [*table(tables.timeline_table(name, report.timelines)), ""]
    lines += ["## Where the numbers are from", "", *table(tables.run_table(report.runs)), ""]
    lines += ["## To repeat it", ""]
    for run in report.runs:
        for command in run.commands:
            lines += [f"    {' '.join(command.split())}", ""]
    lines += ["Settings:", *_items(settings_lines(report)), ""]
    lines += ["## What was not measured", "", *_items(report.not_measured), ""]
    lines += ["## How to read this", "", *_items(HOW_TO_READ)]
    return lines


def _items(texts: Sequence[str]) -> List[str]:
    return [f"- {escaped(text)}" for text in texts]


def table(found: Table) -> List[str]:
    """Its caption, then a table; rows to point out have a bold first cell."""
    lines = [f"{escaped(found.caption)}:", ""]
    lines.append(f"| {' | '.join(escaped(name) for name in found.head)} |")
    lines.append("|" + " --- |" * len(found.head))
    for i, row in enumerate(found.rows):
        cells = [escaped(cell.text) for cell in row]
        if i in found.best:
            cells[0] = f"**{cells[0]}**"
        lines.append(f"| {' | '.join(cells)} |")
    return lines
