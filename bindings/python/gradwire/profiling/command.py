"""`gradwire profile`: its options, the order of events, the table and the files (docs/profile.md)."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

from gradwire import json_output
from gradwire.bench.arguments import Link, parse_link
from gradwire.bench.digits import IDX_NAMES, digits_folder
from gradwire.bench.ending import check_json
from gradwire.bench.errors import BenchError, Interrupted, UsageError
from gradwire.bench.files import scratch_folder, write_whole
from gradwire.bench.job import cores, threads_per_rank
from gradwire.bench.machine import commit, load, machine
from gradwire.bench.signals import interruptible
from gradwire.bench.texts import standard_library
from gradwire.profiling import needs_torch
from gradwire.profiling.page_cache import files_under
from gradwire.profiling.plot import write_plot
from gradwire.profiling.runs import RUNS, Asked, Found, measure
from gradwire.profiling.worker import BUILT_IN
from gradwire.simulating import aligned
from gradwire.streams import note, open_missing, settle

__all__ = ["add_arguments", "run"]

_BATCHES = {"mlp": 64, "cnn": 32, "bytes": 8}
_TEXT_BYTES = 4 << 20
#: stall, what it is, of which run it is a share.
_STALLS = (
    ("interconnect", "gradients between the workers of a host", "all workers"),
    ("network", "gradients between two hosts", "all workers"),
    ("preparation", "making batches of data that is cached", "cached"),
    ("fetch", "reading data that is not cached", "nothing cached"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `gradwire profile`."""
    parser.description = (
        "Measures what a training step takes, layer by layer, and what it waits for: it starts the "
        "job with one worker and with several, with real data and without, on one host and on two "
        "network namespaces, and compares.")
    what = parser.add_argument_group("the job")
    what.add_argument("what", metavar="WHAT",
                      help=f"{', '.join(BUILT_IN)}, or script.py:function or module:function that "
                           "returns (step_fn, loader, model)")
    what.add_argument("--batch", type=int, metavar="N",
                      help="samples per step and worker [the loader's batch_size; 64, 32, 8]")
    what.add_argument("--spec", default="none", help="compressor of a built-in job's gradients [none]")
    what.add_argument("--data", action="append", default=[], metavar="PATH",
                      help="a file or folder that the loader reads, for the fetch stall; repeatable")
    how = parser.add_argument_group("the runs")
    how.add_argument("--workers", type=int, metavar="N", help="[one per core, 2 at least]")
    how.add_argument("--link", default="1gbit", help="between the two hosts: 50mbit, .., none [1gbit]")
    how.add_argument("--steps", type=int, default=20, metavar="N", help="measured in a run [20]")
    how.add_argument("--warmup", type=int, default=3, metavar="N", help="steps before them [3]")
    how.add_argument("--rounds", type=int, default=3, metavar="N", help="of all runs in turn [3]")
    how.add_argument("--timeout", type=float, default=60.0, metavar="S",
                     help="for a silent worker; a run of a job must not take longer [60]")
    out = parser.add_argument_group("output")
    out.add_argument("--output", default="profile.json", metavar="FILE",
                     help="the profile of one worker, for gradwire simulate and plan [profile.json]")
    out.add_argument("--json", metavar="FILE", help="runs and stalls, - for the terminal")
    out.add_argument("--plot", metavar="FILE", help="the stalls as an image: .svg, .png, .pdf")


def run(args: argparse.Namespace) -> int:
    """The exit code: 0, 1 a run failed, 2 bad input, 130 interrupted."""
    open_missing()
    try:
        with interruptible(), scratch_folder() as scratch:
            return _run(args, scratch)
    except BenchError as error:
        note(f"gradwire profile: {error}")
        return error.exit_code
    except Interrupted as error:
        note(f"gradwire profile: interrupted by {error}")
        return error.exit_code
    finally:
        settle()


def _run(args: argparse.Namespace, scratch: Path) -> int:
    link = _check(args)
    asked = _asked(args, link, scratch)
    if load() > cores():
        note(f"this machine is busy (load {load():g} on {cores()} core(s)): times are longer")

    def keep(profile: Dict[str, Any]) -> None:
        write_whole(Path(args.output), json.dumps(profile, indent=1) + "\n")

    found = measure(asked, scratch, note, keep)
    document = _document(asked, found)
    if args.json != json_output.STDOUT:
        print("\n".join(_lines(asked, found, args.output)))
    json_output.put(document, args.json)
    if args.plot:
        write_plot(document, Path(args.plot))
    return 0


