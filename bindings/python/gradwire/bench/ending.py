"""How a benchmark ends: what was measured reaches the screen and the files in any case."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Callable, List, Optional, Tuple

from gradwire.bench import summary, variants
from gradwire.bench.errors import Interrupted, RunError, UsageError
from gradwire.bench.plots import write_plots
from gradwire.bench.report import Report
from gradwire.bench.signals import held
from gradwire.bench.types import Document
from gradwire.report.write import write_report
from gradwire.streams import note, try_output

# Where JSON is to go instead of a file: told from one of this name by being this very object.
STDOUT = Path("-")


def check_json(path: Path, option: str = "json") -> None:
    """Refuses, before anything runs, a file that could not be written at the end."""
    if path.exists() and not path.is_dir() and not path.is_file():  # a device or a pipe
        reason = None if os.access(path, os.W_OK) else "Permission denied"
    else:
        reason = "a folder" if path.is_dir() else _unwritable(Path(os.path.realpath(path)).parent)
    if reason:
        raise UsageError(f"--{option} {path}: {reason}, expected a file name in a writable folder")


def check_folder(folder: Path) -> None:
    """Makes the folder of the plots, or says why it cannot be used."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = _unwritable(folder)
    except OSError as error:
        reason = error.strerror
    if reason:
        raise UsageError(f"--output {folder}: {reason}, expected a folder that can be written")


def _unwritable(folder: Path) -> Optional[str]:
    """Tried with a file: permissions alone do not tell of read-only or full file systems."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".gradwire-", dir=folder) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def conclude(
    work: Callable[[], None],
    report: Report,
    json_file: Optional[Path],
    output: Optional[Path],
    page: Optional[Path] = None,
) -> None:
    """Does the work and tells what the report then holds, however the work ended.

    :param output: where plots go; None: there are none.
    :param page: where the report goes.
    :raises RunError: the work succeeded, but some result could not be written.
    """
    told = False
    failure: Optional[Exception] = None
    unwritten: List[str] = []
    try:
        try:
            work()
            report.ended = "complete"
        except Exception as error:
            failure, report.ended = error, str(error)
        with held():  # a signal waits until all is written, then raises Interrupted
            unwritten, told = tell(report, json_file, output, page), True
    except Interrupted as error:  # comes once: further signals are ignored
        if not told:
            report.ended = f"interrupted by {error}"
            unwritten = tell(report, json_file, output, page)
        _note_unwritten(unwritten)
        raise
    if failure:
        _note_unwritten(unwritten)
        raise failure
    if unwritten:
        raise RunError(f"could not write {'; '.join(unwritten)}")


def keeper(report: Report, json_file: Optional[Path]) -> Callable[[], None]:
    """Writes the report so far, after every run. A full disk leaves the file as it was and is told
    once; the end tries again. A pipe or a device is written to at the end alone."""
    told: List[str] = []

    def keep() -> None:
        if json_file is None or json_file is STDOUT:
            return
        if json_file.exists() and not json_file.is_file():
            return
        try:
            report.write(json_file)
        except OSError as error:
            if not told:
                told.append(f"{json_file}: {error.strerror or error}")
                note(
                    f"gradwire bench: could not write {told[0]}; goes on, and tries again after "
                    "the next run"
                )

    return keep


def _note(text: str) -> Optional[str]:
    note(text)
    return None


def _note_unwritten(unwritten: List[str]) -> None:
    for each in unwritten:
        note(f"gradwire bench: could not write {each}")


def tell(
    report: Report,
    json_file: Optional[Path],
    output: Optional[Path],
    page: Optional[Path] = None,
) -> List[str]:
    """Prints first, since that needs no disk; 'name: reason' of each result it could not write.

    Where the JSON is to be on standard output, all else is on standard error."""
    document = report.document()
    say = _note if json_file is STDOUT else try_output
    unwritten = []
    if report.rows:
        reason = say(_text(report, document))
        unwritten += [f"standard output: {reason}"] if reason else []
    written = []
    if json_file is STDOUT:
        reason = try_output(report.text())
        unwritten += [f"standard output: {reason}"] if reason else []
    elif json_file:
        try:
            report.write(json_file)
            written.append(json_file)
        except OSError as error:
            unwritten.append(f"{json_file}: {error.strerror or error}")
    plots, failed = _plots(document, output) if output else ([], [])
    unwritten += failed
    if page and report.rows:
        try:
            named = json_file.name if json_file and json_file is not STDOUT else "this run"
            write_report(document, page, named)
            written.append(page)
        except OSError as error:
            unwritten.append(f"{page}: {error.strerror or error}")
    if report.rows:
        say("\n".join(f"wrote {path}" for path in plots + written))
    return unwritten


def _plots(document: Document, output: Path) -> Tuple[List[Path], List[str]]:
    """In folders of their own where several trainings are in one report."""
    plots, failed = [], []
    for folder, part in variants.parts(document):
        try:
            if folder:
                (output / folder).mkdir(exist_ok=True)
        except OSError as error:
            failed.append(f"{output / folder}: {error.strerror or error}")
            continue
        found, not_found = write_plots(part, output / folder)
        plots += found
        failed += not_found
    return plots, failed


def _text(report: Report, document: Document) -> str:
    lines = ["", variants.table(report.rows), "", summary.TABLE_NOTE, "", *document["sentences"]]
    several = len(variants.groups(report.rows)) > 1
    for item in document["accuracy_minus_none_points"]:
        where = f"{item['variant']}; {item['link']}" if several else item["link"]
        lines.append(
            f"{where}: {item['method']} minus none at equal epochs: {item['points']:+.2f} ± "
            f"{item['half_width']:.2f} points of accuracy ({item['seeds']} paired seeds)"
        )
    for row in document["rows"]:
        where = f"{row['variant']}; {row['link']}" if several else row["link"]
        lines += [
            f"{where}, {row['method']}, seed {row['seed']}, step {d['step']}, {d['what']}: "
            f"{d['from']} -> {d['to']}: {d['reason']}"
            for d in row.get("decisions", [])
        ]
    cut = [row for row in report.rows if row["stopped_by"] == "time budget"]
    if cut:
        more = "a longer --budget" if "budget" in document else "--time-budget 0: none"
        lines.append(f"{len(cut)} run(s) were stopped by the time budget ({more})")
    lines += [f"failed: {failure['error']}" for failure in document.get("failures", [])]
    lines += [f"left out: {each['says']}" for each in document.get("budget", {}).get("left_out", [])]
    return "\n".join(lines)
