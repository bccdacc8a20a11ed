"""Does the planner's prediction of a training step meet the measured one, where nobody measured before?

    python bench/predict.py [--json FILE] [--write-profiles DIR] [--models mlp,cnn,bytes]

Needs root (links are network namespaces shaped by the kernel), the installed package and torch. About
ten minutes on two cores. It makes, in this order:

  profiles    models x batch sizes x ranks 1, 2, 4, each rank computing alone beside the others; and
              what compressing and decompressing take while as many ranks do
  probes      exchanges on some of the links: what messages of six sizes take, alone and of the
              processors beside ranks that compute; what handing a bucket over takes
  steps       of models x methods on links x ranks, some of which were neither profiled nor probed

predicts the steps from the first three (predict_model.py says how; nothing is fitted to the fourth) and
prints both with intervals, errors and the order of plans. With --json all of it is kept as it comes: the
same command goes on where it was interrupted, and predicts anew what is all measured: its predictions
rest on what was profiled and probed in that run alone. --write-profiles puts the profiles into a folder
with a README. Exit code 1 where a run failed, 130 after Ctrl-C.
"""

import argparse
import json
import shlex
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import predict_model as model_form
import predict_table

import gradwire
from gradwire.bench import (
    arguments,
    digits,
    errors,
    files,
    job,
    launch,
    links,
    machine,
    signals,
    texts,
)
from gradwire.profiling.hosts import OneHost

RANK = Path(__file__).resolve().parent / "predict_rank.py"
MODELS = {"mlp": (64, 128, 256), "cnn": (16, 32, 64), "bytes": (4, 8, 16)}  # batch sizes
METHODS = ("none", "fp16", "int4", "topk:1%")
PROFILED = (1, 2, 4)
# (ranks, link, whether the link is probed there); of three ranks there is neither profile nor probe.
PLACES = ((2, "100mbit", True), (2, "1gbit", True), (3, "300mbit", False), (4, "1gbit", True))
PROBED_NUMELS = (1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 19, 1 << 20)
TIMEOUT_S = 120.0
TEXT_BYTES = 1 << 20


PROFILES_README = """\
# Profiles of training steps
{count} profiles in [the planner's format](../../docs/profile-format.md). `MODEL-batchB-ranksP.json` is of
the slowest of P ranks that train at once on this machine, a thread each, and exchange nothing: B samples
per rank and step. `mlp` and `cnn` see scikit-learn's digits, `bytes` is a transformer over text.

Made by `{command}`
at commit {commit} on {cpu}, {cores} cores, {kernel}, Python {python}; load {load_at_start} at the start.
"""


@dataclass(frozen=True)
class Tasks:
    """What launch.Run asks of a job: workers that do the tasks of a file."""

    workers: int
    file: Path
    data: tuple  # the digits' folder, a text
    steps: int
    threads: int = 1  # of each rank, whatever their number: profiles compare
    transport: str = "gloo"
    timeout_s: float = TIMEOUT_S
    forked: bool = False

    @property
    def processes(self):
        return self.workers

    def command(self, case):
        options = {"--world-size": self.workers, "--tasks": self.file, "--digits": self.data[0],
                   "--text": self.data[1], "--steps": self.steps, "--threads": self.threads,
                   "--timeout-s": self.timeout_s}
        return [sys.executable, str(RANK)] + [str(w) for pair in options.items() for w in pair]


