"""The committed stubs say what the module says; mypy and ruff find nothing."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "bindings" / "python" / "gradwire"
STUBGEN, PYBIND11, RUFF = "3.0.0", "3.1", "0.17.6"  # signatures are printed by the first two


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def test_regenerating_the_stubs_gives_no_difference(tmp_path):
    if version_of("pybind11-stubgen") != STUBGEN:
        pytest.skip(f"pybind11-stubgen is {version_of('pybind11-stubgen')}, needs {STUBGEN}")
    if not (version_of("pybind11") or "").startswith(f"{PYBIND11}."):
        pytest.skip(f"pybind11 is {version_of('pybind11')}, needs {PYBIND11}")
    subprocess.run(
        [sys.executable, "-m", "pybind11_stubgen", "gradwire._core", "-o", tmp_path,
         "--exit-code"], check=True, capture_output=True, timeout=120)
    made = (tmp_path / "gradwire" / "_core.pyi").read_text()
    assert made == (SOURCE / "_core.pyi").read_text(), (
        "python -m pybind11_stubgen gradwire._core -o bindings/python")


def test_the_package_passes_mypy():
    if version_of("mypy") is None:
        pytest.skip("mypy is not installed")
    needed = {"torch": "torch", "bench": "scikit-learn"}
    left_out = {part for part, other in needed.items() if version_of(other) is None}
    files = [file for file in sorted(SOURCE.rglob("*.py"))
             if file.relative_to(SOURCE).parts[0] not in left_out]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", *map(str, files)],
        cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def ruff(*arguments, **options):
    if version_of("ruff") != RUFF:
        pytest.skip(f"ruff is {version_of('ruff')}, needs {RUFF}")
    return subprocess.run([sys.executable, "-m", "ruff", "check", "--no-cache", *arguments], cwd=ROOT,
                          capture_output=True, text=True, timeout=120, **options)


def test_ruff_finds_nothing_in_any_folder():
    done = ruff()
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [Path(line).relative_to(ROOT).parts for line in ruff("--show-files").stdout.splitlines()]
    assert {"bench", "bindings", "docs", "examples", "tests"} <= {parts[0] for parts in seen}
    assert ("bindings", "python", "gradwire", "__init__.py") in seen


@pytest.mark.parametrize("text, rule", [
    ("import os\n", "F401"), ("import sys\nimport os\nprint(os, sys)\n", "I001"),
    ("def f(x=[]):\n    return x\n", "B006"), ("x = 1 \n", "W291"), (f"x = '{110 * 'a'}'\n", "E501")])
def test_ruff_knows_the_rules(text, rule):
    done = ruff("--stdin-filename", "bench/made_up.py", "-", input=text)
    assert done.returncode == 1 and rule in done.stdout, done.stdout


def test_the_pinned_versions_are_those_of_the_dev_extra():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'"ruff=={RUFF}"' in project and f'"pybind11-stubgen=={STUBGEN}"' in project
