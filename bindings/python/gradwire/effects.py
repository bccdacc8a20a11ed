"""Options of a command that change nothing in what it was asked: said in one line each."""

import argparse
from typing import Any, Iterable, List, Optional, Sequence, Tuple

from . import _core

__all__ = ["Rule", "notes_of_first_steps", "remember_given", "without_effect"]

Rule = Tuple[str, bool, str]  #: an option, whether it has no effect here, and why


class _Given(argparse._StoreAction):
    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
                 option_string: Optional[str] = None) -> None:
        super().__call__(parser, namespace, values, option_string)
        namespace.given = {*getattr(namespace, "given", ()), self.dest}


def remember_given(parser: argparse.ArgumentParser) -> None:
    """Has the parser keep which options were given, defaults included; before options are added."""
    for name in (None, "store"):
        parser.register("action", name, _Given)


def without_effect(args: argparse.Namespace, rules: Iterable[Rule]) -> List[str]:
    """A line per option that was given and has no effect, by the first rule that says so."""
    said: List[str] = []
    seen: List[str] = []
    for option, idle, why in rules:
        name = option.lstrip("-").replace("-", "_")
        value = getattr(args, name, None)
        given = name in getattr(args, "given", ()) or value is True
        if idle and given and option not in seen:
            seen.append(option)
            said.append(f"{option} has no effect: {why}")
    return said


def of_all(options: Sequence[str], idle: bool, why: str) -> List[Rule]:
    """One rule for several options."""
    return [(option, idle, why) for option in options]


def notes_of_first_steps(specs: Sequence[str]) -> List[str]:
    """Of specs with start= or warmup=: which of their steps predictions are of."""
    notes = []
    for text in specs:
        spec, changes, at = _core.parse_spec(text), 0, 0
        while (later := spec.next_change(at)) is not None:
            changes, at = changes + 1, later
        if changes:
            notes.append(
                f"'{spec}': times are those of '{spec.lasting}', from step {at} on; the first step sends "
                f"'{spec.in_step(0)}'"
            )
    return notes
