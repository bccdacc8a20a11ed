"""The command `gradwire`: what this build can do, does it work, benchmarks, profiles, plans, a cluster check.

Exit codes: 0 done, 1 the run failed, 2 bad arguments, 130 interrupted (docs/bench.md has them all).
"""

import argparse
import difflib
import os
import sys
from typing import Any, Callable, Dict, Iterator, NoReturn, Optional, Sequence, Tuple

import gradwire

from . import completion, doctor, facts, json_output, paths, registries, starting, streams

__all__ = ["main"]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs one command and returns its exit code; errors are one line on stderr."""
    try:
        starting.started()
        streams.open_missing()
        words = list(sys.argv[1:] if arguments is None else arguments)
        if words[:1] == ["check"]:
            program = str(paths.checker())
            os.execv(program, [program, *words[1:]])  # it is one rank: the launcher's own child
        return _run(_parser(words).parse_args(words))
    except KeyboardInterrupt:
        streams.note("gradwire: interrupted")
        return 130


def _run(args: argparse.Namespace) -> int:
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        return run(args)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone, as in `gradwire info | head`: say nothing
        return 1
    except Exception as error:
        if args.debug:
            raise
        print(f"gradwire {args.command}: {_one_line(error)}", file=sys.stderr)
        # Those of the benchmark, its files among them, say it themselves.
        code = 2 if isinstance(error, gradwire.InvalidArgument) else 1
        return int(getattr(error, "exit_code", code))


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    ours = isinstance(error, gradwire.Error) or hasattr(error, "exit_code")
    return text if text and ours else f"{type(error).__name__}: {text}"


# What one would try first; below the help of each command.
_EXAMPLES = {
    "bench": "",  # has its own
    "report": "gradwire report out.json --output out.html",
    "profile": "gradwire profile cnn --workers 2 --link 1gbit --json found.json",
    "simulate": "gradwire simulate --model bert-large --workers 64 --link 25gbe --bucket ddp",
    "check": "torchrun --no-python --nproc-per-node 2 gradwire check",
    "info": "gradwire info --json",
    "doctor": "gradwire doctor",
    "plan": "gradwire plan --profile step.json --workers 16 --link 10gbit --json plan.json",
    "recommend": "gradwire recommend --step V100=210ms --gradient 102MB --samples 1281167 "
    "--batch 64 --budget 2h",
    "completion": "gradwire completion bash > ~/.local/share/bash-completion/completions/gradwire",
}
_EPILOG = """what one does first:
  gradwire doctor              does it work here, and what mends what is off
  gradwire bench --quick       which compression is worth it, in two minutes
  gradwire COMMAND --help      all options of a command, with an example

