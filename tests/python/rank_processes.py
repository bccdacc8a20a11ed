"""Ranks as processes or threads, each with a transport, for the tests of what crosses ranks.

Processes are forked from a server that has imported everything once, so that a group of eight
starts in a moment although torch is large.
"""

import importlib.util
import multiprocessing
import os
import socket
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Optional

import pytest

import gradwire

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["rank_processes", "numpy", "gradwire"]
                                + ["torch", "torch.distributed", "gradwire.torch"] * HAS_TORCH)


@dataclass
class End:
    """How one rank ended: what its body returned, or what it raised and when."""

    value: Any = None
    error: Optional[str] = None  # the name of its class
    message: str = ""
    peer: Optional[int] = None
    seconds: float = 0.0
    trace: str = ""

    def result(self):
        assert self.error is None, self.trace
        return self.value


def run_ranks(kind, world_size, body, *, folder, timeout=30.0, deadline=60.0, killed=()):
    """Runs body(transport) in a process per rank; returns an End for each.

    `body` is a function of a module. Ranks in `killed` end by themselves without an answer. All
    processes are gone when this returns; ranks that have not ended by the deadline fail the test.
    """
    pipes, processes = [], []
    for rank in range(world_size):
        receive, send = _context.Pipe(duplex=False)
        process = _context.Process(
            target=_rank, args=(kind, rank, world_size, str(folder), timeout, body, send))
        process.start()
        send.close()
        pipes.append(receive)
        processes.append(process)
    try:
        ends, until = {}, time.monotonic() + deadline
        waited_for = {pipes[r]: r for r in range(world_size) if r not in killed}
        while waited_for and time.monotonic() < until:
            for pipe in wait(list(waited_for), until - time.monotonic()):
                rank = waited_for.pop(pipe)
                try:
                    ends[rank] = pipe.recv()
                except EOFError:
                    pytest.fail(f"rank {rank} died without a word")
        assert not waited_for, f"ranks {sorted(waited_for.values())} have not ended by {deadline} s"
        return [ends.get(rank, End()) for rank in range(world_size)]
    finally:
        for process in processes:
            process.join(0 if process.pid is None else 5 if process.is_alive() and not killed else 0.2)
            if process.is_alive():
                process.kill()
                process.join()


def in_threads(world_size, body, *, deadline=60.0):
    """Runs body(transport) in a thread per rank over in_process; returns an End for each."""
    transports = gradwire.make_in_process_group(world_size)
    ends = [End() for _ in transports]

    def run(rank):
        try:
            ends[rank].value = body(transports[rank])
        except Exception as error:
            ends[rank].error, ends[rank].message = type(error).__name__, str(error)
            ends[rank].trace = traceback.format_exc()
            transports[rank].abort(str(error))

    threads = [threading.Thread(target=run, args=(rank,), daemon=True)
               for rank in range(world_size)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + deadline
    for thread in threads:
        thread.join(max(0, until - time.monotonic()))
    hung = [rank for rank in range(world_size) if threads[rank].is_alive()]
    assert not hung, f"ranks {hung} have not ended by {deadline} s"
    return ends


def free_port_pair():
    """A port for torchrun's ranks, whose next one, where gradwire's ranks meet, is free as well.

    Below the ports that connections take by themselves, which could take the second in between.
    """
    first = 20_000 + os.getpid() * 7 % 9_000
    for port in range(first, first + 3_000, 2):
        try:
            with socket.socket() as one, socket.socket() as next_one:
                one.bind(("127.0.0.1", port))
                next_one.bind(("127.0.0.1", port + 1))
            return port
        except OSError:
            continue
    raise AssertionError(f"no two free ports from {first} on")


class TorchWorld:
    """A rank of torch.distributed over gloo, for what makes transports of its own."""

    def __init__(self, folder, rank, world_size):
        import torch
        import torch.distributed as dist

        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/torch", rank=rank,
                                world_size=world_size)
        self.rank, self.world_size = rank, world_size

    def close(self):
        import torch.distributed as dist

        dist.destroy_process_group()


def open_transport(kind, rank, world_size, folder, timeout):
    """The transport of one rank."""
    if kind == "torch_world":
        return TorchWorld(folder, rank, world_size)
    if kind.startswith("torch"):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        import torch.distributed as dist

        from gradwire.torch import carrier

        if kind == "torch_staged":  # as on a device that torch cannot reach from the CPU
            carrier._needs_staging = lambda device: True
        dist.init_process_group("gloo", init_method=f"file://{folder}/torch", rank=rank,
                                world_size=world_size)
        return carrier.transport(timeout=timeout)
    return gradwire.make_transport(kind, rank=rank, world_size=world_size, interface="lo",
                                   store=f"file:{folder}/store", timeout=timeout)


def _rank(kind, rank, world_size, folder, timeout, body, pipe):
    end = End()
    os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"  # the server's is of when it was started
    try:
        transport = open_transport(kind, rank, world_size, folder, timeout)
        start = time.monotonic()
        try:
            end.value = body(transport)
        finally:
            end.seconds = time.monotonic() - start
        transport.close()
    except Exception as error:
        end.error, end.message = type(error).__name__, str(error)
        end.peer, end.trace = getattr(error, "peer", None), traceback.format_exc()
    pipe.send(end)
    pipe.close()
