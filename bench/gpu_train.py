"""Trains on one GPU: several processes, gradwire.torch's hooks, methods side by side at equal steps.

    python bench/gpu_train.py --out FILE [--state DIR] [--seconds 240] [--ranks 4] [--steps 400]

A transformer over the bytes of Python's standard library (7 layers of width 512, 22.3 million parameters) is
trained by AdamW in --ranks processes that share the first GPU and meet in a group of torch's: gloo, or nccl
(--group). All methods train the same model on the same batches, a slice of steps each in turn, so that they
have equal steps whenever time is over. A method is a spec of gradwire, with @EXCHANGE where that matters, or
'ddp'. FILE has the mean loss of every step, its milliseconds, and the loss of held-out rows at the end;
it is whole after every slice. What broke or hung is named, and the others start again without it, from what
was saved last. The same command goes on where the last one ended, as long as --state is there: without it
methods start over, which FILE says. Four processes on one GPU take turns: milliseconds compare methods, and
say nothing of several GPUs. Exit: 0 all methods trained, 1 one did not, 2 usage, 3 nothing can run here.
"""

import argparse
import importlib.util
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from text_table import print_table

METHODS = "none;int4@two_shot;topk:1%,int4;auto"
SETTLING = 5  # steps of a method in which memory grows and buckets are made anew
TOGETHER = 10  # steps whose losses are one
MOST_PARAMETERS = 25_000_000
# Imported once, by the server that ranks are forked from; it does not know this folder.
PRELOADED = ["torch", "torch.distributed", "gradwire.torch", "gradwire.bench.torch_trainer.workloads"]
ASKED = ("ranks", "width", "layers", "batch_size", "seed", "device", "group", "held_out")


def why_not(device):
    """Why nothing can run here; empty where it can."""
    for name in ("torch", "numpy", "gradwire"):
        if importlib.util.find_spec(name) is None:
            return f"there is no {name}; bench/gpu_check/module.py makes gradwire's, for PYTHONPATH"
    if device == "cpu":
        return ""
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    import gradwire

    missing = {row.name: row.unavailable_reason for row in gradwire.transports()}["nccl"]
    return f"gradwire's nccl: {missing}" if missing else ""


def about(device):
    """What is known without the GPU's being opened here: processes are forked from this one's kind."""
    import torch

    import gradwire

    return {
        "torch": torch.__version__,
        "commit": gradwire.build_info()["commit"],
        "cores": os.cpu_count(),
        "device": device,
        "python": sys.version.split()[0],  # whose standard library is the text
    }


def write(file, document):
    from gradwire.whole_files import replacing

    with replacing(file) as out:
        out.write(json.dumps(document, indent=1).encode())


def fresh():
    return {"status": "waiting", "losses": [], "ms": [], "specs": [], "held_out": None}


