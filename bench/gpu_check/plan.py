"""The stages of a run in the order of their worth: what each runs, how long it may take, what it needs."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

HERE = Path(__file__).resolve().parent
BENCH = HERE.parent
WHOLE_S = 390  # of everything
STAGES_S = 380  # by then all stages have ended; what is left is for ending them and for the files
PROGRAMS = {
    "gpu_test": "tests/simt/gpu_test",
    "core_test": "tests/kernels/core_test",
    "cuda_bench": "bench/cuda_bench",
    "cuda_topk_peer": "bench/cuda_topk_peer",
    "gradwire-check": "comm/gradwire-check",
    "nccl_reducer_rank": "tests/comm/nccl_reducer_rank",
    "gradwire-trainer": "bench/gradwire-trainer",
}  # where a build folder has them; a prebuilt set has them in bin/
HOT = "mark|trim|encode|add_sparse|measure"  # kernels whose counters are worth a profile


@dataclass
class Setup:
    """Where things are, and what was asked for."""

    root: Path
    work: Path  # figures of stages while they run
    python: str  # the one that has torch
    own_python: str
    prebuilt: Optional[Path] = None
    build: Optional[Path] = None
    rebuild: bool = False
    numels: tuple = (110_000_000, 25_600_000)
    suites: str = ""  # those whose name holds this
    facts: dict = None  # what the stage 'machine' has found

    def program(self, name):
        # The peer's headers travel to no machine: where the rest is built anew it stays as it came.
        if self.prebuilt is not None and (not self.rebuild or name == "cuda_topk_peer"):
            return self.prebuilt / "bin" / name
        return self.build / PROGRAMS[name]

    def data(self, stage):
        return self.work / f"{stage}.json"

    def known(self, *path):
        """A fact of the machine, None where nobody knows."""
        at = self.facts or {}
        for key in path:
            at = (at or {}).get(key)
        return at

    def packages(self):
        """What PYTHONPATH needs for 'import gradwire'."""
        return {
            "PYTHONPATH": os.pathsep.join(
                [str(self.work.parent / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
            )
        }


@dataclass
class Stage:
    """command(): the words to run. missing(): why it cannot run here, empty where it can."""

    name: str
    expected: int  # seconds
    limit: int
    what: str
    command: Callable[[], list]
    missing: Callable[[], str] = lambda: ""
    spare: bool = False  # only with time that others have left
    background: bool = False  # beside those that follow
    behind: str = ""  # one in the background that it waits for, in its own time
    environment: Callable[[], dict] = lambda: {}


def stages(setup):
    """All of a run. What is not `spare` fits into STAGES_S even where every stage takes its limit, unless
    programs are built here."""
    s = setup

    def own(script, *words):
        return lambda: [s.own_python, HERE / script, *words]

    def theirs(script, *words):
        return lambda: [s.python, BENCH / script, *words]

    def lacks(*names):
        def why():
            for name in names:
                if not os.access(s.program(name), os.X_OK):
                    return f"there is no {s.program(name)}"
                gone = (s.known("lacking") or {}).get(name)
                if gone:
                    return f"{name} needs {', '.join(gone)}, which is not here"
            return ""

        return why

    def no_torch():
        why = s.known("torch", "absent")
        return f"torch: {why}" if why else ""

    def no_module():
        found = s.known("module") or {"ready": True}  # nobody knows: what needs it will say
        return no_torch() or ("" if found["ready"] else found["why"])

    def no_tool(name):
        why = s.known("tools", name, "absent")
        return f"{name}: {why}" if why else ""

    def nccl():
        return s.known("nccl", "path") or ""

    def numels():
        return [word for numel in s.numels for word in ("--numel", numel)]

    prebuilt = ["--prebuilt", s.prebuilt] if s.prebuilt else []
    made = [
        Stage(
            "machine",
            8,
            20,
            "what is here: GPU, driver, compilers, Python, torch, NCCL",
            own("machine.py", "--data", s.data("machine"), "--python", s.python, *prebuilt),
        )
    ]
    if s.prebuilt is None or s.rebuild:
        made.append(
            Stage(
                "build",
                120,
                200,
                "the programs, by cmake and nvcc",
                own("building.py", "--build", s.build, *prebuilt),
            )
        )
    made += [
        Stage(
            "first",
            5,
            20,
            "a copy of 16 KB and one suite; memcheck if that fails",
            own(
                "first.py",
                "--bench",
                s.program("cuda_bench"),
                "--tests",
                s.program("gpu_test"),
                "--data",
                s.data("first"),
            ),
            lacks("cuda_bench", "gpu_test"),
        ),
        Stage(
            "bench",
            45,
            75,
            "kernels beside a device copy, CUB and Thrust, nothing else running",
            lambda: [s.program("cuda_bench"), *numels(), "--json", s.data("bench")],
            lacks("cuda_bench"),
        ),
        Stage(
            "module",
            30,
            120,
            "gradwire for this machine's Python, beside what follows",
            own(
                "module.py",
                "--python",
                s.python,
                "--site",
                s.work.parent / "site",
                "--data",
                s.data("module"),
                *(["--prebuilt", s.prebuilt] if s.prebuilt else ["--build", s.build]),
            ),
            no_torch,
            background=True,
        ),
        Stage(
            "suites",
            60,
            95,
            "every suite in its own process, six at once",
            own(
                "suites.py",
                s.program("gpu_test"),
                "--data",
                s.data("suites"),
                "--seconds",
                92,
                "--only",
                s.suites,
            ),
            lacks("gpu_test"),
        ),
        Stage(
            "sanitize",
            35,
            45,
            "memcheck and racecheck of what failed, of steps and sparse sums",
            own(
                "sanitize.py",
                s.program("gpu_test"),
                "--failed",
                s.data("suites"),
                "--data",
                s.data("sanitize"),
            ),
            lambda: no_tool("compute-sanitizer") or lacks("gpu_test")(),
        ),
        Stage(
            "nccl",
            25,
            40,
            "verbs and the Reducer over NCCL, 2 and 3 ranks on one GPU",
            lambda: [
                "bash",
                BENCH / "nccl_ranks.sh",
                s.program("gradwire-check"),
                nccl(),
                *([s.program("nccl_reducer_rank")] if not lacks("nccl_reducer_rank")() else []),
            ],
            lambda: (
                lacks("gradwire-check")()
                or (f"NCCL: {s.known('nccl', 'absent')}" if s.known("nccl", "absent") else "")
            ),
        ),
        Stage(
            "topk_peer",
            4,
            10,
            "CUB's DeviceTopK and a scatter, by newer headers than the toolkit's",
            lambda: [s.program("cuda_topk_peer"), *numels(), "--json", s.data("topk_peer")],
            lacks("cuda_topk_peer"),
        ),
        Stage(
            "peers",
            25,
            35,
            "torch: topk chain, fused AdamW, foreach LAMB, apex-like LAMB, Newton-Schulz",
            lambda: [*theirs("gpu_peers.py")(), *numels(), "--json", s.data("peers")],
            no_torch,
        ),
        Stage(
            "hook",
            25,
            40,
            "gradwire.torch's hooks on the GPU beside the CPU, 2 processes",
            theirs("gpu_hook.py"),
            no_module,
            behind="module",
            environment=s.packages,
        ),
        Stage(
            "arrays",
            30,
            60,
            "tests/python/on_gpu: arrays of torch and CuPy",
            lambda: [
                s.python,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                *sorted((s.root / "tests/python/on_gpu").glob("check_*.py")),
            ],
            no_module,
            spare=True,
            behind="module",
            environment=s.packages,
        ),
        Stage(
            "core",
            5,
            40,
            "memory, streams and devices",
            lambda: [s.program("core_test")],
            lacks("core_test"),
            spare=True,
        ),
        Stage(
            "trainer",
            30,
            60,
            "gradwire-trainer learns, its checkpoints go to the CPU and back",
            lambda: ["bash", BENCH / "gpu_trainer.sh", s.program("gradwire-trainer"), nccl()],
            lambda: lacks("gradwire-trainer")() or ("" if nccl() else "NCCL was not found"),
            spare=True,
        ),
        Stage(
            "profile",
            30,
            60,
            "ncu's counters of the kernels that take longest",
            lambda: [
                "ncu",
                "--clock-control",
                "none",
                "--section",
                "SpeedOfLight",
                "--section",
                "MemoryWorkloadAnalysis",
                "--section",
                "Occupancy",
                "--kernel-name",
                f"regex:{HOT}",
                "--launch-count",
                "12",
                s.program("cuda_bench"),
                "--numel",
                "110000000",
                "--repeats",
                "1",
                "--only",
                "topk:1% gradwire",
            ],
            lambda: no_tool("ncu") or lacks("cuda_bench")(),
            spare=True,
        ),
    ]
    return made
