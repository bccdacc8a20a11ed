"""bench/gpu_check.sh from its first stage to its last on this machine: the tests of kernels in the emulator
of tests/simt, arrays on its GPU, PyTorch's peers on the processor; what only a GPU runs has a stand-in."""

import importlib.util
import os
import subprocess
import sys

import pytest
from gpu_machine import NAMES, ROOT, Machine

BUILD = ROOT / "build" / "default" / "tests"
HAS_TORCH = importlib.util.find_spec("torch") is not None
SUITE = "ElementwiseKernels"  # a second of the emulator's time
# torch's peers are real, but on the processor; the arrays are the emulated GPU's.
PYTHON = """case "$*" in
  *gpu_peers.py*) exec "$REAL_PYTHON" "$@" --device cpu --matrix 32 --repeats 1;;
  *"-m pytest"*) exec "$REAL_PYTHON" -m pytest -q -p no:cacheprovider {checks};;
esac
"""


def test_the_whole_script_runs_on_the_emulated_gpu(tmp_path):
    programs = {"gpu_test": BUILD / "simt" / "simt_test", "core_test": BUILD / "kernels" / "core_test"}
    lacking = [str(path) for path in programs.values() if not path.exists()]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} is not there: ./run.sh test builds it")
    core = sorted((BUILD / "simt" / "python").glob("_core.*.so"))
    machine = Machine(tmp_path)
    for name, path in programs.items():
        machine.program(f"bin/{name}", f'exec {path} "$@"')
    fake = (tmp_path / "tools" / "python3").read_text().partition("\n")[2]
    real = PYTHON.format(checks=ROOT / "tests/python/on_gpu/check_arrays.py")
    for stage, is_there in (("gpu_peers.py", HAS_TORCH), ("-m pytest", bool(core))):
        if not is_there:  # its stand-in runs
            real = "\n".join(line for line in real.splitlines() if stage not in line)
    machine.program("tools/python3", f"{real}\n{fake}")
    how = machine.command("--suites", SUITE)
    how["env"].update(
        GRADWIRE_EMULATED_CORE=str(core[0].resolve()) if core else "",
        PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
    )
    done = subprocess.run(**how, timeout=300)
    assert done.returncode == 0, done.stdout
    assert sorted(machine.statuses()) == sorted(NAMES) and set(machine.statuses().values()) == {"ok"}
    assert machine.stage("first")["data"]["suite"]["outcome"] == "ok"
    assert machine.stage("suites")["data"]["passed"] == 1
    assert " passed" in machine.stage("arrays")["reason"]
    if HAS_TORCH:
        rows = machine.stage("peers")["data"]["rows"]
        assert {"torch fused", "torch as Apex", "torch.topk chain", "torch.optim.Muon"} <= {
            row["by"] for row in rows
        }
        assert not [row for row in rows if "absent" in row], rows