class Job:
    """The document, and processes that carry it on."""

    def __init__(self, arguments, document, left):
        self.arguments, self.document, self.left = arguments, document, left
        self.asked = {
            name: getattr(arguments, name)
            for name in (*ASKED, "steps", "slice", "reserve_s", "timeout_s", "save_every_s")
        }
        self.asked["state"] = str(arguments.state)
        self.current = None

    def saved_steps(self):
        try:
            return json.loads((self.arguments.state / "steps.json").read_text())
        except (OSError, ValueError):  # nothing was saved yet
            return {}

    def go_back_to_what_was_saved(self, names):
        """Curves end where the files are."""
        saved = self.saved_steps()
        for name in names:
            part, step = self.document["methods"][name], saved.get(name, 0)
            if len(part["losses"]) > step:
                part["lost_steps"] = part.get("lost_steps", 0) + len(part["losses"]) - step
            for key in ("losses", "ms", "specs"):
                del part[key][step:]
        return {name: saved[name] for name in names if saved.get(name)}

    def train(self, names):
        """Runs processes until they end. @returns the method that broke them, or None."""
        arguments = self.arguments
        steps = self.go_back_to_what_was_saved(names)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        with tempfile.TemporaryDirectory() as folder:
            receive, send = context.Pipe(duplex=False)
            logs = [Path(folder) / f"rank-{rank}.log" for rank in range(arguments.ranks)]
            ranks = [
                context.Process(
                    target=_start,
                    args=(
                        rank,
                        {**self.asked, "methods": names},
                        steps,
                        self.left(),
                        f"{folder}/meet",
                        str(logs[rank]),
                        send,
                    ),
                    daemon=True,
                )
                for rank in range(arguments.ranks)
            ]
            for rank in ranks:
                rank.start()
            send.close()
            reason = self.follow(ranks, receive)
            for rank in ranks:
                rank.kill()
                rank.join(5)
            if reason is None:
                return None
            tails = {f"rank {i}": _tail(log) for i, log in enumerate(logs)}
        name = self.current or "start"
        part = self.document["methods"].get(name, self.document)
        part.update(status="failed", reason=reason, tails=tails)
        said = next((text.splitlines()[-1] for text in tails.values() if text), "")
        print(f"*** {name}: {reason}: {said}", flush=True)
        return name

    def follow(self, ranks, pipe):
        """Takes what rank 0 says. @returns why the job is broken, None where it ended well."""
        heard = time.monotonic()
        ended = False
        while True:
            codes = [rank.exitcode for rank in ranks]  # first: what an ended rank has said is in the pipe
            try:
                while pipe.poll(0.1):
                    ended |= self.take(pipe.recv())
                    heard = time.monotonic()
            except EOFError:
                pass
            if any(code not in (None, 0) for code in codes):
                time.sleep(0.5)  # others say why, too
                return f"exit {codes} of the ranks"
            if all(code == 0 for code in codes):
                return None if ended else "the ranks ended before the end"
            if time.monotonic() - heard > self.arguments.silence_s:
                return f"hangs: no word for {self.arguments.silence_s:g} s"
            if self.left() < 0:
                return f"does not end within {self.arguments.seconds:g} s"
            time.sleep(0.02)  # a closed pipe answers at once

    def take(self, said):
        event, name = said.pop("event"), said.pop("method", None)
        part = self.document["methods"].get(name)
        if event == "begin":
            self.current = name
            return False
        if event == "made":
            self.document["parameters"] = said["parameters"]
        elif event == "slice":
            for key in ("losses", "ms", "specs"):
                part[key] += said[key]
            part["status"] = "trains"
            print(
                f"{name}: step {said['step']}, loss {part['losses'][-1]:.4f}, "
                f"{statistics.median(said['ms']):.1f} ms",
                flush=True,
            )
        elif event == "held_out":
            part.update(
                status="trained",
                held_out={key: said[key] for key in ("step", "loss", "accuracy")},
                decisions=said["decisions"],
            )
        elif event == "end":
            self.current = None
        write(self.arguments.out, self.document)
        return event == "end"


def _start(*words):
    from gpu_train_rank import rank_main

    rank_main(*words)


def _tail(log):
    try:
        return "\n".join(log.read_text(errors="replace").strip().splitlines()[-15:])
    except OSError:
        return ""


def table(document):
    methods = {name: part for name, part in document["methods"].items() if part["losses"]}
    if not methods:
        return ["method"], []
    steps = min(len(part["losses"]) for part in methods.values())
    moments = sorted({max(1, round(steps * share)) for share in (0.25, 0.5, 0.75, 1.0)})
    header = [
        "method",
        *(f"loss at {step}" for step in moments),
        "held out",
        "ms per step",
        "last plan",
        "status",
    ]
    rows = []
    for name, part in methods.items():
        losses = [statistics.fmean(part["losses"][max(0, step - TOGETHER) : step]) for step in moments]
        held_out = part["held_out"]
        ms = statistics.median(part["ms"][SETTLING:] or part["ms"])
        rows.append(
            [
                name,
                *(f"{loss:.4f}" for loss in losses),
                f"{held_out['loss']:.4f} at {held_out['step']}" if held_out else "",
                f"{ms:.1f}",
                part["specs"][-1],
                part["status"],
            ]
        )
    return header, rows


