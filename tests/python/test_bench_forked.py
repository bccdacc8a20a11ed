"""Workers in torch come out of fork servers, and are what fresh processes would have been."""

import argparse
import dataclasses
import json
import os
import signal

import pytest
from bench_support import (
    alive,
    command_of,
    descendants,
    forked_workers,
    namespaces_of,
    need_namespaces,
    start,
    wait_until,
)
from rank_processes import needs_torch

from gradwire.bench import add_arguments
from gradwire.bench.errors import RunError
from gradwire.bench.launch import Run, prepare
from gradwire.bench.links import Pacing
from gradwire.bench.sweep import Sweep
from gradwire.bench.torch_job import TorchJob

pytestmark = needs_torch

# What a worker is at its end, in a file by its pid; servers end by a signal, and tell nothing.
_TELL = """
import atexit, ctypes, json, os, signal, sys, time

def tell():
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    told = dict(
        environment=dict(os.environ), argv=sys.argv, folder=os.getcwd(),
        secret_in_c=getenv(b"GRADWIRE_JOB_SECRET").decode(),
        leads_session=os.getsid(0) == os.getpid(),
        handlers=[str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
        streams=[os.path.basename(os.readlink(f"/proc/self/fd/{n}")).split(":")[0] for n in range(3)],
        files=len(os.listdir("/proc/self/fd")),
    )
    with open(os.path.join(os.environ["TOLD"], str(os.getpid())), "w") as file:
        json.dump(told, file)
    # Both stay until both have counted: the group closes its files where the other rank is gone.
    until = time.monotonic() + 30
    while len(os.listdir(os.environ["TOLD"])) < 2 and time.monotonic() < until:
        time.sleep(0.01)

atexit.register(tell)
"""


class Plain(TorchJob):
    """The same workers, each a process of its own: `python -m gradwire.bench.torch_trainer`."""

    forked = False


