"""A machine with one GPU, as far as PATH can tell, and a folder of programs built beforehand."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "gpu_check.sh"
# All stages of a run on a prebuilt set, in their order.
NAMES = [
    "machine",
    "first",
    "bench",
    "module",
    "suites",
    "sanitize",
    "nccl",
    "topk_peer",
    "peers",
    "hook",
    "arrays",
    "core",
    "trainer",
    "profile",
]
SPARE = NAMES[10:]
HANGS = 'trap "" TERM; sleep 1000 & echo > "$FAKES/hangs"; while :; do sleep 1; done'


def with_suites(suites, body):
    """A test program with such suites."""
    listing = "".join(f"{name}.\\n  One\\n" for name in suites)
    return f"case \"$*\" in *--gtest_list_tests*) printf '{listing}'; exit;; esac\n{body}"


SUITES = with_suites(["ElementwiseKernels", "SparseSums"], 'echo "[  PASSED  ] 7 tests."')
PYTHON = """[ "$1" != - ] || exec "$REAL_PYTHON" "$@"
case "$*" in
  *gpu_peers.py*) stage=peers;; *gpu_hook.py*) stage=hook;; *"-m pytest"*) stage=arrays;;
  *is_available*) . "$FAKES/torch"; exit;;
  *nvidia.nccl*) echo "$FAKES/nccl"; exit;;
  *find_spec*) echo "version 3.12.3"; echo "suffix .fake.so"; exit;;
  *"import gradwire"*) . "$FAKES/module"; exit;;
  *EXT_SUFFIX*) echo .fake.so; exit;;
  *ncclGetVersion*) echo 22900; exit;;
  *) exit 5;;
esac
. "$FAKES/$stage"
"""


class Machine:
    """Programs are shell scripts: program() puts another in the place of one."""

    def __init__(self, folder: Path):
        self.folder, self.out = folder, folder / "results" / "out.json"
        (folder / "sanitize").unlink(missing_ok=True)
        self.program("tools/nvidia-smi", 'echo "Fake \\"H\\" GPU, 999.1, 7 MiB, 9.0"')
        self.program("tools/nvcc", 'echo "Cuda compilation tools, release 13.0, V13.0.88"')
        self.program("tools/python3", PYTHON)
        self.program("tools/ncu", 'echo "Version 2"')
        self.program(
            "tools/compute-sanitizer",
            '[ "$1" != --version ] || { echo "Version 1"; exit; }\n'
            'echo "$2 $6" >> "$FAKES/checks"; [ ! -e "$FAKES/sanitize" ] || . "$FAKES/sanitize"; '
            'shift 4; exec "$@"',
        )
        self.program("bin/gpu_test", SUITES)
        self.program("bin/core_test", 'echo "[  PASSED  ] 3 tests."')
        self.program(
            "bin/cuda_bench",
            'case "$*" in *--json*) ;; *) echo "1 rows, 0 absent"; exit;; esac\n'
            'cp "$FAKES/results/out.json" "$FAKES/seen.json"\n' + self.rows("gradwire", 2.0),
        )
        self.program("bin/cuda_topk_peer", self.rows("CUB DeviceTopK + scatter", 5.0))
        for name in ("gradwire-check", "nccl_reducer_rank", "gradwire-trainer"):
            self.program(f"bin/{name}", "exit 0")
        self.program(
            "bin/gradwire-trainer",
            'while [ "$1" != --events ]; do shift; done\necho "{\\"final_accuracy\\": 1.0}" > "$2"',
        )
        self.program("torch", 'echo "version 2.11"; echo "cuda 13.0"')
        self.program("peers", self.rows("torch.topk chain", 8.0))
        self.program("hook", 'echo "all was right"')
        self.program("arrays", 'echo "9 passed"')
        self.program("module", 'echo "[true, \\"abc\\", \\"\\"]"')
        (folder / "MANIFEST.json").write_text(json.dumps({"commit": "abc1234"}))

    @staticmethod
    def rows(by, ms):
        """A program that writes one row where its --json says."""
        row = json.dumps({"rows": [{"op": "compress topk:1%", "by": by, "numel": 4096, "ms": ms}]})
        return f"while [ \"$1\" != --json ]; do shift; done\necho '{row}' > \"$2\"; echo 'the table'"

    def program(self, name: str, body: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def command(self, *words: str) -> dict:
        """For subprocess: on the programs of the folder."""
        env = {
            **os.environ,
            "PATH": f"{self.folder / 'tools'}:/usr/bin:/bin",
            "FAKES": str(self.folder),
            "PYTHON": sys.executable,
            "REAL_PYTHON": sys.executable,
        }
        env.pop("CUDA_VISIBLE_DEVICES", None)
        return {
            "args": [
                str(SCRIPT),
                "--out",
                str(self.out),
                "--prebuilt",
                str(self.folder),
                "--numel",
                "4096",
                "--python",
                str(self.folder / "tools/python3"),
                *words,
            ],
            "env": env,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }

    def run(self, *words: str):
        return subprocess.run(**self.command(*words), timeout=120)

    def results(self) -> dict:
        return json.loads(self.out.read_text())

    def statuses(self) -> dict:
        return {stage["name"]: stage["status"] for stage in self.results()["stages"]}

    def stage(self, name: str) -> dict:
        return next(stage for stage in self.results()["stages"] if stage["name"] == name)

    def packed(self) -> list:
        with tarfile.open(self.out.with_suffix(".tgz")) as archive:
            return archive.getnames()


def running(folder: Path) -> dict:
    """What runs of machines in that folder: process ids and commands. All that their programs start
    has the environment of command()."""
    mark, found = f"FAKES={folder}".encode(), {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if any(line.startswith(mark) for line in (process / "environ").read_bytes().split(b"\0")):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def end_all(folder: Path) -> None:
    """Ends what runs of machines in that folder."""
    deadline = time.monotonic() + 30
    while left := running(folder):
        assert time.monotonic() < deadline, left
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def check_nothing_runs(folder: Path) -> None:
    """What has been killed just now may take a moment. Ends what it finds."""
    deadline = time.monotonic() + 5
    while (left := running(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    end_all(folder)
    assert not left, f"still running: {left}"
