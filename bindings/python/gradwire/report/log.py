"""What method ``auto`` chose: the decisions that a result's rows or the result itself may carry."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from gradwire.bench.choices import TRYING, unfinished
from gradwire.bench.types import Document, Row
from gradwire.report.document import Decision, Prediction
from gradwire.report.runs import workload_of
from gradwire.report.sources import Source
from gradwire.report.units import UNSHAPED, digits, rate, size
from gradwire.report.verdict import at

# What logs call the choice, its reason and its step, the first that is there.
_CHOSEN = ("chosen", "plan", "choice", "spec", "to", "method", "decision")
_WHY = ("why", "reason", "because", "text")
_STEP = ("step", "at_step")


Labelled = Sequence[Tuple[str, Sequence[Source]]]

# Of the numbers of a decision: what a plan was predicted to take, and what it took when it was tried.
_PREDICTED, _TRIED = "predicted_s of ", "step_s of "
_DENSE = "dense_step_s"
TRIALS = "auto, before it tried "


def decisions(labelled: Labelled) -> List[Decision]:
    return [
        _decision(label, source.document, row, entry)
        for label, group in labelled
        for source in group
        for row, entry in _entries(source.document)
    ]


def in_force(found: Sequence[Decision]) -> List[str]:
    """A sentence for each run: the plan with which it ended, and why."""
    runs: Dict[Tuple[str, str, str, int], List[Decision]] = {}
    for each in found:
        runs.setdefault((each.run, each.workload, each.where, each.seed), []).append(each)
    several = len({key[:2] for key in runs}) > 1
    said = []
    for (run, workload, where, seed), log in runs.items():
        of = " ".join(part for part in (run and f"{run}:", workload) if part)
        prefix = f"{of}: " if several and of else ""
        prefix += f"{at(where)}, seed {seed}: "
        said.append(prefix + _at_the_end(log))
    return said


def _at_the_end(log: List[Decision]) -> str:
    """What was in force; a plan whose turn it was when the run ended is no choice."""
    doing = unfinished([str(each.details.get("what")) for each in log])
    chosen = list(log)
    while chosen and _trying(chosen[-1]):
        chosen.pop()
    if doing is None:
        return _chosen(chosen)
    text = f"the run ended while auto was still {doing}"
    if not chosen:
        return f"{text}, so it has chosen nothing."
    return f"{text} anew; before that {_chosen(chosen)}"


def _chosen(log: List[Decision]) -> str:
    """The last plan, since when and why: it may have been confirmed since, and tried before."""
    first = last = log[-1]
    for each in reversed(log):
        if _trying(each) or each.chosen != last.chosen:
            break
        first = each
    step = "" if first.step is None else f" from step {first.step} on"
    return f"{last.chosen}{step}: {first.why}."


def _trying(decision: Decision) -> bool:
    return decision.details.get("what") in TRYING


def trials(labelled: Labelled) -> List[Prediction]:
    """What auto predicted of a plan beside what that took when it was tried, as its log has both."""
    found = []
    for label, group in labelled:
        for source in group:
            predicted: Dict[Tuple[int, str], float] = {}
            for row, entry in _entries(source.document):
                numbers = entry.get("numbers")
                for name, value in numbers.items() if isinstance(numbers, dict) else ():
                    if not _positive(value):
                        continue
                    plan = name.partition(" of ")[2]
                    if name.startswith(_PREDICTED):
                        predicted[id(row), plan] = value
                    elif name.startswith(_TRIED) and (id(row), plan) in predicted:
                        found.append(
                            Prediction(
                                label, workload_of(source.document, row),
                                int(row.get("world_size") or 0), _where(row, row.get("link")),
                                str(row.get("method")), "step time, ms",
                                1e3 * predicted[id(row), plan], 1e3 * value, TRIALS + plan,
                            )
                        )  # fmt: skip
    return found


def numbers_of(details: Dict[str, Any]) -> str:
    """The numbers of a decision as people read them: seconds as milliseconds, rates in bytes."""
    found = details.get("numbers")
    said = []
    for name, value in found.items() if isinstance(found, dict) else ():
        if name == _DENSE and value == 0:
            continue  # no dense step was timed
        said.append(_with_unit(name, value))
    rest = {name: value for name, value in details.items() if name not in ("numbers", "what", "from")}
    return "; ".join(said + [f"{name}: {_text(value)}" for name, value in rest.items()])


def _with_unit(name: str, value: Any) -> str:
    """step_s of int8 -> step of int8 138 ms; dense_step_s, predicted; bytes_per_s -> link 5.2 MB/s."""
    quantity = re.split(" of |, ", name, maxsplit=1)[0]
    more = name[len(quantity) :]
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    if quantity == "bytes_per_s":
        return f"link{more} {f'{size(value)}/s' if known else _text(value)}"
    seconds = quantity.endswith("_s")
    label = quantity[: -2 if seconds else None].replace("_", " ") + more
    return f"{label} {f'{digits(1e3 * value)} ms' if seconds and known else _text(value)}"


def _positive(value: Any) -> bool:
    """Of a time in seconds that a step can take."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 1e-12 < value < 1e12


def _entries(document: Document) -> Iterator[Tuple[Row, Dict[str, Any]]]:
    """Each with the row it belongs to, or what the file says of its link and seed."""
    by_run = {(row["link"], row["method"], row["seed"]): row for row in document["rows"]}
    for row in [*document["rows"], document]:
        log = row.get("decisions")
        for item in log if isinstance(log, list) else []:
            if isinstance(item, dict) and isinstance(item.get("decisions"), list):
                run = by_run.get((item.get("link"), item.get("method"), item.get("seed")), item)
                yield from ((run, _as_entry(each)) for each in item["decisions"])
            else:
                yield row, _as_entry(item)


def _as_entry(item: Any) -> Dict[str, Any]:
    return item if isinstance(item, dict) else {"why": str(item)}


def _where(row: Row, link: Any) -> str:
    mbit = row.get("link_mbit_per_s")
    return rate(mbit * 1e6) if mbit else UNSHAPED if link == "none" else str(link or "")


def _decision(label: str, document: Document, row: Row, entry: Dict[str, Any]) -> Decision:
    step = _first(entry, _STEP)
    seed = entry.get("seed", row.get("seed"))
    used = {next((n for n in names if n in entry), "") for names in (_CHOSEN, _WHY, _STEP)}
    return Decision(
        run=label,
        workload=workload_of(document, row) if "workload" in row else "",
        where=_where(row, entry.get("link") or row.get("link")),
        seed=seed if isinstance(seed, int) else 0,
        step=step if isinstance(step, int) else None,
        chosen=_text(_first(entry, _CHOSEN)),
        why=_text(_first(entry, _WHY)),
        details={k: v for k, v in entry.items() if k not in used | {"link", "seed"}},
    )


def _first(entry: Dict[str, Any], names: Sequence[str]) -> Optional[Any]:
    return next((entry[name] for name in names if name in entry), None)


def _text(value: Any) -> str:
    if value is None:
        return "not said"
    if isinstance(value, (list, tuple)):
        return "; ".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_text(v)}" for k, v in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