def trials(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    usual = ["--trainer", "torch", "--workload", "bytes", "--workers", 2, "--links", "none",
             "--batch-size", 4, "--max-steps", 5, "--timeout", 60]  # fmt: skip
    return Sweep(parser.parse_args([str(word) for word in [*usual, *words]]), {}).trials


def plain(job):
    return Plain(**{field.name: getattr(job, field.name) for field in dataclasses.fields(job)})


@pytest.fixture
def network():
    made = Pacing("test")
    yield made
    made.close()


@pytest.fixture
def train(network, tmp_path):
    """Runs a case to its end; its events."""

    def run(job, case, observe=lambda event: None):
        events = []

        def note(event):
            events.append(event)
            observe(event)

        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        with Run(job, case, network, folder, folder / "store") as started:
            started.watch(note)
        return events

    return run


def hashes(events):
    return [event["parameter_hash"] for event in events if event["event"] == "epoch"]


def test_forks_train_to_the_bits_of_fresh_processes_whatever_ran_before(train):
    asked = trials("--methods", "ddp-powersgd:1;topk:1%,int4")
    fresh = [hashes(train(plain(trial.job), trial.case)) for trial in asked]
    assert len({each for (each,) in fresh}) == 2  # other methods, other bits
    for i in (0, 1, 0):
        assert hashes(train(asked[i].job, asked[i].case)) == fresh[i], asked[i].key


def test_forks_have_the_environment_and_the_place_of_their_run(train, tmp_path, monkeypatch):
    site, told = tmp_path / "site", tmp_path / "told"
    site.mkdir()
    told.mkdir()
    (site / "sitecustomize.py").write_text(_TELL)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("TOLD", str(told))
    (trial,) = trials("--methods", "none", "--max-steps", 1)

    def run(job):
        found = {}
        for file in told.iterdir():
            file.unlink()
        train(job, trial.case)
        for file in told.iterdir():
            one = json.loads(file.read_text())
            secret = one["environment"].pop("GRADWIRE_JOB_SECRET")
            assert one.pop("secret_in_c") == secret
            words = [w for w in one["argv"] if not w.startswith("file:")]
            one["argv"] = words[: words.index("--die-with-parent")] + words[words.index("--rank") :]
            found[words[words.index("--rank") + 1]] = one
            found.setdefault("secrets", set()).add(secret)
        return found

    monkeypatch.setenv("WORD", "first")
    first = run(trial.job)
    assert sorted(first) == ["0", "1", "secrets"]
    monkeypatch.delenv("WORD")
    monkeypatch.setenv("OTHER", "second")
    second, fresh = run(trial.job), run(plain(trial.job))
    assert [len(each.pop("secrets")) for each in (dict(first), dict(second), dict(fresh))] == [1, 1, 1]
    assert len(first.pop("secrets") | second.pop("secrets") | fresh.pop("secrets")) == 3
    assert first["0"]["environment"]["WORD"] == "first"
    for rank, one in fresh.items():
        for name, value in one.items():
            assert second[rank][name] == value, (rank, name)


def kill_at_first_step(target, number=signal.SIGKILL):
    """Kills, once, what target() names; the pid is appended to the list."""
    killed = []

    def observe(event):
        if event["event"] == "step" and not killed:
            killed.append(target())
            os.kill(killed[0], number)

    return observe, killed


def test_a_killed_fork_is_blamed_and_the_next_run_has_the_same_server(train):
    (trial,) = trials("--methods", "none", "--max-steps", 1000)
    server = None

    def victim():
        nonlocal server
        server, worker = forked_workers(os.getpid())[1]
        return worker

    observe, killed = kill_at_first_step(victim)
    with pytest.raises(RunError) as caught:
        train(trial.job, trial.case, observe)
    assert f"worker 1 (pid {killed[0]}) was killed by SIGKILL" in str(caught.value)
    assert "fork server" not in str(caught.value)
    assert not alive(killed[0])
    seen = []
    short = dataclasses.replace(trial.job, max_steps=3)
    train(short, trial.case, lambda event: seen.append(forked_workers(os.getpid()).get(1)))
    assert server in {pair[0] for pair in seen if pair}


def test_a_server_that_dies_is_named_and_the_next_run_has_another(train):
    (trial,) = trials("--methods", "none", "--max-steps", 1000)
    short = dataclasses.replace(trial.job, max_steps=1)
    victims = {}

    def victim():
        victims.update(forked_workers(os.getpid()))
        return victims[1][0]

    observe, killed = kill_at_first_step(victim)
    with pytest.raises(RunError) as caught:
        train(trial.job, trial.case, observe)
    server, worker = victims[1]
    assert f"worker 1 (pid {worker}) was killed by SIGKILL: " in str(caught.value)
    assert f"the fork server of worker 1 (pid {server}) was killed by SIGKILL" in str(caught.value)
    assert not [pid for pair in victims.values() for pid in pair[1:] if alive(pid)]
    train(short, trial.case)
    # One that dies between runs.
    train(short, trial.case, lambda event: victims.update(forked_workers(os.getpid())))
    os.kill(victims[0][0], signal.SIGKILL)
    with pytest.raises(RunError, match=rf"fork server of worker 0 \(pid {victims[0][0]}\) was killed"):
        train(short, trial.case)
    train(short, trial.case)


def test_a_suspended_server_is_no_hang(train, network):
    (trial,) = trials("--methods", "none", "--max-steps", 1)
    seen = {}
    train(trial.job, trial.case, lambda event: seen.update(forked_workers(os.getpid())))
    servers = [server for server, _ in seen.values()]
    os.kill(servers[0], signal.SIGSTOP)
    with pytest.raises(RunError, match=r"\(pid \d+\) has not answered for 5 s: it is suspended"):
        train(dataclasses.replace(trial.job, timeout_s=0.3), trial.case)
    network.close()
    assert not [pid for pid in servers if alive(pid)]


def test_all_servers_begin_before_the_first_run(train, network):
    (trial,) = trials("--methods", "none", "--max-steps", 1)
    prepare(trial.job, trial.case, network)
    begun = {pid for pid in descendants(os.getpid()) if "fork_server --rank" in command_of(pid)}
    assert len(begun) == 2
    seen = {}
    train(trial.job, trial.case, lambda event: seen.update(forked_workers(os.getpid())))
    assert {server for server, _ in seen.values()} <= begun
    prepare(plain(trial.job), trial.case, network)  # whose workers are forked from nothing
    assert len([p for p in descendants(os.getpid()) if "fork_server --rank" in command_of(p)]) == 2


def test_a_server_that_cannot_import_says_what(train, tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise ImportError('numpy is broken here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (trial,) = trials("--methods", "none")
    with pytest.raises(RunError, match=r"fork server .* ended with code 1: ImportError: numpy is broken"):
        train(trial.job, trial.case)


@pytest.mark.parametrize("mode", ["pacing", "netns"])
def test_a_killed_launcher_leaves_no_server_and_no_worker(tmp_path, mode):
    if mode == "netns":
        need_namespaces()
    process = start(
        *("--trainer", "torch", "--workload", "bytes", "--workers", 2, "--links", "none"),
        *("--link-mode", mode, "--methods", "none", "--max-steps", 100000, "--time-budget", 0),
        *("--json", tmp_path / "out.json", "--output", tmp_path / "plots"),
    )
    wait_until(lambda: len(forked_workers(process.pid)) == 2, 120, "two workers")
    line = ""
    while "step" not in line:
        line = process.stderr.readline()
        assert line, "it ended before a step"
    below = descendants(process.pid)
    assert len(below) >= 4
    process.kill()
    process.wait()
    wait_until(lambda: not [pid for pid in below if alive(pid)], 2, f"the end of {below}")
    if mode == "netns":
        wait_until(lambda: not namespaces_of(below), 2, "the end of the namespaces")
