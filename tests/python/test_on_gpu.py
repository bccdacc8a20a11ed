"""Runs the checks of on_gpu with the module that tests/simt links with its emulated GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "default" / "tests" / "simt" / "python"


def module():
    named = os.environ.get("GRADWIRE_EMULATED_CORE")
    built = [Path(named)] if named else sorted(BUILD.glob("_core.*.so"))
    if not built:
        pytest.skip(f"{BUILD} holds no module on the emulated GPU: ./run.sh test builds it")
    return built[0].resolve()


@pytest.mark.parametrize("checks", sorted((HERE / "on_gpu").glob("check_*.py")), ids=lambda p: p.stem)
def test_arrays_of_a_gpu(checks):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(checks)],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "GRADWIRE_EMULATED_CORE": str(module())})  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
