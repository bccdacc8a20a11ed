"""Damaged results: each becomes a report or one line that says what is wrong."""

import json

import bench_support  # noqa: F401
import pytest
import report_mutants
from sampling import SEED, SOAK

from gradwire.bench.errors import BenchError
from gradwire.report import sources
from gradwire.report.build import build
from gradwire.report.write import rendered

_IN_SUITE, _IN_SOAK = 40, 1500  # of each of three kinds of file


def outcome(path, other=()):
    """ "a report", or the line with which the file is refused."""
    try:
        found = [*sources.read(path), *other]
    except BenchError as error:
        text = str(error)
        assert text.startswith(str(path)) and "expected" in text and len(text) < 600, text
        text.encode("utf-8")
        return text
    made = build(found)
    for name in ("x.html", "x.json", "x.md"):
        rendered(made, found, path.with_name(name)).encode("utf-8")
    return "a report"


def whole_files(folder):
    """Text of a result, of a page and of a report in JSON, made of one result each."""
    found = [sources.of("out.json", report_mutants.whole())]
    made = build(found)
    return [json.dumps(report_mutants.whole()), *(
        rendered(made, found, folder / name) for name in ("x.html", "x.json"))]


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["a result", "a page", "a report in JSON"])
def test_a_damaged_file_becomes_a_report_or_a_clear_refusal(tmp_path, kind):
    texts = whole_files(tmp_path)
    text = texts[["a result", "a page", "a report in JSON"].index(kind)]
    other = [sources.of("other.json", {**report_mutants.whole(), "gradwire_version": "0"})]
    path = tmp_path / "damaged"
    path.write_text(text)
    assert outcome(path) == "a report"
    reports = 0
    for number in range(_IN_SOAK if SOAK else _IN_SUITE):
        path.write_bytes(report_mutants.mutant(SEED + number, text))
        try:
            reports += outcome(path, other if number % 4 == 0 else ()) == "a report"
        except Exception as error:
            kept = tmp_path / f"mutant-{SEED + number}"
            kept.write_bytes(path.read_bytes())
            raise AssertionError(f"mutant {SEED + number} of {kind}, kept as {kept}") from error
    assert reports, "no damage was harmless: the mutants are all alike"
