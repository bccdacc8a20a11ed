"""A sweep's options from a TOML file: the words of the command line, which goes before the file.

    workload = ["mlp", "bytes"]
    links = ["50mbit", "1gbit"]
    methods = ["none", "topk:1%,int4"]
    seeds = 3
    keep-going = true

    [workloads.bytes]          # for this workload alone
    max-steps = 200
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, NoReturn

from gradwire.bench import options, workloads
from gradwire.bench.errors import UsageError

# What one workload may have otherwise than the others.
_OWN = (
    "methods", "data", "text", "hidden", "convolutions", "optimizer", "learning-rate",
    "local-steps", "outer", "outer-rate", "schedule", "warmup-steps", "batch-size", "epochs", "max-steps",
    "target-accuracy", "stop-at-target", "eval-every", "exchange", "bucket-kib", "overlap",
)  # fmt: skip
_TABLE = "workloads"
_NOT_HERE = ("config", "help", "debug", "accuracy-at-equal-epochs")


def read(args: argparse.Namespace) -> Dict[str, Dict[str, Any]]:
    """Fills ``args`` with what the file of ``--config`` says and the command line does not.

    Returns:
        the options that single workloads have for themselves, by workload.

    Raises:
        UsageError: no such file, no TOML, an unknown key or a value that its option refuses.
    """
    if args.config is None:
        return {}
    file = Path(args.config)
    document = _document(file)
    tables = document.pop(_TABLE, {})
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise UsageError(f"{file}: workloads, expected tables such as [workloads.cnn]")
    parser = _Parser(file)
    options.add_arguments(parser)
    known = sorted(
        name[2:] for action in parser._actions for name in action.option_strings
        if name.startswith("--") and name[2:] not in _NOT_HERE
    )  # fmt: skip
    said = _parsed(parser, file, document, [*known, _TABLE])
    for name in options.given(said) - options.given(args):
        setattr(args, name, getattr(said, name))
    own: Dict[str, Dict[str, Any]] = {}
    for name, table in tables.items():
        _check_known(f"{file}: [{_TABLE}.{name}]", [name], workloads.NAMES)
        found = _parsed(parser, file, table, _OWN)
        own[name] = {each: getattr(found, each) for each in options.given(found)}
    return own


class _Parser(argparse.ArgumentParser):
    """One whose errors name the file."""

    def __init__(self, file: Path) -> None:
        super().__init__(add_help=False)
        self._file = file

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self._file}: {message.replace('argument --', '', 1)}")


def _document(file: Path) -> Dict[str, Any]:
    toml = _toml()
    try:
        with open(file, "rb") as stream:
            found: Dict[str, Any] = toml.load(stream)
            return found
    except OSError as error:
        raise UsageError(f"--config {file}: {error.strerror}, expected a TOML file") from error
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are such
        raise UsageError(f"--config {file}: is no TOML: {error}") from error


def _toml() -> Any:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib
    try:
        import tomli  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise UsageError(
            "--config: needs Python 3.11 or newer, or pip install tomli (gradwire[bench] has it)"
        ) from error
    return tomli


def _parsed(
    parser: argparse.ArgumentParser, file: Path, table: Dict[str, Any], known: Iterable[str]
) -> argparse.Namespace:
    """As if its keys had been said on a command line."""
    words: List[str] = []
    names = list(known)
    for key, value in table.items():
        name = key.replace("_", "-")
        _check_known(str(file), [name], names)
        words += _words(parser, file, name, value)
    return parser.parse_args(words)


def _check_known(where: str, keys: Iterable[str], known: Iterable[str]) -> None:
    for key in keys:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"expected {', '.join(known)}"
            raise UsageError(f"{where}: '{key}' is unknown, {hint}")


def _words(parser: argparse.ArgumentParser, file: Path, name: str, value: Any) -> List[str]:
    action = parser._option_string_actions[f"--{name}"]
    if action.nargs == 0:  # a flag
        if not isinstance(value, bool):
            raise UsageError(f"{file}: {name}: {value!r}, expected true or false")
        return [f"--{name}"] if value else []
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, list):
        if not all(isinstance(each, (str, int, float)) for each in value):
            raise UsageError(f"{file}: {name}: {value!r}, expected a list of words or numbers")
        specs = name in ("methods", "optimizer")  # whose words may hold commas
        if name == "methods" and len(value) == 1:
            value = [str(value[0]).replace(",", "+")]  # without a ';' a comma would separate
        value = (";" if specs else ",").join(map(str, value))
        if name == "seeds" and "," not in value:
            value += ","  # a list of one seed, and no count
    if not isinstance(value, (str, int, float)):
        raise UsageError(f"{file}: {name}: {value!r}, expected a word, a number or a list")
    return [f"--{name}={value}"]