class Record:
    """What was found so far, kept in a file if there is one."""

    def __init__(self, path, settings, words):
        self.path = path
        command = " ".join(["bench/predict.py", *map(shlex.quote, words)])
        self.found = {"command": command, "settings": settings, "machine": machine.machine(),
                      "commit": gradwire.build_info()["commit"],
                      "codecs": [], "profiles": [], "probes": [], "steps": []}
        if path is not None and path.exists():
            before = json.loads(path.read_text())
            if before.get("settings") != settings:
                raise errors.UsageError(
                    f"--json {path}: is of other settings ({before.get('settings')}), expected the same "
                    f"({settings}), or another file")
            if isinstance(before["codecs"], dict):
                raise errors.UsageError(
                    f"--json {path}: that run did not probe what exchanges take of the processors, and what "
                    "one run probed says nothing of another's steps: expected another file")
            self.found = before

    def add(self, kind, **row):
        self.found[kind].append(row)
        self.keep()

    def keep(self):
        if self.path is not None:
            files.write_whole(self.path, json.dumps(self.found, indent=1) + "\n")

    def has(self, kind, **keys):
        return any(all(row[k] == v for k, v in keys.items()) for row in self.found[kind])


def coding_specs(methods):
    """Of every method but `none`, and bf16, in which biases travel."""
    specs = ["bf16", *(str(gradwire.parse_spec(m.partition("@")[0])) for m in methods)]
    return list(dict.fromkeys(spec for spec in specs if spec != "none"))


def run_tasks(tasks, where, network, link, data, steps, on_task, scratch):
    """Starts `where` ranks, has them do the tasks, calls on_task(task, event) as each is done."""
    if not tasks:
        return
    network.set_link(link)
    folder = Path(scratch) / f"{where}-{link.name}-{tasks[0]['do']}"
    folder.mkdir(parents=True)
    file = folder / "tasks.json"
    file.write_text(json.dumps(tasks))
    the_job = Tasks(where, file, data, steps)
    case = job.Case(link, f"{len(tasks)} tasks of {where} rank(s)", 1)

    def observe(event):
        if event["event"] == "task":
            task = tasks[event["task"]]
            on_task(task, event)
            words = [str(v) for k, v in task.items() if k not in ("do", "numels", "specs")]
            print(f"  {task['do']} {' '.join(words)}", flush=True)

    with launch.Run(the_job, case, network, folder / "logs", folder / "store") as run:
        run.watch(observe)


def make_profiles(record, data, scratch):
    settings = record.found["settings"]
    network = OneHost()
    for ranks in settings["profiled"]:
        tasks = [{"do": "profile", "model": m, "batch": b} for m, sizes in settings["models"].items()
                 for b in sizes if not record.has("profiles", model=m, batch=b, ranks=ranks)]
        print(f"profiles, {ranks} rank(s) at once: {len(tasks)} to make", flush=True)
        if not record.has("codecs", ranks=ranks):
            tasks.insert(0, {"do": "codecs", "specs": coding_specs(settings["methods"])})

        def keep(task, event, ranks=ranks):
            if task["do"] == "codecs":
                record.add("codecs", ranks=ranks, specs=event["codecs"])
                return
            record.add("profiles", model=task["model"], batch=task["batch"], ranks=ranks,
                       document=event["document"], shapes=event["shapes"])

        run_tasks(tasks, ranks, network, arguments.parse_link("none"), data, settings["steps"], keep,
                  scratch)


def measure_steps(record, data, scratch):
    settings = record.found["settings"]
    for ranks, link_name, probes in settings["places"]:
        link = arguments.parse_link(link_name)
        at = {"ranks": ranks, "link": link_name}
        # Twice through all, so that a disturbance meets few steps of each; probes before and behind.
        tasks = [{"do": "measure", "model": m, "batch": sizes[-1], "method": method, "part": part}
                 for part in range(settings["rounds"])
                 for m, sizes in settings["models"].items() for method in settings["methods"]
                 if not record.has("steps", model=m, method=method, part=part, **at)]
        first, last = [
            [{"do": "probe", "part": part, "numels": list(PROBED_NUMELS)}]
            if probes and not record.has("probes", part=part, **at) else [] for part in range(2)]
        tasks = first + tasks + last
        print(f"steps, {ranks} ranks over {link_name}: {len(tasks)} tasks", flush=True)
        if not tasks:
            continue

        def keep(task, event, at=at):
            if task["do"] == "probe":
                record.add("probes", part=task["part"], points=event["points"],
                           hand_over_s=event["hand_over_s"], **at)
            else:
                kept = {k: v for k, v in task.items() if k != "do"}
                record.add("steps", **kept, **at, step_s=event["step_s"], buckets=event["buckets"])

        network = links.open_network("netns", ranks, "gloo", [link])
        try:
            run_tasks(tasks, ranks, network, link, data, settings["steps"], keep, scratch)
        finally:
            network.close()


