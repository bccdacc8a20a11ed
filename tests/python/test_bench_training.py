"""The real trainer under `gradwire bench`, over pacing and over shaped namespaces."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from bench_support import (
    alive,
    bench,
    command_of,
    descendants,
    namespaces_of,
    need_namespaces,
    start,
    trainer,
    wait_until,
)

pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
pytest.importorskip("matplotlib", reason="the benchmark draws plots")

ROW = {
    "method",
    "link_mbit_per_s",
    "world_size",
    "seconds_to_target",
    "final_accuracy",
    "step_ms",
    "compute_ms",
    "exposed_exchange_ms",
    "compression_ms",
    "wire_bytes_per_step",
    "interface_bytes_per_step",
    "predicted_bytes_per_step",
    "seed",
    "link_mode",
}


@pytest.fixture
def options(tmp_path):
    return [
        *("--trainer", trainer(), "--json", tmp_path / "out.json", "--output", tmp_path / "plots"),
        *("--workers", 2, "--hidden", "64", "--batch-size", 32, "--timeout", 20),
    ]


def document(tmp_path):
    return json.loads((tmp_path / "out.json").read_text())


def check_rows(rows, methods, links):
    assert [(r["link_mbit_per_s"], r["method"]) for r in rows] == [
        (link, method) for link in links for method in methods
    ]
    for row in rows:
        assert set(row) >= ROW
        assert row["world_size"] == 2
        assert row["steps"] == 30
        assert 0.3 < row["final_accuracy"] <= 1
        assert row["step_ms"] >= row["compute_ms"] > 0
        assert row["wire_bytes_per_step"] > 0


METHODS = ["none", "fp16", "topk:1%,int4"]


def test_paced_links_train_with_every_method(options, tmp_path):
    code, out, err = bench(
        *options, "--link-mode", "pacing", "--links", "50mbit,none", "--max-steps", 30,
        "--methods", "none,fp16,topk:1%+int4", "--stop-at-target", 0,
    )  # fmt: skip
    assert code == 0, err
    found = document(tmp_path)
    check_rows(found["rows"], METHODS, [50.0, None])
    assert {row["link_mode"] for row in found["rows"]} == {"pacing"}
    assert {row["interface_bytes_per_step"] for row in found["rows"]} == {None}
    by_method = {row["method"]: row for row in found["rows"] if row["link"] == "none"}
    # Dense float32 of 64*64+64 + 64*10+10 parameters: each of 2 ranks sends half, then half.
    payload = 4 * (64 * 64 + 64 + 64 * 10 + 10)
    assert payload <= by_method["none"]["wire_bytes_per_step"] <= payload + 1000
    for method in ("none", "fp16"):  # fixed lengths: what was predicted is what was sent
        row = by_method[method]
        assert row["wire_bytes_per_step"] == row["predicted_bytes_per_step"]
    assert "token-bucket pacing inside the transport" in found["network"]
    assert "burst (the larger of 8000 bytes and 1 ms of the line): 50mbit 8000 bytes" in err
    assert sorted(p.name for p in (tmp_path / "plots").iterdir()) == [
        "accuracy-50mbit.svg",
        "accuracy-none.svg",
        "report.html",
    ]
    assert "topk:1%,int4" in out


def test_auto_measures_decides_and_leaves_its_log_in_its_row(options, tmp_path):
    code, _, err = bench(
        *options, "--link-mode", "pacing", "--links", "500kbit", "--max-steps", 40, "--stop-at-target", 0,
        "--methods", "auto;none", "--eval-every", 7,
    )  # fmt: skip
    assert code == 0, err
    found = document(tmp_path)
    auto, dense = found["rows"]
    assert [row["method"] for row in (auto, dense)] == ["auto", "none"]
    assert "decisions" not in dense
    assert {"predict", "choose"} <= {decision["what"] for decision in auto["decisions"]}
    for decision in auto["decisions"]:
        assert list(decision) == ["step", "what", "from", "to", "reason", "numbers"]
        assert 0 <= decision["step"] <= 40 and decision["reason"] and decision["numbers"]
    first = auto["decisions"][0]
    assert (first["what"], first["step"], first["from"]) == ("begin", 0, "none")
    assert auto["decisions"][-1]["to"].startswith(("int8", "int4", "topk:1%,int4", "bf16"))
    # On such a link no step is dense, not even the first.
    ours, theirs = auto["wire_bytes_per_step"], dense["wire_bytes_per_step"]
    assert 0 < ours < 0.6 * theirs
    curve = next(each["points"] for each in found["curves"] if each["method"] == "auto")
    assert 0 < curve[0]["bytes"] < curve[-1]["bytes"] < 0.6 * 40 * theirs
    assert auto["steps"] == dense["steps"] == 40
    assert auto["step_ms"] > 0 and auto["seconds"] > 0


def test_shaped_namespaces_train_with_every_method_and_the_interface_agrees(options, tmp_path):
    need_namespaces()
    process = start(
        *options, "--link-mode", "netns", "--links", "50mbit,1gbit,none", "--max-steps", 30,
        "--methods", "none,fp16,topk:1%+int4", "--stop-at-target", 0, "--eval-every", 100,
    )  # fmt: skip

    def all_made():
        found = descendants(process.pid)
        return found if len(namespaces_of(found)) == 3 else None

    below = wait_until(all_made, 60, "a namespace per worker and the bridge's")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    found = document(tmp_path)
    check_rows(found["rows"], METHODS, [50.0, 1000.0, None])
    for row in found["rows"]:
        sent, seen = row["wire_bytes_per_step"], row["interface_bytes_per_step"]
        # What a step leaves in its queue may pass the interface while an evaluation runs.
        assert 0.9 * sent <= seen <= 1.10 * sent + 4096 * (row["world_size"] - 1), row
    assert not [pid for pid in below if alive(pid)]
    assert not namespaces_of(below)


def test_the_target_ends_a_run_and_the_report_names_the_fastest(options, tmp_path):
    code, out, err = bench(
        *options, "--links", "none", "--methods", "none,int4", "--seeds", 2,
        "--target-accuracy", 0.8, "--epochs", 30,
    )  # fmt: skip
    assert code == 0, err
    rows = document(tmp_path)["rows"]
    assert [(r["seed"], r["method"]) for r in rows] == [
        (1, "none"), (1, "int4"), (2, "none"), (2, "int4")
    ]  # fmt: skip
    assert all(row["stopped_by"] == "target" for row in rows)
    assert all(row["seconds_to_target"] > 0 for row in rows)
    assert re.search(r"unshaped: (int4|no compression) reaches 0.8 first, after [\d.]+ ± ", out)


def test_ranks_can_be_threads_of_one_process(options, tmp_path):
    code, _, err = bench(
        *options, "--transport", "in_process", "--links", "none", "--methods", "none,int8",
        "--max-steps", 30, "--stop-at-target", 0,
    )  # fmt: skip
    assert code == 0, err
    check_rows(document(tmp_path)["rows"], ["none", "int8"], [None])


def test_an_unknown_method_lists_the_known_ones_before_anything_runs(options, tmp_path):
    code, out, err = bench(*options, "--methods", "none,zip")
    assert code == 2
    last = err.strip().splitlines()[-1]
    assert "zip" in last
    assert all(name in last for name in ("none", "fp16", "bf16", "topk", "int8", "int4"))
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--methods", "topk:200%", "in (0, 1]"),
        ("--optimizer", "adagrad", "sgd, adamw, lars, larc, lamb"),
        ("--exchange", "telepathy", "dense, gather"),
        ("--methods", "auto:window=1", "window is '1', must be a number of steps from 2 to 1000"),
    ],
)
def test_what_the_trainer_refuses_is_told_once_with_code_2(options, option, value, named):
    code, _, err = bench(*options, "--links", "none", option, value)
    assert code == 2, err
    assert named in err.strip().splitlines()[-1]


def long_run(options, *more):
    process = start(
        *options, "--links", "none", "--methods", "none", "--epochs", 100000,
        "--stop-at-target", 0, *more,
    )  # fmt: skip

    def workers():
        found = {}
        for pid in descendants(process.pid):
            rank = re.search(r"--rank (\d+)", command_of(pid))
            if rank and os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "gradwire-trainer":
                found[int(rank.group(1))] = pid
        return found if len(found) == 2 else None

    found = wait_until(workers, 60, "two workers")
    time.sleep(1.0)  # into the training
    return process, found


def test_a_worker_killed_in_mid_run_ends_it_long_before_the_deadline_with_its_name(options, tmp_path):
    process, workers = long_run(options)
    os.kill(workers[1], signal.SIGKILL)
    killed = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - killed < 10  # of 20
    assert process.returncode == 1
    last = err.strip().splitlines()[-1]
    assert f"worker 1 (pid {workers[1]}) was killed by SIGKILL" in last
    assert not alive(workers[0])
    assert document(tmp_path)["ended"] in last


def test_a_suspended_worker_is_found_by_the_deadline_and_named(options):
    process, workers = long_run(options, "--timeout", 2)
    os.kill(workers[1], signal.SIGSTOP)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"suspended: worker 1 (pid {workers[1]})" in err.strip().splitlines()[-1]
    assert not alive(workers[1])


@pytest.mark.parametrize("mode", ["pacing", "netns"])
def test_ctrl_c_in_mid_run_leaves_no_worker(options, tmp_path, mode):
    if mode == "netns":
        need_namespaces()
    process, workers = long_run(options, "--link-mode", mode)
    below = descendants(process.pid)
    assert len(namespaces_of(below)) == (3 if mode == "netns" else 0)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not [pid for pid in workers.values() if alive(pid)]
    assert not [pid for pid in below if alive(pid)]
    assert not namespaces_of(below)
    assert document(tmp_path)["rows"] == []


# Sends one message on a connection that is warm and has been idle long enough for a full bucket.
_SOCKETS = """
import socket, sys, time
role, host = sys.argv[1:]
size = 65536
if role == "receive":
    server = socket.create_server((host, 4000))
    print("ready", flush=True)
    peer, _ = server.accept()
    peer.recv(1)
    left = size
    while left:
        left -= len(peer.recv(left))
    print(time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)
