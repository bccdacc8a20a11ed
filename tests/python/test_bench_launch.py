"""Workers that fail in every way, and a launcher that is interrupted or killed.

The failing workers are fake_trainer.py's; nothing real would fail like that on demand.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from bench_support import (
    FAKE,
    alive,
    bench,
    command_of,
    descendants,
    fake,
    namespaces_of,
    need_namespaces,
    start,
    wait_until,
)

pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
pytest.importorskip("matplotlib", reason="the benchmark draws plots")


@pytest.fixture
def options(tmp_path):
    return [
        *("--trainer", FAKE, "--json", tmp_path / "out.json", "--output", tmp_path / "plots"),
        *("--workers", 3, "--links", "none", "--methods", "none,int4", "--link-mode", "pacing"),
    ]


def rows(tmp_path):
    return json.loads((tmp_path / "out.json").read_text())["rows"]


@pytest.mark.parametrize(
    ("do", "message"),
    [
        ("crash", r"was killed by SIGSEGV"),
        ("quiet", r"ended with code 3: it left no message"),
        ("leave", r"ended before its work was done"),
        ("fault", r": the fault itself"),
    ],
)
def test_the_worker_at_fault_is_named_and_not_the_ones_that_lost_it(options, do, message):
    code, out, err = bench(*options, environment=fake(rank=1, do=do))
    assert code == 1
    last = err.strip().splitlines()[-1]
    assert last.startswith("gradwire bench: none on unshaped links, seed 1: worker 1 (pid ")
    assert message in last
    assert "Traceback" not in err


def test_lines_that_are_no_events_are_kept_in_the_log_and_harm_nothing(options, tmp_path):
    code, _, err = bench(*options, "--keep-logs", environment=fake(rank=1, do="garbage"))
    assert code == 0, err
    assert len(rows(tmp_path)) == 2
    assert "not json" in (tmp_path / "plots" / "logs" / "run1" / "worker1.log").read_text()


def test_parameters_that_differ_between_workers_end_the_benchmark(options):
    code, _, err = bench(*options, environment=fake(do="differ"))
    assert code == 1
    assert "parameters differ after epoch 1, expected the same bits" in err


def test_silent_workers_meet_the_deadline(options):
    code, _, err = bench(*options, "--timeout", 0.3, environment=fake(do="silent"))
    assert code == 1
    assert "no worker was heard for 5 s, expected an event within 5 s (--timeout 0.3)" in err


def test_a_run_over_its_budget_is_stopped_and_its_row_says_so(options, tmp_path):
    process = start(*options, "--time-budget", 6, environment=fake(do="stubborn"))
    workers = wait_until(
        lambda: [p for p in descendants(process.pid) if "fake_trainer" in command_of(p)],
        30,
        "workers start",
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert rows(tmp_path)[0]["stopped_by"] == "time budget"
    assert rows(tmp_path)[0]["seconds_to_target"] is None
    assert "stopped by the time budget" in out
    assert not [pid for pid in workers if alive(pid)]  # although one ignores SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_launcher_reports_what_is_done_and_leaves_nothing(options, tmp_path, number):
    # The second run hangs: by then the first one's row is complete.
    process = start(*options, "--seeds", "1", environment=fake(step=1000))
    for line in process.stderr:
        if line.startswith("[1/2]"):
            break
    below = wait_until(
        lambda: [p for p in descendants(process.pid) if "int4" in command_of(p)], 30, "run 2"
    )
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == f"gradwire bench: interrupted by {number.name}"
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["ended"] == f"interrupted by {number.name}"
    assert [row["method"] for row in document["rows"]] == ["none"]
    assert "no method reached 0.95" in out
    assert not [pid for pid in below if alive(pid)]
    leftovers = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert leftovers == {"out.json", "accuracy-none.svg", "report.html"}


@pytest.mark.parametrize("mode", ["pacing", "netns"])
def test_a_killed_launcher_leaves_no_process_no_namespace_and_no_folder(
    options, tmp_path, mode, monkeypatch
):
    if mode == "netns":
        need_namespaces()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    marks = tmp_path / "marks"
    marks.mkdir()
    environment = dict(
        fake(do="silent", step=2), TMPDIR=str(scratch), GRADWIRE_FAKE_MARKS=str(marks)
    )
    process = start(*options, "--link-mode", mode, environment=environment)

    def working():
        below = descendants(process.pid)
        workers = [pid for pid in below if "--transport gloo" in command_of(pid)]
        return below if len(workers) == 3 else None

    # All three sleep: none of them would notice by itself that the launcher has gone.
    wait_until(lambda: len(list(marks.iterdir())) == 3, 30, "three workers that hang")
    below = working()
    assert below
    assert len(namespaces_of(below)) == (
        4 if mode == "netns" else 0
    )  # one per worker and the bridge's
    assert list(scratch.iterdir())
    process.kill()
    process.wait()
    wait_until(lambda: not [p for p in below if alive(p)], 2, f"the end of {below}")
    wait_until(lambda: not namespaces_of(below), 2, "the end of the namespaces")
    wait_until(lambda: not list(scratch.iterdir()), 2, "the end of the temporary folder")


def test_bad_options_end_at_once_with_one_line_and_write_nothing(options, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for bad, message in [
        (("--data", empty), "train-images-idx3-ubyte"),
        (("--links", "50"), "'50' is not a rate"),
        (("--workers", 0), "--workers: 0, expected 1 to 200"),
        (("--trainer", "/nowhere/trainer"), "--trainer /nowhere/trainer: no such program"),
        (("--json", "/nowhere/out.json"), "--json /nowhere/out.json"),
        (("--output", FAKE), "expected a folder"),
        (("--transport", "in_process", "--link-mode", "netns"), "expected --transport gloo"),
    ]:
        code, out, err = bench(*options, *bad)
        assert code == 2, (bad, err)
        assert message in err
        assert len(err.strip().splitlines()) == 1
        assert out == ""
    assert not (tmp_path / "out.json").exists()


def test_an_unprivileged_user_is_told_why_links_are_paced(monkeypatch):
    from gradwire.bench import links, netns
    from gradwire.bench.arguments import parse_link
    from gradwire.bench.errors import RunError

    monkeypatch.setattr(netns.os, "geteuid", lambda: 1000)
    network = links.open_network("auto", 2, "gloo", [parse_link("50mbit")])
    assert (network.mode, network.interface) == ("pacing", "lo")
    assert network.describe().endswith("(no namespaces: not root)")
    assert network.options(parse_link("50mbit")) == ["--pace", "50mbit"]
    with pytest.raises(RunError, match="--link-mode netns: not root"):
        links.open_network("netns", 2, "gloo", [parse_link("50mbit")])


def test_missing_tools_and_refusals_are_named(monkeypatch):
    from gradwire.bench import netns
    from gradwire.bench.arguments import Link

    need_namespaces()
    found = netns._find
    monkeypatch.setattr(netns, "_find", lambda tool: "" if tool == "tc" else found(tool))
    with pytest.raises(netns.Unavailable, match="tc not found .packages iproute2"):
        netns.Namespaces(1)
    monkeypatch.setattr(netns, "_find", found)
    namespaces = netns.Namespaces(2)
    holders = namespaces.pids()
    assert len(namespaces_of(holders)) == 3
    with pytest.raises(netns.Unavailable, match="tc refused: .+"):
        namespaces.shape(Link("odd", 1))  # below what tc can say: a rate of zero bytes per second
    namespaces.close()
    assert not [pid for pid in holders if alive(pid)]
    assert not namespaces_of(holders)


_RECEIVE = """
import socket, sys
server = socket.create_server(("", 4000))
print("listens", flush=True)
connection, told, got = server.accept()[0], 0, 0
while True:
    got += len(connection.recv(1 << 20))
    for _ in range(got // 1_000_000 - told):
        told += 1
        print(told, flush=True)
"""
_SEND = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 4000))
while True:
    connection.sendall(bytes(1 << 20))
"""


def test_a_link_that_becomes_slower_goes_on():
    from gradwire.bench.arguments import parse_link
    from gradwire.bench.netns import Namespaces

    need_namespaces()
    namespaces, ends = Namespaces(2), []
    try:
        namespaces.shape(parse_link("1gbit"))
        python = [sys.executable, "-c"]
        ends.append(subprocess.Popen([*namespaces.enter(1), *python, _RECEIVE], stdout=subprocess.PIPE))
        assert ends[0].stdout.readline() == b"listens\n"
        ends.append(subprocess.Popen([*namespaces.enter(0), *python, _SEND, namespaces.address(1)]))
        got = [0]

        def read():
            for line in iter(ends[0].stdout.readline, b""):
                got[0] = int(line)

        threading.Thread(target=read, daemon=True).start()
        wait_until(lambda: got[0] >= 50, 30, "50 MB")
        for name in ("50mbit", "none", "1gbit", "50mbit"):
            # The queue is full, with packets of up to 64 KiB.
            namespaces.shape(parse_link(name))
            time.sleep(0.5)  # what had come before has been told of
            begun = got[0]
            wait_until(lambda begun=begun: got[0] > begun + 2, 30, f"more at {name}")
    finally:
        for end in ends:
            end.kill()
            end.wait()
        namespaces.close()


def test_a_suspended_worker_is_named():
    import subprocess

    from gradwire.bench.processes import is_stopped

    process = subprocess.Popen(["sleep", "30"])
    try:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(process.pid), 2, "state T")
    finally:
        process.kill()
        process.wait()
    assert not is_stopped(process.pid)
    assert not Path(f"/proc/{process.pid}").exists()