def probes_of(found):
    """Of each place what a message took: an exchange is 2 (P - 1) of a P-th of the elements each."""
    at = {}
    for row in found["probes"]:
        at.setdefault((row["ranks"], row["link"]), []).append(row)
    probes = []
    for (ranks, link), rows in at.items():
        messages = 2 * (ranks - 1)
        lines = [model_form.line_through(
            [(4 * p["numel"] / ranks, p[key] / messages) for row in rows for p in row["points"]])
            for key in ("alone_s", "cpu_s")]
        probes.append(model_form.Probe(ranks, arguments.parse_link(link).bits_per_s, *lines,
                                       statistics.median(row["hand_over_s"] for row in rows)))
    return probes


def codecs_of(found):
    """By spec and number of ranks; `none` adds up where gradients lie, which the probes have."""
    codecs = {"none": {row["ranks"]: model_form.Codec() for row in found["codecs"]}}
    for row in found["codecs"]:
        for spec, measured in row["specs"].items():
            lines = [model_form.line_through(measured[kind]) for kind in ("encode", "decode")]
            codecs.setdefault(spec, {})[row["ranks"]] = model_form.Codec(*lines)
    return codecs


def sharing(found):
    """Of each size that was probed: whether the rule by which processors are shared foretells what an
    exchange takes beside ranks that compute. No training step is part of it."""
    cores, rows = found["machine"]["cores"], []
    for probe in found["probes"]:
        for p in probe["points"]:
            predicted = model_form.beside_computing(p["alone_s"], p["cpu_s"], probe["ranks"], cores)
            rows.append({"ranks": probe["ranks"], "link": probe["link"], **p, "predicted_s": predicted,
                         "error": predicted / p["beside_s"] - 1})
    return rows


def compared(found):
    """A row for every combination that was measured, with its prediction."""
    probes, codecs = probes_of(found), codecs_of(found)
    rows, seen = [], []
    for step in found["steps"]:
        case = {k: step[k] for k in ("model", "batch", "method", "link", "ranks")}
        if case in seen:
            continue
        seen.append(case)
        steps_s = [s for other in found["steps"] if all(other[k] == v for k, v in case.items())
                   for s in other["step_s"]]
        of_job = [p for p in found["profiles"] if (p["model"], p["batch"]) == (step["model"], step["batch"])]
        bits = arguments.parse_link(step["link"]).bits_per_s
        predicted = model_form.expected(
            model_form.Case(**case), bits, {p["ranks"]: p["document"] for p in of_job},
            of_job[0]["shapes"], probes, codecs, found["machine"]["cores"])
        profiled = any(p["ranks"] == step["ranks"] for p in of_job)
        probed = any((p["ranks"], p["link"]) == (step["ranks"], step["link"]) for p in found["probes"])
        rows.append(predict_table.row_of(case, predicted["step_s"], steps_s, (profiled, probed)))
    return rows