def _check(args: argparse.Namespace) -> Link:
    """Refuses, before anything is started, what cannot be."""
    needs_torch("gradwire profile")
    least = {"steps": 1, "warmup": 1, "rounds": 1, "workers": 1, "batch": 1}
    for name, smallest in least.items():
        value = getattr(args, name)
        if value is not None and value < smallest:
            raise UsageError(f"--{name}: {value}, expected at least {smallest}")
    if not 0.1 <= args.timeout <= 86400:
        raise UsageError(f"--timeout: {args.timeout:g}, expected 0.1 to 86400")
    if args.what not in BUILT_IN and ":" not in args.what:
        raise UsageError(
            f"'{args.what}', expected one of {', '.join(BUILT_IN)}, script.py:function or "
            "module:function; traces are read by gradwire simulate and plan (--profile FILE)")
    if args.what in BUILT_IN and args.data:
        raise UsageError(f"--data {args.data[0]}: {args.what} reads files of its own, expected none")
    if args.what not in BUILT_IN and args.spec != "none":
        raise UsageError(
            f"--spec {args.spec}: is of the built-in jobs; {args.what} exchanges as it says itself")
    for option in ("output", "json", "plot"):
        path = getattr(args, option)
        if path and path != "-":
            check_json(Path(path), option)
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"--plot {args.plot}: needs matplotlib, which is not installed, expected "
                         "pip install matplotlib or no --plot")
    return parse_link(args.link, "--link")


def _asked(args: argparse.Namespace, link: Link, scratch: Path) -> Asked:
    workers = args.workers or max(2, cores())
    if args.what == "bytes":
        text = scratch / "text"
        text.write_bytes(standard_library(_TEXT_BYTES))
        files = [text]
    elif args.what in BUILT_IN:
        files = [digits_folder() / name for name in IDX_NAMES[:2]]
    else:
        files = files_under(args.data)
    batch = args.batch if args.batch is not None else _BATCHES.get(args.what)
    return Asked(
        what=args.what, batch=batch, workers=workers, link=link, spec=args.spec, files=files,
        warmup=args.warmup, steps=args.steps, rounds=args.rounds,
        threads=threads_per_rank(workers), timeout_s=args.timeout)


def _document(asked: Asked, found: Found) -> Dict[str, Any]:
    medians = found.medians()
    return {
        "job": asked.what, "model": found.profile["model"], "batch": found.profile["batch"],
        **_gradients(found.profile), "workers": asked.workers, "threads": asked.threads,
        "link": asked.link.name, "spec": asked.spec, "steps": asked.steps, "rounds": asked.rounds,
        "machine": machine(), "commit": commit(),
        "runs": [
            {"run": name, "step_s": medians.get(name), "steps_s": found.seconds.get(name, []),
             "left_out": found.left_out.get(name)}
            for name, _, _ in RUNS],
        "stalls": {
            name: {"step_s": seconds, "share": share}
            for name, (seconds, share) in found.stalls().items()},
    }


def _gradients(profile: Dict[str, Any]) -> Dict[str, Any]:
    """What stalls grow with: planner.fit_stalls()."""
    sent = [layer for layer in profile["layers"] if layer["numel"] > 0]
    return {
        "layers": len(sent),
        "gradient_bytes": sum(
            layer["numel"] * (4 if layer.get("dtype", "float32") == "float32" else 2)
            for layer in sent),
    }


def _lines(asked: Asked, found: Found, output: str) -> List[str]:
    medians, stalls = found.medians(), found.stalls()
    profile = found.profile
    lines = [
        f"{profile['model']}, batch {profile['batch']}, {asked.workers} worker(s) of {asked.threads} "
        f"thread(s) on {cores()} core(s); two hosts joined by "
        + (asked.link.name if asked.link.bits_per_s else "an unshaped link"),
        f"the profile of one worker: {output}", ""]
    rows = [["run", "ms a step", "least", "most", "rounds x steps"]]
    for name, _, text in RUNS:
        values = found.seconds.get(name, [])
        if values:
            rows.append([text, _ms(medians[name]), _ms(min(values)), _ms(max(values)),
                         f"{len(values)} x {asked.steps}"])
        else:
            rows.append([text, "-", "", "", f"left out: {found.left_out.get(name, '')}"])
    lines += aligned(rows) + [""]
    table = [["stall", "ms a step", "share", "of the run", "what it is"]]
    for name, text, of in _STALLS:
        known = stalls.get(name)
        table.append([name, *_cells(known), of if known else "", text])
    lines += aligned(table)
    if any(seconds < 0 for seconds, _ in stalls.values()):
        lines.append("  below 0: smaller than the noise of the runs")
    return lines


def _cells(known: Any) -> Tuple[str, str]:
    return (_ms(known[0]), f"{known[1]:.1%}") if known else ("-", "")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"