else:
    peer = socket.create_connection((host, 4000))
    peer.sendall(b"x")
    time.sleep(0.3)
    print(time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)
    peer.sendall(bytes(size))
    peer.recv(1)
"""


@pytest.mark.parametrize("rate", ["10mbit", "50mbit", "100mbit"])
def test_a_lone_64_kb_message_gets_no_free_ride_on_a_shaped_link(rate):
    need_namespaces()
    from gradwire.bench.arguments import parse_link
    from gradwire.bench.netns import Namespaces

    namespaces = Namespaces(2)
    try:
        namespaces.shape(parse_link(rate))
        host = namespaces.address(1)

        def play(role, rank):
            command = [*namespaces.enter(rank), sys.executable, "-c", _SOCKETS, role, host]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        receiver = play("receive", 1)
        assert receiver.stdout.readline() == "ready\n"
        sender = play("send", 0)
        started = float(sender.communicate(timeout=20)[0])
        ended = float(receiver.communicate(timeout=20)[0])
    finally:
        namespaces.close()
    line_s = 65536 * 8 / parse_link(rate).bits_per_s
    assert ended - started >= 0.75 * line_s


@pytest.mark.parametrize("rate", ["10mbit", "50mbit", "100mbit"])
def test_a_lone_64_kb_message_gets_no_free_ride_on_a_paced_link(rate, tmp_path, options):
    from gradwire.bench.arguments import parse_link
    from gradwire.bench.digits import digits_folder

    # Half of 64*436+436 + 436*10+10 float32 gradients: each of two ranks sends 65.4 kB, twice.
    store = tmp_path / "store"
    store.mkdir()
    command = [
        trainer(), "--world-size", 2, "--transport", "gloo", "--store", f"file:{store}",
        "--interface", "lo", "--data", digits_folder(), "--hidden", 436, "--method", "none",
        "--pace", rate, "--max-steps", 8, "--overlap", 0, "--events", "-", "--threads", 1,
    ]  # fmt: skip
    ranks = [
        subprocess.Popen([*map(str, command), "--rank", str(r)], stdout=subprocess.PIPE, text=True)
        for r in range(2)
    ]
    lines = [rank.communicate(timeout=60)[0] for rank in ranks][0].splitlines()
    steps = [event for event in map(json.loads, lines) if event["event"] == "step"][1:]
    assert len(steps) == 7
    for step in steps:
        half = step["bytes_sent"] / 2
        assert 64_000 < half < 67_000
        # Two messages one after the other; the bucket may be full before each of them.
        line_ms = 1e3 * half * 8 / parse_link(rate).bits_per_s
        assert step["transfer_ms"] >= 0.75 * 2 * line_ms