def write_profiles(found, folder):
    """A file per profile, times to the nanosecond, and a README that says where they are from."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in found["profiles"]:
        exact = json.dumps(row["document"])
        document = json.loads(exact, parse_float=lambda digits: round(float(digits), 9))
        layers = [json.dumps(layer) for layer in document.pop("layers")]
        text = json.dumps(document)[:-1] + ', "layers": [\n ' + ",\n ".join(layers) + "\n]}\n"
        name = f"{row['model']}-batch{row['batch']}-ranks{row['ranks']}.json"
        (folder / name).write_text(text)
    where = found["machine"]
    (folder / "README.md").write_text(PROFILES_README.format(
        count=len(found["profiles"]), command=found["command"],
        commit=found["commit"] or "unknown", **where))


def parse(argv):
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="keep everything there; resumes from it")
    made.add_argument("--write-profiles", type=Path, metavar="DIR")
    made.add_argument("--models", default=",".join(MODELS), help=f"[{','.join(MODELS)}]")
    made.add_argument("--methods", default=";".join(METHODS), help="specs, separated by ; [%(default)s]")
    made.add_argument("--places", metavar="RANKS:LINK[*],..", default=",".join(
        f"{ranks}:{link}{'*' if probed else ''}" for ranks, link, probed in PLACES),
        help="where steps are measured; * : the link is probed there [%(default)s]")
    made.add_argument("--profiled", default="1,2,4", help="ranks that are profiled [1,2,4]")
    made.add_argument("--steps", type=int, default=10, help="measured in each task [10]")
    made.add_argument("--rounds", type=int, default=2, help="tasks of each combination [2]")
    made.add_argument("--markdown", action="store_true")
    return made.parse_args(argv)


def settings_of(args):
    """What decides what is measured; refuses what cannot be."""
    models = args.models.split(",")
    unknown = [m for m in models if m not in MODELS]
    if unknown:
        raise errors.UsageError(f"--models: '{unknown[0]}', expected some of {', '.join(MODELS)}")
    places = []
    for text in args.places.split(","):
        ranks, colon, link = text.partition(":")
        if not colon or not ranks.isdecimal() or int(ranks) < 2:
            raise errors.UsageError(f"--places: '{text}', expected ranks from 2 and a link: 2:100mbit*")
        name = arguments.parse_link(link.rstrip("*")).name
        if name == "none":
            raise errors.UsageError(f"--places: '{text}', expected a rate such as 100mbit")
        places.append([int(ranks), name, link.endswith("*")])
    if not any(probed for _, _, probed in places):
        raise errors.UsageError(f"--places: '{args.places}' probes no link, expected a * behind one")
    profiled = args.profiled.split(",")
    if not all(r.isdecimal() and int(r) >= 1 for r in profiled):
        raise errors.UsageError(f"--profiled: '{args.profiled}', expected ranks from 1, such as 1,2,4")
    if args.steps < 1 or args.rounds < 1:
        raise errors.UsageError(f"--steps {args.steps} --rounds {args.rounds}, expected at least 1")
    return {"models": {m: list(MODELS[m]) for m in models}, "methods": arguments.parse_methods(args.methods),
            "places": places, "profiled": [int(r) for r in profiled], "steps": args.steps,
            "rounds": args.rounds}


def main(argv=None):
    args = parse(argv)
    try:
        record = Record(args.json, settings_of(args), sys.argv[1:] if argv is None else argv)
        with signals.interruptible(), files.scratch_folder() as scratch:
            data = (digits.digits_folder(), Path(scratch) / "text")
            data[1].write_bytes(texts.standard_library(TEXT_BYTES))
            print(f"{job.cores()} core(s), load {machine.load():g}", flush=True)
            make_profiles(record, data, scratch)
            if args.write_profiles:
                write_profiles(record.found, args.write_profiles)
            measure_steps(record, data, scratch)
        record.found["predicted_at"] = gradwire.build_info()["commit"]
        record.found["sharing"] = sharing(record.found)
        record.found["rows"] = compared(record.found)
        record.found["summary"] = predict_table.summary(record.found["rows"])
        record.keep()
        predict_table.show(record.found["rows"], args.markdown)
        predict_table.show_sharing(record.found["sharing"], args.markdown)
        return 0
    except errors.BenchError as error:
        print(f"predict.py: {error}", file=sys.stderr)
        return error.exit_code
    except errors.Interrupted as error:
        goes_on = ", the same command goes on" if args.json else ""
        print(f"predict.py: interrupted by {error}{goes_on}", file=sys.stderr)
        return error.exit_code
    except gradwire.Error as error:  # measurements that follow no law; --json has them
        print(f"predict.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
