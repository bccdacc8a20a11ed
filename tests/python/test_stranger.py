"""A compressor is added as docs/adding-a-compressor.md says: by files of its own and a row."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import SOAK

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = "kernels/compress/registry.cc"
FILES = {"cpu": {"kernels/compress/fp24.cc"},
         "gpu": {"kernels/compress/cuda_fp24.cc", "kernels/ops/fp24_cuda.cu"}}  # fmt: skip

IN_PYTHON = """
import numpy as np, gradwire
from gradwire.bench.arguments import parse_methods
assert "fp24" in [row.name for row in gradwire.compressors()], gradwire.__file__
assert parse_methods("none,fp24") == ["none", "fp24"]
x = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
feedback = gradwire.Feedback("fp24", x.size)
payload = feedback.compress(x)
assert payload.nbytes == 32 + 3 * x.size, payload.nbytes
cut = (x.view(np.uint32) & 0xFFFFFF00).view(np.float32)
assert np.array_equal(feedback.decompress([payload]), cut)
feedback.commit()
assert np.array_equal(feedback.residual, x - cut)
"""


def run(*command, cwd, **environment):
    environment = {"GRADWIRE_SOAK": "", **environment}  # the laws of the programs draw their sample
    done = subprocess.run(command, cwd=cwd, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={**os.environ, **environment})  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-6000:]}"
    return done.stdout


def apply(patch, tree):
    """Applies it, and returns the files that it touches."""
    git = ["git", "apply", str(ROOT / "tests" / "stranger" / f"{patch}.patch")]
    touched = run(*git, "--numstat", cwd=tree, GIT_CEILING_DIRECTORIES=str(tree.parent))
    run(*git, cwd=tree, GIT_CEILING_DIRECTORIES=str(tree.parent))
    return {line.split("\t")[2] for line in touched.splitlines()}


@pytest.mark.soak
def test_a_compressor_is_a_file_and_a_row_and_two_files_more_on_a_gpu(tmp_path):
    tree = tmp_path / "tree"
    if SOAK:
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("build", "out", ".*", "__pycache__"))
    else:
        (tree / REGISTRY).parent.mkdir(parents=True)
        shutil.copy(ROOT / REGISTRY, tree / REGISTRY)
    for patch, check in (("cpu", check_on_cpu), ("gpu", check_on_gpu)):
        assert not any((tree / file).exists() for file in FILES[patch])
        assert apply(patch, tree) == FILES[patch] | {REGISTRY}
        assert all((tree / file).exists() for file in FILES[patch])
        if SOAK:
            check(tree)
    page = (ROOT / "docs" / "adding-a-compressor.md").read_text()
    for file in FILES["cpu"]:
        assert (tree / file).read_text() in page, f"the page shows another {file}"


def build(tree, *targets):
    run("cmake", "--build", "build", "--parallel", "2", "--target", *targets, cwd=tree)
    return tree / "build" / "tests"


def check_on_cpu(tree):
    """The laws, the exchanges, Python and the benchmark's methods."""
    hints = [f"-DPython_EXECUTABLE={sys.executable}",
             f"-Dpybind11_DIR={run(sys.executable, '-m', 'pybind11', '--cmakedir', cwd=tree).strip()}"]
    run("cmake", "-S", ".", "-B", "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        "-DGRADWIRE_CUDA=OFF", "-DGRADWIRE_PLANNER=OFF", "-DGRADWIRE_BENCH=OFF", "-DGRADWIRE_PYTHON=ON",
        *hints, cwd=tree)  # fmt: skip
    tests = build(tree, "compress_test", "exchange_laws_test", "_core")
    for program in ("kernels/compress_test", "comm/exchange_laws_test"):
        run(str(tests / program), "--gtest_brief=1", cwd=tree)
    package = tree / "package" / "gradwire"
    shutil.copytree(tree / "bindings" / "python" / "gradwire", package)
    for module in (tree / "build" / "bindings").glob("_core*.so"):
        shutil.copy(module, package)
    run(sys.executable, "-c", IN_PYTHON, cwd=package.parent, PYTHONPATH=str(package.parent))


def check_on_gpu(tree):
    """The emulator's test of the row, in a build that has no CUDA."""
    program = str(build(tree, "simt_compress_test") / "simt" / "simt_compress_test")
    listed = run(program, "--gtest_list_tests", "--gtest_filter=*CudaCompressorRow*", cwd=tree)
    [at] = re.findall(r"WritesTheBytesOfTheCpu/(\d+) .*fp24", listed)
    ran = run(program, f"--gtest_filter=*CudaCompressorRow.WritesTheBytesOfTheCpu/{at}", cwd=tree)
    assert "[  PASSED  ] 1 test" in ran
