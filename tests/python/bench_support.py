"""What the benchmark's tests share: the package, the trainer, processes to look for."""

import importlib
import json
import os
import re
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).resolve().parent / "fake_trainer.py"

try:
    importlib.import_module("gradwire")
except ImportError:  # the compiled module is not built: the benchmark does without it
    _package = types.ModuleType("gradwire")
    _package.__path__ = [str(ROOT / "bindings" / "python" / "gradwire")]
    sys.modules["gradwire"] = _package

# The command line in a process of its own, from the same package as the tests.
_MAIN = f"""
import argparse, sys, types
try:
    import gradwire
except ImportError:
    package = types.ModuleType("gradwire")
    package.__path__ = [{str(ROOT / "bindings" / "python" / "gradwire")!r}]
    sys.modules["gradwire"] = package
from gradwire.bench import add_arguments, run
parser = argparse.ArgumentParser(prog="gradwire bench")
add_arguments(parser)
sys.exit(run(parser.parse_args()))
"""


def trainer():
    """The real trainer, or a skip that says why."""
    from gradwire.bench.errors import UsageError
    from gradwire.bench.job import find_trainer

    try:
        return find_trainer(None)
    except UsageError as error:
        pytest.skip(f"no trainer: {error}")


def need_namespaces():
    """Skips with the machine's own reason where namespaces cannot be made."""
    from gradwire.bench.netns import Namespaces, Unavailable

    try:
        Namespaces(1).close()
    except Unavailable as reason:
        pytest.skip(f"no network namespaces: {reason}")


def start(*options, environment=None):
    """`gradwire bench` as a process; its standard streams are pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", _MAIN, *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ, **(environment or {})),
    )


def bench(*options, environment=None, timeout=120):
    """Runs it to the end: exit code, stdout, stderr."""
    process = start(*options, environment=environment)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"still running after {timeout} s:\n{out}\n{err}")
    return process.returncode, out, err


def fake(rank=1, step=3, do="crash"):
    return {"GRADWIRE_FAKE": json.dumps({"rank": rank, "step": step, "do": do})}


def descendants(pid):
    """The living processes below ``pid``."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = (int(fields[1]), fields[0])
    found, frontier = [], [pid]
    while frontier:
        parent = frontier.pop()
        children = [p for p, (above, state) in parents.items() if above == parent and state != "Z"]
        found += children
        frontier += children
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def forked_workers(pid):
    """{rank: (its fork server, the worker)} of the living workers in torch below ``pid``."""
    found = {}
    for server in descendants(pid):
        rank = re.search(r"torch_trainer\.fork_server --rank (\d+)", command_of(server))
        for worker in descendants(server) if rank else []:
            found[int(rank.group(1))] = (server, worker)
    return found


def namespaces_of(pids):
    """The network namespaces that these processes hold, besides the test's own.

    By process, not by inode: the kernel gives the number of one that has ended to the next, anyone's.
    """
    found = set()
    for pid in pids:
        try:
            found.add(os.stat(f"/proc/{pid}/ns/net").st_ino)
        except OSError:
            continue  # it has ended
    return {str(inode) for inode in found - {os.stat("/proc/self/ns/net").st_ino}}


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    return pytest.fail(f"not within {seconds} s: {what}")
