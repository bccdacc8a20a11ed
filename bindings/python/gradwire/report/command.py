"""`gradwire report FILE…`: results of the benchmark as one page, and of several runs beside one another."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Sequence

from gradwire.bench.errors import BenchError, RunError, UsageError
from gradwire.bench.files import write_whole
from gradwire.report import sources, timeline
from gradwire.report.build import build
from gradwire.report.markdown import markdown
from gradwire.report.write import check_output, rendered
from gradwire.streams import note, open_missing, settle, try_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `gradwire report`."""
    parser.description = (
        "Makes one report of results of `gradwire bench --json FILE`. Files of one machine and version "
        "that complete one another (other links, methods, seeds or workers) are merged; a file that "
        "measured the same again, elsewhere or with another version is compared with the first, method "
        "by method, with 95% intervals. Reports can be read again, as HTML or JSON."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="results or reports: .json, .html")
    parser.add_argument(
        "--output", metavar="FILE", help="where to: .html, .md or .json [Markdown on the terminal]"
    )
    parser.add_argument(
        "--trace", action="append", default=[], metavar="FILE",
        help="a step's trace for Perfetto, to show what overlaps; may be repeated",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """The exit code: 0, 1 could not write, 2 bad input."""
    open_missing()
    try:
        return _run(args)
    except BenchError as error:
        note(f"gradwire report: {error}")
        return error.exit_code
    finally:
        settle()


def _run(args: argparse.Namespace) -> int:
    output = Path(args.output) if args.output else None
    if output is not None:
        check_output("--output", output)
    found = [source for name in args.files for source in sources.read(Path(name))]
    timelines = [timeline.read(Path(name)) for name in args.trace]
    made = build(found, timelines)
    if output is None:
        reason = try_output(markdown(made).rstrip("\n"))
        if reason:
            raise RunError(f"standard output: {reason}")
        return 0
    _check_inputs(output, args.files + args.trace)
    try:
        write_whole(output, rendered(made, found, output))
    except OSError as error:
        raise RunError(f"could not write {output}: {error.strerror or error}") from None
    for comparison in made.comparisons:
        try_output(comparison.verdict)
    for study in made.studies:
        try_output("\n".join(link.verdict.text for link in study.links))
    try_output(f"wrote {output}")
    return 0


def _check_inputs(output: Path, names: Sequence[str]) -> None:
    """A result takes hours to make: a report never takes its place."""
    for name in names:
        if output.exists() and os.path.samefile(name, output):
            raise UsageError(
                f"--output {output}: is one of the files to read, expected another name"
            )
