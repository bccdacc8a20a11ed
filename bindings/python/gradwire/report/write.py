"""A report as a file: HTML, Markdown or JSON by the ending of its name, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Sequence

from gradwire.bench.errors import UsageError
from gradwire.bench.files import write_whole
from gradwire.bench.types import Document
from gradwire.report import sources
from gradwire.report.build import build
from gradwire.report.document import Report
from gradwire.report.html import html
from gradwire.report.markdown import markdown
from gradwire.report.sources import CARRIED, Source

FORMS = (".html", ".md", ".json")


def check_output(option: str, path: Path) -> None:
    """Refuses, before anything runs, what could not be written at the end."""
    if path.suffix.lower() not in FORMS:
        raise UsageError(f"{option} {path}: expected a name ending in {', '.join(FORMS)}")
    if path.is_dir():
        raise UsageError(f"{option} {path}: a folder, expected a file name")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path}: {folder} is no writable folder")


def rendered(report: Report, results: Sequence[Source], path: Path) -> str:
    """The text of the file, by the ending of its name."""
    suffix = path.suffix.lower()
    if suffix == ".html":
        return html(report, results)
    if suffix == ".md":
        return markdown(report)
    document = {**report.document(), CARRIED: sources.packed(list(results))}
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_report(document: Document, path: Path, name: str) -> None:
    """Of one sweep's results, as `gradwire bench --report` does it.

    :raises OSError: it could not be written; what was there before is still there.
    """
    found = [sources.of(name, document)]
    write_whole(path, rendered(build(found), found, path))