def test_without_matplotlib_there_are_no_plots_and_it_says_so_first(options, tmp_path):
    hidden = tmp_path / "hidden" / "matplotlib"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError(\"No module named 'matplotlib'\")\n")
    paths = {"PYTHONPATH": str(hidden.parent)}
    code, out, err = bench(*options, environment={**fake(rank=-1, do="train"), **paths})
    assert code == 0, err
    first = err.splitlines()[0]
    assert "no plots" in first and "pip install 'gradwire[bench]'" in first
    assert [row["method"] for row in rows(tmp_path)] == ["none", "int4"]
    left = [path.name for path in (tmp_path / "plots").iterdir()]
    assert left == ["report.html"] and ".svg" not in out  # which needs no matplotlib


@pytest.mark.parametrize("words, says", [
    (("--methods", "none,int3"), "--methods: 'int3': compressor: unknown name 'int3', known: none, fp16"),
    (("--optimizer", "sdg"), "--optimizer: 'sdg': optimizer: unknown name 'sdg' (did you mean 'sgd'?)"),
    (("--outer", "diloco:momentum=1"), "--outer: 'diloco:momentum=1': diloco: momentum is 1"),
])
def test_a_bad_spec_is_refused_before_anything_is_looked_for(options, words, says):
    code, _, err = bench(*options, *words, "--trainer", "/no/such/trainer")
    assert code == 2 and says in err.strip().splitlines()[-1], err
