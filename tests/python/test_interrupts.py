"""Ctrl-C while a rank waits for a peer: KeyboardInterrupt, at once, and the peer is told."""

import signal
import subprocess
import sys
import textwrap

import pytest
from rank_processes import HAS_TORCH

import gradwire

# A peer may be silent for so long: nothing here waits for that.
BEGIN = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
import numpy as np
import gradwire
rank, folder = int(sys.argv[1]), sys.argv[2]
def join():
    return gradwire.make_transport("gloo", rank=rank, world_size=2, interface="lo", timeout=3000,
                                   store=f"file:{folder}/store")
def waits():
    print("waits", flush=True)
def idle():  # until the test ends it
    print("is idle", flush=True)
    sys.stdin.readline()
"""
WAITS = {
    "rendezvous": """
if rank == 0:
    waits()
    join()
idle()
""",
    "verb": """
transport = join()
transport.barrier()
if rank == 0:
    waits()
    transport.all_gather(np.ones(3, np.float32))
idle()
transport.barrier()
""",
    "reducer": """
transport = join()
reducer = gradwire.Reducer(gradwire.make_plan([("w", (64, 64))], "topk:10%"), transport)
if rank == 0:
    reducer.gradient(0)[...] = 1
    reducer.grad_ready(0)
    waits()
    reducer.wait()
idle()
reducer.gradient(0)[...] = 1
reducer.grad_ready(0)
reducer.wait()
""",
    "hook": """
import os, torch, torch.distributed as dist, gradwire.torch
from torch.nn.parallel import DistributedDataParallel
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo", init_method=f"file://{folder}/torch", rank=rank, world_size=2)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
gradwire.torch.register(model, "topk:10%", timeout=3000.0)
for step in range(3):  # in the second DDP makes its buckets anew, for which torch waits itself
    model(torch.ones(2, 8)).sum().backward()
if rank == 0:
    waits()
    model(torch.ones(2, 8)).sum().backward()
idle()
model(torch.ones(2, 8)).sum().backward()
""",
}


def start(code, rank, folder):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(rank), str(folder)], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def next_line(process):
    line = process.stdout.readline().strip()
    return line or process.communicate(timeout=60)[1]


@pytest.mark.parametrize("where", WAITS)
def test_a_wait_ends_with_keyboard_interrupt_and_the_peer_is_told(where, tmp_path):
    if where == "hook" and not HAS_TORCH:
        pytest.skip("torch is not installed")
    reasons = {row.name: row.unavailable_reason for row in gradwire.transports()}
    if reasons["gloo"]:
        pytest.skip(reasons["gloo"])
    ranks = [start(BEGIN + WAITS[where], rank, tmp_path) for rank in range(2)]
    try:
        assert next_line(ranks[0]) == "waits"
        assert next_line(ranks[1]) == "is idle"
        with pytest.raises(subprocess.TimeoutExpired):
            ranks[0].wait(1)  # it is inside by now
        ranks[0].send_signal(signal.SIGINT)
        _, said = ranks[0].communicate(timeout=60)
        assert said.strip().splitlines()[-1].endswith("KeyboardInterrupt"), said
        assert ranks[0].returncode != 0
        if where != "rendezvous":
            _, said = ranks[1].communicate("\n", timeout=60)
            # In its next call: what rank 0 said, or that its process has ended.
            assert "TransportError" in said and ("interrupted (Ctrl-C)" in said or "rank 0" in said), said
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


def test_a_call_that_ends_by_itself_is_not_ended():
    """And the transport can be used on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        transport = gradwire.make_transport("in_process")
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            transport.barrier()
        transport.barrier()
    finally:
        signal.signal(signal.SIGINT, before)


def test_somebody_elses_handler_decides():
    """A handler that does not raise, to save and leave later for one, ends no call."""
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append("signal"))
    try:
        transport = gradwire.make_transport("in_process")
        signal.raise_signal(signal.SIGINT)
        transport.barrier()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["signal"]
