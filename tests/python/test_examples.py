"""The examples in Python, each started as its first line says; they check their own results."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rank_processes import free_port_pair, needs_torch

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(command, deadline=150):
    environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.STDOUT, start_new_session=True)
    try:
        out = process.communicate(timeout=deadline)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, out
    return out


def torchrun(file, *arguments):
    # Not --standalone: its port is one of those that connections take, and so is the next.
    return run([sys.executable, "-m", "torch.distributed.run", "--master-addr", "127.0.0.1",
                "--master-port", str(free_port_pair()), "--nproc-per-node", "4",
                str(EXAMPLES / file), *arguments])


@needs_torch
@pytest.mark.parametrize("spec", ["topk:10%,int8", "none"])
def test_ddp_with_one_line_added(spec):
    said = re.search(r"accuracy ([\d.]+), (\d+) bytes sent .* have (\d+)", torchrun("torch_ddp.py", spec))
    sent, dense = int(said[2]), int(said[3])
    assert float(said[1]) > 0.89  # none has 0.914: the first example loses nothing to speak of
    assert dense == 4 * (64 * 256 + 256 + 256 * 10 + 10)
    assert sent < dense / 5 if spec != "none" else sent > dense


@needs_torch
@pytest.mark.parametrize("file", ["torch_accelerate.py", "torch_lightning.py"])
def test_recipe(file):
    package = file[len("torch_"):-len(".py")]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    said = re.search(r"accuracy ([\d.]+), (\d+) bytes sent .* have (\d+)",
                     torchrun(file))
    assert int(said[2]) < int(said[3]) / 10


@needs_torch
def test_large_batch():
    assert "batch 1024" in torchrun("torch_large_batch.py")


@needs_torch
def test_local_steps():
    said = re.search(r"([\d.]+) bytes sent .* have (\d+)", torchrun("torch_diloco.py"))
    assert float(said[1]) < int(said[2]) / 400


@needs_torch
def test_numpy_ranks_under_torchrun():
    assert "4 ranks" in torchrun("numpy_ranks.py")


def test_payloads_read_by_hand():
    rows = run([sys.executable, str(EXAMPLES / "read_payload.py")]).splitlines()[2:]
    assert len(rows) >= 20 and all(re.fullmatch(r"\| `\S+` \| [\d,]+ \| [\d.]+ \|", row) for row in rows)


def test_numpy_alone():
    environment = {key: value for key, value in os.environ.items() if key != "RANK"}
    out = subprocess.run([sys.executable, str(EXAMPLES / "numpy_ranks.py")], env=environment,
                         check=True, capture_output=True, text=True, timeout=60).stdout
    assert "1 ranks" in out


def test_minimal():
    assert "bytes became" in run([sys.executable, str(EXAMPLES / "minimal.py")])


@needs_torch
@needs_jax
def test_jax_ranks_under_torchrun():
    assert "4 ranks" in torchrun("jax_ranks.py")


@needs_jax
def test_jax_alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert "1 ranks" in run([sys.executable, str(EXAMPLES / "jax_ranks.py")])
