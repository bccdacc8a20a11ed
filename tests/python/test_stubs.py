"""The committed stubs say what the module says."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "bindings" / "python" / "gradwire"
STUBGEN, PYBIND11 = "3.0.0", "3.1"  # signatures are printed by both


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def test_regenerating_the_stubs_gives_no_difference(tmp_path):
    if version_of("pybind11-stubgen") != STUBGEN:
        pytest.skip(f"pybind11-stubgen is {version_of('pybind11-stubgen')}, needs {STUBGEN}")
    subprocess.run(
        [sys.executable, "-m", "pybind11_stubgen", "gradwire._core", "-o", tmp_path,
         "--exit-code"], check=True, capture_output=True, timeout=120)
    made = (tmp_path / "gradwire" / "_core.pyi").read_text()
    assert made == (SOURCE / "_core.pyi").read_text(), (
        "python -m pybind11_stubgen gradwire._core -o bindings/python")


def test_the_package_passes_mypy():
    if version_of("mypy") is None:
        pytest.skip("mypy is not installed")
    files = [str(f) for f in sorted(SOURCE.glob("*.py"))]
    done = subprocess.run([sys.executable, "-m", "mypy", "--follow-imports=silent", *files],
                          cwd=SOURCE.parents[2], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