exit codes: 0 done, 1 the run failed, 2 bad arguments, 130 interrupted"""


class _Parser(argparse.ArgumentParser):
    """One whose errors are a line: the usage of some commands is a screen, above which nobody reads."""

    _given: Sequence[str] = ()

    # Left to argparse, words that a command does not know are an error of `gradwire` and not its own.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(sys.argv[1:] if args is None else args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        said = message.replace("argument ", "", 1) if message.startswith("argument ") else message
        near = "".join(f"; {word}: did you mean {option}?" for word, option in self._near())
        self.exit(2, f"{self.prog}: {said}{near} ({self.prog} --help lists what there is)\n")

    def _near(self) -> Iterator[Tuple[str, str]]:
        """Each option that was given and does not exist, with the one it is most like.

        Whatever the error is: a required option that was misspelt is missing, too."""
        known = [name for action in self._actions for name in action.option_strings]
        for word in dict.fromkeys(each.partition("=")[0] for each in self._given):
            if word.startswith("--") and not any(name.startswith(word) for name in known):
                near = difflib.get_close_matches(word, known, 1)
                yield from ((word, option) for option in near)


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gradwire",
        description="Gradient compression and large-batch optimizers for data-parallel training.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gradwire {gradwire.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    bench = commands.add_parser(
        "bench", help="train with several workers over given links and compare methods"
    )
    _add_debug(bench)
    if "bench" in words:  # `gradwire info` works without what the benchmark imports
        _add_bench(bench)

    reported = commands.add_parser(
        "report", help="show the benchmark's results as a page, and compare runs"
    )
    _add_debug(reported)
    if "report" in words:
        _add_report(reported)

    simulated = commands.add_parser(
        "simulate", help="predict the time of a training step on other links and more workers"
    )
    _add_debug(simulated)
    if "simulate" in words:
        _add_simulate(simulated)

    profiled = commands.add_parser(
        "profile", help="measure a job's training step, layer by layer, and what it waits for"
    )
    _add_debug(profiled)
    if "profile" in words:
        _add_profile(profiled)

    commands.add_parser(
        "check", help="see whether a transport works between the machines this is started on"
    )

    info = commands.add_parser("info", help="show what this build can do, and why not the rest")
    _add_debug(info)
    form = info.add_mutually_exclusive_group()
    _add_json(form)
    form.add_argument("--markdown", choices=sorted(_TABLES), help="one registry as a table")
    info.set_defaults(run=_info)

    examined = commands.add_parser(
        "doctor", help="see whether this installation works, and what mends the rest"
    )
    _add_debug(examined)
    _add_json(examined)
    examined.set_defaults(run=_doctor)

    planned = commands.add_parser(
        "plan", help="say how the gradients of a step should travel, profiled or of a model by name"
    )
    _add_debug(planned)
    recommended = commands.add_parser(
        "recommend", help="say which machines train an epoch in time at the least cost"
    )
    _add_debug(recommended)
    if "plan" in words or "recommend" in words:
        _add_planning(planned, recommended)

    completed = commands.add_parser(
        "completion", help="print a script with which a shell completes commands and options"
    )
    _add_debug(completed)
    completed.add_argument("shell", choices=sorted(completion.SHELLS))
    completed.set_defaults(run=_completion)
    for name, made in commands.choices.items():
        if _EXAMPLES.get(name) and not made.epilog:
            made.epilog = f"example: {_EXAMPLES[name]}"
    return parser


def _add_debug(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _add_json(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--json", nargs="?", const=json_output.STDOUT, metavar="FILE",
        help="one JSON object, there or (-, or no FILE) alone on standard output",
    )  # fmt: skip


def _add_bench(parser: argparse.ArgumentParser) -> None:
    from .bench import command

    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _add_report(parser: argparse.ArgumentParser) -> None:
    from . import report

    report.add_arguments(parser)
    parser.set_defaults(run=report.run)


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    from . import simulating

    simulating.add_arguments(parser)
    parser.set_defaults(run=simulating.run)


def _add_profile(parser: argparse.ArgumentParser) -> None:
    from .profiling import command

    command.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _add_planning(planned: argparse.ArgumentParser, recommended: argparse.ArgumentParser) -> None:
    from . import plan_commands

    plan_commands.add_plan(planned)
    plan_commands.add_recommend(recommended)


def _completion(args: argparse.Namespace) -> int:
    every = _parser(["bench", "report", "simulate", "profile", "plan"])  # with all of their options
    print(completion.script(args.shell, every))
    return 0


def _info(args: argparse.Namespace) -> int:
    json_output.check(args.json)
    if args.markdown:
        print(_TABLES[args.markdown]())
    elif args.json != json_output.STDOUT:
        print(_as_text(facts.all_facts()))
    json_output.put(facts.all_facts() if args.json else {}, args.json, indent=2)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    json_output.check(args.json)
    shown = args.json != json_output.STDOUT
    found = []
    for finding in doctor.examine():
        found.append(finding)
        if shown:
            print("\n".join(doctor.lines(finding)), flush=True)
    well = doctor.is_well(found)
    broken = ", ".join(f.name for f in found if f.status == "failed")
    if shown and well:
        print("All that is needed works; what is off is optional.")
    elif shown:
        print(f"Broken: {broken}. What is off is optional.")
    json_output.put(doctor.document(found), args.json, indent=2)
    return 0 if well else 1


def _as_text(known: Dict[str, Any]) -> str:
    devices = known["cuda_devices"]
    reason = known["cuda_unavailable_reason"]
    missing = "not built (OpenBLAS with cblas.h and zlib were missing)"
    features = ", ".join(f"{k} {'on' if v else 'off'}" for k, v in known["features"].items())
    lines = [
        f"gradwire {known['version']} (Python {known['python']}, compiler {known['compiler']})",
        f"commit      {known['commit'] or 'unknown: built outside a checkout'}",
        f"package     {known['package']}",
        f"trainer     {known['trainer'] or missing}",
        f"features    {features}",
        f"CPU         loops in {known['vector_level']}",
        f"CUDA        {devices} device(s)" + (f": {reason}" if reason else ""),
    ]
    for title in ("transports", "compressors", "exchanges", "optimizers"):
        lines.append("")
        lines.append(title)
        width = max((len(row["name"]) for row in known[title]), default=0)
        for row in known[title]:
            off = row.get("unavailable_reason")
            suffix = f" [off: {off}]" if off else ""
            lines.append(f"  {row['name']:<{width}}  {row['summary']}{suffix}")
    return "\n".join(lines)


_YES_NO = {True: "yes", False: "no"}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def _compressors() -> str:
    rows = [
        [f"`{r.name}`", r.summary, f"`{r.example}`", _YES_NO[r.error_feedback], r.source]
        for r in registries.compressors()
    ]
    return _table(["Compressor", "What it sends", "Example", "Error feedback", "Source"], rows)


def _exchanges() -> str:
    return _table(
        ["Exchange", "How it works", "Bytes sent per rank", "Latency"],
        [
            [f"`{r.name}`", r.summary, r.bytes_formula, r.latency_formula]
            for r in registries.exchanges()
        ],
    )


def _optimizers() -> str:
    return _table(
        ["Optimizer", "What it is", "Step", "Source"],
        [[f"`{r.name}`", r.summary, f"`{r.formula}`", r.source] for r in registries.optimizers()],
    )


_TABLES: Dict[str, Callable[[], str]] = {
    "compressors": _compressors,
    "exchanges": _exchanges,
    "optimizers": _optimizers,
}
