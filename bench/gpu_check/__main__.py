"""bench/gpu_check.sh: everything that only a GPU can tell, in one command without a network."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path

import compare
import prebuilt
from plan import STAGES_S, WHOLE_S, Setup, stages
from results import Results
from runner import Running

ROOT = Path(__file__).resolve().parents[2]
NO_GPU = ("needs a GPU", "no GPU", "sees no GPU")
NOTHING_RAN = 3  # the exit status of what needs something that is not here
LEAST_S = 0.5  # of time left, in which a stage is worth a start

ABOUT = """Everything that only a GPU can tell, in at most 6.5 minutes and without a network: what the
machine has, the tests on the GPU, the kernels beside a device copy and their peers,
compute-sanitizer, NCCL, PyTorch's hooks. It leaves OUT.json, whole after every stage, and OUT.tgz with
the logs. A stage that fails, hangs or lacks something is named, and the rest goes on. Exit: 0 all
passed, or there is no GPU; 1 a stage did not; 2 usage; 130 and 143 interrupted. No setting of the GPU is
changed."""


class Interrupted(BaseException):
    """By a signal, whose name it has."""


def commit_of_tree():
    def git(*words):
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, timeout=20)

    try:
        head = git("rev-parse", "--short", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + (", changed" if changed.stdout.strip() else "")


def seconds(least, most):
    def parse(text):
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"is '{text}', must be {least} to {most}")
        return int(text)

    return parse


def limit_stages(plan, wanted):
    """--stage-limit, in its order. @raises ValueError: what is wrong with one."""
    for text in wanted:
        name, _, number = text.rpartition("=")
        if name and name not in [stage.name for stage in plan]:
            raise ValueError(f"'{text}' names no stage, known: {', '.join(stage.name for stage in plan)}")
        if not number.isdigit() or int(number) < 1:
            raise ValueError(f"is '{text}', must be [NAME=]SECONDS, 1 at least")
        for stage in plan:
            if name in ("", stage.name):
                stage.limit = int(number) if name else min(stage.limit, int(number))


def arguments_of(words):
    parser = argparse.ArgumentParser(
        prog="gpu_check.sh", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, help="the JSON file (bench/results/gpu-TIME.json)")
    add(
        "--prebuilt",
        type=Path,
        metavar="SET",
        help="what --make-prebuilt has made, or its .tgz; else all is built here",
    )
    add("--make-prebuilt", type=Path, metavar="DIR", help="only builds them; needs nvcc, no GPU")
    add("--architectures", default="90", help="of --make-prebuilt, as CMAKE_CUDA_ARCHITECTURES (%(default)s)")
    add("--build", type=Path, default=ROOT / "build" / "gpu-check", help="where they are built")
    add("--rebuild", action="store_true", help="with --prebuilt: build them here all the same")
    add("--python", default="", help="the interpreter that has torch (python3)")
    add("--only", default="", metavar="NAME,...", help="these stages; 'machine' comes first in any case")
    add("--numel", type=seconds(4096, 1 << 31), action="append", help="elements of the kernels' rows")
    add("--suites", default="", metavar="TEXT", help="suites whose name holds this")
    add("--deadline", type=seconds(1, STAGES_S), default=STAGES_S, help="seconds of all stages (%(default)s)")
    add(
        "--stage-limit",
        action="append",
        default=[],
        metavar="[NAME=]S",
        help="seconds of a stage, or of each",
    )
    add("--dry-run", action="store_true", help="prints the plan with its times, and what is missing")
    arguments = parser.parse_args(words)
    given = arguments.prebuilt
    is_set = given and (tarfile.is_tarfile(given) if given.is_file() else (given / "bin").is_dir())
    if given and not is_set:
        parser.error(f"--prebuilt {arguments.prebuilt}: there is no {arguments.prebuilt}/bin")
    if arguments.rebuild and not arguments.prebuilt:
        parser.error("--rebuild goes with --prebuilt")
    if arguments.python and not shutil.which(arguments.python):
        parser.error(f"--python {arguments.python}: there is no such program")
    return parser, arguments


class Run:
    """One run of the plan."""

    def __init__(self, setup, results, deadline):
        self.setup, self.results = setup, results
        self.end = time.monotonic() + deadline
        self.deadline = deadline
        self.current = self.background = None  # (stage, Running)

    def left(self):
        return self.end - time.monotonic()

    def log(self, stage):
        return self.results.logs / f"{stage.name}.log"

    def told(self, stage, status, reason, taken=0.0, tail=""):
        """The end of a stage: into both files, and onto the terminal."""
        self.results.put(
            stage.name, status=status, seconds=round(taken, 1), reason=reason, tail=tail, spare=stage.spare
        )
        self.results.pack()
        loud = "***" if status in ("failed", "timeout", "missing") else "   "
        print(f"{loud} {stage.name:10} {status:8} {taken:6.1f} s  {reason}", flush=True)

    def start(self, stage):
        words = stage.command()
        self.results.put(stage.name, status="running", limit=stage.limit)
        return Running(words, self.log(stage), stage.environment())

    def closed(self, stage, running, code, limit):
        """What became of a command that has ended, or whose limit has passed."""
        taken = running.seconds()
        running.end()
        self.results.read_data(stage.name, self.setup.data(stage.name))
        tail = self.results.tail(self.log(stage))
        last = tail.splitlines()[-1][:300] if tail else ""
        if code is None:
            by_deadline = " by the deadline" if self.left() < LEAST_S else ""
            status = "skipped" if stage.spare and by_deadline else "timeout"
            self.told(stage, status, f"stopped after {limit:.0f} s{by_deadline}", taken, tail)
        elif code == 0 and any(sign in tail for sign in NO_GPU):
            self.told(stage, "failed", f"sees no GPU; {last}", taken, tail)
        elif code == 0:
            self.told(stage, "ok", last, taken)
        elif code == NOTHING_RAN:
            self.told(stage, "missing", last, taken, tail)
        else:
            self.told(stage, "failed", f"exit {code}; {last}", taken, tail)
        if stage.name in ("machine", "module"):
            self.learn(stage.name)

    def learn(self, name):
        data = self.results.stage(name).get("data") or {}
        facts = self.setup.facts or {}
        self.setup.facts = {**facts, **data} if name == "machine" else {**facts, name: data}
        for sentence in data.get("missed", []):
            print(f"      {sentence}")

    def run(self, stage):
        limit = stage.limit
        if stage.behind and self.background and self.background[0].name == stage.behind:
            began = time.monotonic()
            self.join(max(0.0, min(0.6 * limit, self.left() - 1)))
            limit -= time.monotonic() - began
        least = min(stage.expected, limit) / 2 if stage.spare else LEAST_S
        if self.left() < least:
            self.told(
                stage, "skipped", f"the deadline of {self.deadline} s leaves {max(0, self.left()):.0f} s"
            )
            return
        limit = min(max(LEAST_S, limit), self.left())
        missing = stage.missing()
        if missing:
            self.told(stage, "missing", missing)
            return
        try:
            running = self.start(stage)
        except OSError as error:
            self.told(stage, "failed", f"could not be started: {error}")
            return
        if stage.background:
            self.background = (stage, running)
            return
        self.current = (stage, running)
        data = self.setup.data(stage.name)
        code = running.wait(limit, lambda: self.peek(stage, data))
        self.closed(stage, running, code, limit)
        self.current = None

    def peek(self, stage, data):
        """While it runs: a machine that is taken away leaves what was measured."""
        if self.results.read_data(stage.name, data):
            self.results.write()

    def join(self, limit):
        """Waits for what runs in the background, and ends it at its limit."""
        stage, running = self.background
        most = stage.limit
        code = running.wait(min(limit, max(0.0, most - running.seconds())))
        if code is not None or running.seconds() >= most - 0.01:
            self.background = None
            self.closed(stage, running, code, most)

    def end_background(self):
        if self.background:
            self.join(max(0.0, self.left() - 1))
        if self.background:
            stage, running = self.background
            self.background = None
            self.closed(stage, running, None, running.seconds())

    def interrupt(self, signal_name):
        for each in filter(None, (self.current, self.background)):
            stage, running = each
            running.end()
            self.results.read_data(stage.name, self.setup.data(stage.name))
            self.told(stage, "stopped", signal_name, running.seconds(), self.results.tail(self.log(stage)))

    def all(self, plan):
        for stage in plan:
            try:
                self.run(stage)
            except Exception:  # a fault of the script's own must not hide the stages behind it
                lines = traceback.format_exc()
                self.told(stage, "failed", f"gpu_check.sh itself: {lines.splitlines()[-1]}", tail=lines)
            if stage.name == "machine" and (self.setup.known("gpu") or {}).get("absent"):
                return False
        self.end_background()
        return True


def print_plan(plan, setup, whole):
    print(f"{'stage':10} {'expected':>8} {'at most':>8}  what")
    builds = any(stage.name == "build" for stage in plan)
    for stage in plan:
        missing = stage.missing()
        if builds and missing.startswith("there is no "):  # it will be built
            missing = ""
        mark = (
            " (with time that is left)" if stage.spare else " (in the background)" if stage.background else ""
        )
        print(f"{stage.name:10} {stage.expected:6} s {stage.limit:6} s  {stage.what}{mark}")
        if missing:
            print(f"{'':29}missing: {missing}")
    needed = [stage for stage in plan if not stage.spare and not stage.background]
    print(
        f"needed: {sum(s.expected for s in needed)} s expected, {sum(s.limit for s in needed)} s at most; "
        f"all "
        f"stages end by {STAGES_S} s, the whole by {whole} s"
    )


def raise_interrupted(number, _):
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(signal.Signals(number).name)


def make_setup(arguments, work):
    own = sys.executable
    return Setup(
        root=ROOT,
        work=work,
        python=shutil.which(arguments.python or "python3") or own,
        own_python=own,
        prebuilt=arguments.prebuilt and arguments.prebuilt.resolve(),
        build=arguments.build.resolve(),
        rebuild=arguments.rebuild,
        numels=tuple(arguments.numel or Setup.numels),
        suites=arguments.suites,
    )


def main(words):
    parser, arguments = arguments_of(words)
    if arguments.make_prebuilt:
        return prebuilt.make(arguments.make_prebuilt, ROOT, arguments.architectures)
    scratch = Path(tempfile.mkdtemp(prefix="gradwire-gpu-check-"))
    try:
        (scratch / "work").mkdir()
        (scratch / "logs").mkdir()
        if arguments.prebuilt and arguments.prebuilt.is_file():
            arguments.prebuilt = prebuilt.unpack(arguments.prebuilt, scratch / "set")
        setup = make_setup(arguments, scratch / "work")
        plan = stages(setup)
        try:
            limit_stages(plan, arguments.stage_limit)
        except ValueError as error:
            parser.error(f"--stage-limit: {error}")
        asked = [name for name in arguments.only.split(",") if name]
        unknown = set(asked) - {stage.name for stage in plan}
        if unknown:
            parser.error(
                f"--only: {', '.join(sorted(unknown))} unknown, known: {', '.join(s.name for s in plan)}"
            )
        if asked:
            plan = [stage for stage in plan if stage.name in ("machine", *asked)]
        if arguments.dry_run:
            print_plan(plan, setup, WHOLE_S)
            return 0
        return check(arguments, setup, plan, scratch / "logs")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check(arguments, setup, plan, logs):
    out = arguments.out or ROOT / "bench" / "results" / time.strftime(
        "gpu-%Y%m%dT%H%M%SZ.json", time.gmtime()
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    results = Results(out.resolve(), logs)
    manifest = prebuilt.manifest_of(setup.prebuilt)
    commit = manifest.get("commit", "unknown") if setup.prebuilt else commit_of_tree()
    results.document.update(commit=commit, prebuilt=manifest or None)
    results.write()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, raise_interrupted)
    run = Run(setup, results, arguments.deadline)
    exit_code = 0
    try:
        if run.all(plan):
            bad = results.bad()
            results.document.update(verdict="failed" if bad else "passed", bad=bad)
            exit_code = 1 if bad else 0
        else:
            results.document["verdict"] = "no GPU"
    except Interrupted as interrupted:
        run.interrupt(str(interrupted))
        results.document["verdict"] = "interrupted"
        exit_code = 128 + getattr(signal, str(interrupted))
    results.document["compared"] = compare.rows(results.document["stages"])
    results.write()
    results.pack()
    close(results, setup)
    return exit_code


def close(results, setup):
    document = results.document
    if document["verdict"] == "no GPU":
        print(f"gpu_check.sh: no GPU: {setup.known('gpu', 'absent')}; wrote {results.out}")
        return
    compare.show(document["compared"])
    named = f" ({', '.join(document['bad'])})" if document.get("bad") else ""
    print(
        f"gpu_check.sh: {document['verdict']}{named} after {document['seconds']:.0f} s; wrote {results.out} "
        f"and "
        f"{results.archive.name}"
    )


if __name__ == "__main__":
    if os.name != "posix" or not Path("/proc/self/stat").exists():
        sys.exit("gpu_check.sh: needs Linux, whose /proc says which processes a stage has left")
    sys.exit(main(sys.argv[1:]))
