"""What compressors cost on this machine, its CPU or a GPU: measured once, kept in the user's cache folder."""

import json
import logging
import math
import os
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Set

from . import _core, json_input
from .errors import InvalidArgument
from .planning import Codec, measure_codecs
from .whole_files import replacing

__all__ = ["cache_file", "cached_codecs", "needed_codecs"]

_FORMAT, _VERSION = "gradwire.codecs", 1
_MOST_BYTES = 16 << 20  # some hundred machines with all their specs have less than one
_LONGEST_S, _FASTEST = 3600.0, 1e15  # of a codec's floor, and of its rate in bytes/s
_log = logging.getLogger("gradwire")
_told: Set[str] = set()


def cached_codecs(
    specs: Sequence[str],
    threads: int = 1,
    *,
    budget_s: float = 5.0,
    file: "Optional[os.PathLike[str]]" = None,
    machine: Optional[str] = None,
    measure: Optional[Callable[[str], Codec]] = None,
) -> Dict[str, Codec]:
    """measure_codecs(), for those specs alone that no earlier run on such a machine has measured.

    What is known is kept by model of the CPU, threads, version of the library and spec. A cache that
    is damaged or cannot be written is told once, as a warning of the logger "gradwire", and does
    without.

    Args:
        threads: of the compressors.
        budget_s: seconds; a spec at whose turn they are over is not measured.
        file: of the cache; by default cache_file().
        machine, measure: another one than this CPU with so many threads: what it is called, and what
            times a spec there.

    Returns:
        By spec as it was asked for, without those for which the time was over and those whose times
        followed no law even when measured twice: the log names them.

    Raises:
        InvalidArgument: a spec is none.
    """
    begin = time.perf_counter()
    names = {spec: str(_core.parse_spec(spec)) for spec in specs}
    path = cache_file() if file is None else Path(file)
    machine = machine or _machine(threads)
    measure = measure or (lambda spec: measure_codecs([spec], threads)[spec])
    known = _read(path).get(machine, {})
    measured: Dict[str, Codec] = {}
    for spec, name in names.items():
        if name in known or name in measured:
            continue
        if time.perf_counter() - begin >= budget_s:
            _log.info("%s is not timed, %g s for probes are over", spec, budget_s)
            continue
        found = _measured(spec, measure)
        if found is not None:
            measured[name] = found
    if measured:
        _write(path, machine, measured)
    found_by_name = {**known, **measured}
    return {spec: found_by_name[name] for spec, name in names.items() if name in found_by_name}


def needed_codecs(
    specs: Sequence[str], threads: int = 1, *, file: "Optional[os.PathLike[str]]" = None
) -> Dict[str, Codec]:
    """cached_codecs() of all of the specs, however long it takes.

    Raises:
        InvalidArgument: a spec is none, or its times followed no law in two measurements.
    """
    found = cached_codecs(specs, threads, budget_s=math.inf, file=file)
    missing = [spec for spec in specs if spec not in found]
    if missing:
        raise InvalidArgument(
            f"codec {missing[0]}: what it takes followed no law in two measurements on this machine, "
            "expected a floor and a rate: try again when less runs here"
        )
    return found


def cache_file() -> Optional[Path]:
    """$XDG_CACHE_HOME/gradwire/codecs.json, else ~/.cache/...; None where there is no home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        folder = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "gradwire" / "codecs.json"


def _measured(spec: str, measure: Callable[[str], Codec]) -> Optional[Codec]:
    problem: Optional[InvalidArgument] = None
    for _ in range(2):  # another process may have had the cores
        try:
            return measure(spec)
        except InvalidArgument as error:
            problem = error
    _log.info("%s is not timed: %s", spec, problem)
    return None


def _machine(threads: int) -> str:
    from .bench.machine import machine

    return f"{machine()['cpu']}, {threads} thread(s), gradwire {_core.build_info()['version']}"


def _tell_once(path: Path, what: str) -> None:
    text = f"{path}: {what}"
    if text not in _told:
        _told.add(text)
        _log.warning("%s", text)


def _read(path: Optional[Path]) -> Dict[str, Dict[str, Codec]]:
    if path is None:
        return {}
    try:
        return _checked(_loaded(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _tell_once(path, f"cannot be used ({error}), compressors are timed anew")
        return {}


def _loaded(path: Path) -> Any:
    if not path.is_file() and path.exists():
        raise ValueError("it is no file")  # to open a pipe would wait for whoever writes
    with open(path, "rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
    return json_input.parsed(data.decode("utf-8"))


def _checked(document: Any) -> Dict[str, Dict[str, Codec]]:
    """Raises ValueError for what _write() has not written."""
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError(f"is no {_FORMAT}")
    if document.get("version") != _VERSION:
        raise ValueError(f"version is {document.get('version')!r}, expected {_VERSION}")
    machines: Dict[str, Dict[str, Codec]] = {}
    for machine, rows in document["machines"].items() if _is_dict(document, "machines") else ():
        if not isinstance(rows, dict):
            raise ValueError(f"'{machine}' has no compressors")
        machines[machine] = {spec: _codec(spec, row) for spec, row in rows.items()}
    return machines


def _is_dict(document: Dict[str, Any], key: str) -> bool:
    if not isinstance(document.get(key), dict):
        raise ValueError(f"has no {key}")
    return True


def _codec(spec: str, row: Any) -> Codec:
    """As measure_codecs() can have found it: what the planner would refuse is not taken from here."""
    numbers = isinstance(row, list) and all(type(x) in (int, float) for x in row)
    most = (_LONGEST_S, _FASTEST) * 2
    if not numbers or len(row) != 4 or not all(0 <= x <= top for x, top in zip(row, most)):
        raise ValueError(
            f"costs of '{spec}' are {json_input.shown(row)}, expected 4 numbers: floors of 0 to "
            f"{_LONGEST_S:g} s and rates of 0 to {_FASTEST:g} bytes/s"
        )
    return float(row[0]), float(row[1]), float(row[2]), float(row[3])


def _write(path: Optional[Path], machine: str, measured: Dict[str, Codec]) -> None:
    if path is None:
        return
    machines = _read(path)  # anew: another process may have added to it
    machines[machine] = {**machines.get(machine, {}), **measured}
    text = json.dumps({"format": _FORMAT, "version": _VERSION, "machines": machines}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as out:
            out.write(f"{text}\n".encode())
    except OSError as error:
        _tell_once(path, f"cannot be written ({error}), the next run times compressors anew")