def parse(words):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="the JSON file; what it has is gone on with")
    add("--state", type=Path, help="folder of what a later run goes on from (FILE without .json, -state)")
    add("--seconds", type=float, default=240, help="of all of it (%(default)s, the most)")
    add("--ranks", type=int, default=4)
    add("--steps", type=int, default=400, help="of each method, at most")
    add("--slice", type=int, default=10, help="steps of a method before the next one has its turn")
    add("--methods", default=METHODS)
    add("--width", type=int, default=512)
    add("--layers", type=int, default=7)
    add("--batch-size", type=int, default=32, help="rows of 64 bytes, of each rank")
    add("--held-out", type=int, default=1000, help="rows evaluated at the end")
    add("--seed", type=int, default=1)
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--group", choices=["gloo", "nccl"], default="gloo", help="torch's, in which ranks meet")
    add("--reserve-s", type=float, default=15, help="kept for the end: evaluating and saving")
    add("--save-every-s", type=float, default=60)
    add("--silence-s", type=float, default=60, help="without a word of the ranks: they hang")
    add("--timeout-s", type=float, default=45, help="a rank's silence that others wait for")
    arguments = parser.parse_args(words)
    arguments.out = arguments.out.resolve()
    arguments.state = (arguments.state or arguments.out.with_name(arguments.out.stem + "-state")).resolve()
    if not 0 < arguments.seconds <= 240:
        parser.error(f"--seconds {arguments.seconds:g}: expected more than 0 and at most 240")
    if arguments.ranks < 2 or arguments.steps < 1 or arguments.slice < 1:
        parser.error("expected --ranks 2 at least, --steps and --slice 1 at least")
    about_parameters = 12 * arguments.layers * arguments.width**2
    if about_parameters > MOST_PARAMETERS:
        parser.error(
            f"--width, --layers: about {about_parameters:,} parameters, expected {MOST_PARAMETERS:,} at most"
        )
    if arguments.group == "nccl" and arguments.device == "cpu":
        parser.error("--group nccl goes with --device cuda")
    return parser, arguments


def document_of(parser, arguments):
    asked = {name: getattr(arguments, name) for name in ASKED}
    if arguments.out.exists():
        document = json.loads(arguments.out.read_text())
        if document.get("asked") != asked:
            parser.error(f"--out: {arguments.out} is of {document.get('asked')}, expected {asked}")
    else:
        document = {"asked": asked, "runs": [], "methods": {}}
    for name in arguments.methods.split(";"):
        document["methods"].setdefault(name, fresh())
    return document


def main(words):
    began = time.monotonic()
    parser, arguments = parse(words)
    reason = why_not(arguments.device)
    if reason:
        print(f"gpu_train.py: skipped: {reason}")
        return 3
    document = document_of(parser, arguments)
    arguments.state.mkdir(parents=True, exist_ok=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    document["runs"].append(
        {**about(arguments.device), "seconds": arguments.seconds, "load": os.getloadavg()[0]}
    )
    job = Job(arguments, document, lambda: arguments.seconds - (time.monotonic() - began))
    names = arguments.methods.split(";")
    for name in names:  # what failed in an earlier run may try again
        document["methods"][name].update(status="waiting")
    while names and job.left() > arguments.reserve_s:
        broken = job.train(names)
        if broken is None or broken == "start":
            break
        names.remove(broken)
    document["runs"][-1]["taken_s"] = round(time.monotonic() - began, 1)
    write(arguments.out, document)
    print_table(*table(document), False)
    bad = [name for name in arguments.methods.split(";") if document["methods"][name]["status"] != "trained"]
    print(
        f"gpu_train.py: {document.get('parameters', 0):,} parameters, {arguments.ranks} ranks, "
        f"{document['runs'][-1]['taken_s']} s; "
        + (f"not trained: {', '.join(bad)}" if bad else "all trained")
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
