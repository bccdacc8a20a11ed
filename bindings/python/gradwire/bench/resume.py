"""Going on with an interrupted benchmark: which runs a report has, and whether they are of this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from gradwire.bench import variants
from gradwire.bench.errors import UsageError
from gradwire.bench.job import Trial
from gradwire.bench.report import Report
from gradwire.bench.result_schema import SCHEMA, checked
from gradwire.bench.types import Document, Row
from gradwire.json_input import parsed

# What may be otherwise: how long to wait, and for how much there is time.
_FREE = {"timeout_s", "time_budget_s", "quick", "trainer"}
_OF_THE_MACHINE = ("cpu", "cores")


def take(file: Path, report: Report, trials: Sequence[Trial]) -> List[Trial]:
    """Fills the report with the rows of ``file``; the trials that are left.

    Rows that a time budget cut short, and runs that failed, are made again.

    Raises:
        UsageError: the file is no report, or one of another job: says which setting, and both values.
    """
    former = _read(file)
    _compare(file, former, report)
    for each in (former.get("budget") or {}).get("left_out") or []:
        if each.get("what") == "steps":
            raise UsageError(
                f"--resume {file}: its runs were shortened by --budget ({each.get('says')}), expected "
                "runs of the whole length"
            )
    wanted = {trial.key: trial for trial in trials}
    done: Dict[str, Tuple[Row, Document]] = {}
    for row, curve in zip(former["rows"], former["curves"]):
        key = row.get("key")
        if key not in wanted:
            raise UsageError(
                f"--resume {file}: has the run '{key or row.get('method')}', which is not asked for; "
                "expected the same or more workloads, links, methods and seeds"
            )
        if row.get("stopped_by") != "time budget":
            done[key] = (row, curve)
    for trial in trials:
        if trial.key in done:
            row, curve = done[trial.key]
            report.rows.append(row)
            report.curves.append(curve)
    report.more["resumed"] = [
        *(former.get("resumed") or []),
        {"rows": len(done), "ended": former.get("ended"), "load_at_start": _load(former)},
    ]
    return [trial for trial in trials if trial.key not in done]


def arrange(report: Report, trials: Sequence[Trial]) -> None:
    """Rows in the order in which they were asked for, whenever they were made."""
    places = {trial.key: place for place, trial in enumerate(trials)}
    pairs = list(zip(report.rows, report.curves))
    pairs.sort(key=lambda pair: places[pair[0]["key"]])
    report.rows[:] = [row for row, _ in pairs]
    report.curves[:] = [curve for _, curve in pairs]


def _read(file: Path) -> Document:
    try:
        found: Any = parsed(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"--resume {file}: {error.strerror}, expected a report of gradwire bench"
        ) from error
    except ValueError as error:
        raise UsageError(f"--resume {file}: is no JSON ({error}), expected a report") from error
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise UsageError(f"--resume {file}: its schema is {schema!r}, expected {SCHEMA!r}")
    lists = [found.get(name) for name in ("rows", "curves")]
    if not all(isinstance(each, list) for each in lists) or len(lists[0]) != len(lists[1]):
        raise UsageError(f"--resume {file}: has no rows with a curve each, expected a whole report")
    return checked(f"--resume {file}", found)


def _compare(file: Path, former: Document, report: Report) -> None:
    new = json.loads(json.dumps(report.document()))  # as a reader sees it
    pairs: List[Tuple[str, Any, Any]] = [
        (name, former.get(name), new.get(name)) for name in ("gradwire_version", "commit")
    ]
    pairs.append(("network", former.get("network"), new.get("network")))
    machines = former.get("machine") or {}, new["machine"]
    pairs += [(name, machines[0].get(name), machines[1].get(name)) for name in _OF_THE_MACHINE]
    known, asked = variants.settings_of(former), variants.settings_of(new)
    for variant in known.keys() & asked.keys():
        old_settings, settings = known[variant], asked[variant]
        pairs += [
            (name, old_settings.get(name), settings.get(name))
            for name in dict.fromkeys((*old_settings, *settings))
            if name not in _FREE
        ]
    for name, old, now in pairs:
        if old != now:
            raise UsageError(
                f"--resume {file}: its {name} is {_short(old)}, here it is {_short(now)}; "
                "expected the same job on the same machine"
            )


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _load(former: Document) -> Any:
    return (former.get("machine") or {}).get("load_at_start")
