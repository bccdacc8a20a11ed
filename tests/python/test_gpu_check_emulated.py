"""bench/gpu_check.sh from its first stage to its last on this machine: the tests of kernels in the emulator
of tests/simt, arrays on its GPU, PyTorch's peers on the processor; what only a GPU runs has a stand-in."""

import importlib.util
import os
import subprocess
import sys

import pytest
from gpu_machine import NAMES, ROOT, Machine, check_nothing_runs

BUILD = ROOT / "build" / "default" / "tests"
HAS_TORCH = importlib.util.find_spec("torch") is not None
SUITE = "ElementwiseKernels"  # a second of the emulator's time
# torch's peers are real, but on the processor; the arrays are the emulated GPU's.
PYTHON = """case "$*" in
  *gpu_peers.py*) exec "$REAL_PYTHON" "$@" --device cpu --matrix 32 --repeats 1;;
  *"-m pytest"*) exec "$REAL_PYTHON" -m pytest -q -p no:cacheprovider {checks};;
esac
"""


@pytest.fixture(autouse=True)
def leaves_nothing(tmp_path):
    yield
    check_nothing_runs(tmp_path)


def test_the_whole_script_runs_on_the_emulated_gpu(tmp_path):
    kernels, optimizers = (BUILD / "simt" / name for name in ("simt_test", "simt_optimizers_test"))
    own = BUILD / "kernels" / "core_test"
    core = sorted((BUILD / "simt" / "python").glob("_core.*.so"))
    lacking = [str(path) for path in (kernels, optimizers, own) if not path.exists()]
    lacking += [] if core else ["the module on the emulated GPU"]
    if lacking:
        pytest.skip(f"{', '.join(lacking)} is not there: ./run.sh test builds it")
    machine = Machine(tmp_path)
    # gpu_test has the tests of both.
    machine.program(
        "bin/gpu_test",
        f'case "$*" in *CudaOptimizer*) exec {optimizers} "$@";; esac\nexec {kernels} "$@"',
    )
    machine.program("bin/core_test", f'exec {own} "$@"')
    machine.program("sanitize", "export GTEST_TOTAL_SHARDS=5 GTEST_SHARD_INDEX=0")  # a fifth of the tests
    fake = (tmp_path / "tools" / "python3").read_text().partition("\n")[2]
    real = PYTHON.format(checks=ROOT / "tests/python/on_gpu/check_arrays.py")
    if not HAS_TORCH:  # its stand-in runs
        real = "\n".join(line for line in real.splitlines() if "gpu_peers.py" not in line)
    machine.program("tools/python3", f"{real}\n{fake}")
    how = machine.command("--suites", SUITE)
    how["env"].update(
        GRADWIRE_EMULATED_CORE=str(core[0].resolve()),
        PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
    )
    done = subprocess.run(**how, timeout=300)
    assert done.returncode == 0, done.stdout
    assert sorted(machine.statuses()) == sorted(NAMES) and set(machine.statuses().values()) == {"ok"}
    assert machine.stage("first")["data"]["suite"]["outcome"] == "ok"
    assert machine.stage("suites")["data"]["passed"] == 1
    assert set(machine.stage("sanitize")["data"]["checks"].values()) == {"no fault"}
    assert " passed" in machine.stage("arrays")["reason"]
    if HAS_TORCH:
        rows = machine.stage("peers")["data"]["rows"]
        assert {"torch fused", "torch as Apex", "torch.topk chain", "torch.optim.Muon"} <= {
            row["by"] for row in rows
        }
        assert not [row for row in rows if "absent" in row], rows
