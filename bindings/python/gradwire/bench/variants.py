"""Rows of several trainings in one report: what is said of rows is said within each of them."""

from __future__ import annotations

import re
from typing import Dict, List, Sequence, Tuple

from gradwire.bench import summary
from gradwire.bench.types import Document, Row


def name(row: Row) -> str:
    """What the row has trained; reports of earlier versions have one training, without a name."""
    return str(row.get("variant") or "")


def groups(rows: Sequence[Row]) -> List[Tuple[str, List[Row]]]:
    """The rows of each training, in the order in which they first appear."""
    found: Dict[str, List[Row]] = {}
    for row in rows:
        found.setdefault(name(row), []).append(row)
    return list(found.items())


def sentences(rows: Sequence[Row]) -> List[str]:
    """One for each link, of each training."""
    found = groups(rows)
    return [
        f"{variant}; {text}" if len(found) > 1 else text
        for variant, its in found
        for text in summary.sentences(its)
    ]


def accuracy_differences(rows: Sequence[Row]) -> List[Row]:
    """`summary.accuracy_differences` of each training, with its name."""
    return [
        dict(item, variant=variant)
        for variant, its in groups(rows)
        for item in summary.accuracy_differences(its)
    ]


def accuracies_at_equal_epochs(rows: Sequence[Row]) -> List[Document]:
    """Of each training, at the end of the last epoch that all its rows have (0: there is none)."""
    return [
        {"variant": variant, "epoch": epoch, "rows": summary.accuracy_at(its, epoch)}
        for variant, its in groups(rows)
        for epoch in [summary.equal_epochs(its)]
    ]


def table(rows: Sequence[Row]) -> str:
    """One table for each training, under its name where there are several."""
    found = groups(rows)
    if len(found) < 2:
        return summary.table(rows)
    return "\n\n".join(f"{variant}\n{summary.table(its)}" for variant, its in found)


def settings_of(document: Document) -> Dict[str, Document]:
    """Those of each training, by its name."""
    first = {k: v for k, v in (document.get("settings") or {}).items() if k != "variants"}
    several = (document.get("settings") or {}).get("variants") or []
    found = {str(first.get("variant") or ""): first}
    for each in several:
        own = {name: value for name, value in each.items() if name != "name"}
        found[str(each["name"])] = {**first, **own, "variant": each["name"]}
    return found


def parts(document: Document) -> List[Tuple[str, Document]]:
    """The document of each training alone, with the name of a folder for its plots."""
    found = groups(document["rows"])
    if len(found) < 2:
        return [("", document)]
    pairs = list(zip(document["rows"], document["curves"]))
    made = []
    for variant, its in found:
        curves = [curve for row, curve in pairs if name(row) == variant]
        settings = settings_of(document).get(variant, document["settings"])
        folder = re.sub("[^a-z0-9.]+", "-", variant).strip("-")
        made.append((folder, dict(document, settings=settings, rows=its, curves=curves)))
    return made
