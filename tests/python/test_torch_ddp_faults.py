"""gradwire.torch.register(): what is refused, and what happens when ranks or processes end."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest
import rank_processes
from rank_processes import needs_torch, run_ranks
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    from ddp_case import Net, ddp, loss_of, parameters, registered, sgd, train
    from torch.distributed.elastic.multiprocessing.errors import record

    import gradwire
    import gradwire.torch


def _refuses(world):
    model, exchange = registered()
    refused = [
        (lambda: gradwire.torch.register(model, "none"), "has a communication hook already"),
        (lambda: gradwire.torch.register(Net(), "none"), "must be a DistributedDataParallel"),
        (lambda: gradwire.torch.register(ddp(), "nonsense"), "nonsense"),
        (lambda: gradwire.torch.register(ddp(), "topk:1%\udcff"), "holds half of a surrogate pair"),
        (lambda: gradwire.torch.register(ddp(), "auto:specs=int8\udcff"), "holds half of a surrogate pair"),
        (lambda: gradwire.torch.register(ddp(), "none", carrier="pigeon"), "carrier: is 'pigeon'"),
        (lambda: gradwire.torch.register(ddp(), "none", scaler=True), "scaler: is True"),
        (lambda: gradwire.torch.register(ddp(Net(torch.float16)), "none",
                                         scaler=torch.amp.GradScaler("cpu")), "float16"),
        (lambda: gradwire.torch.register(ddp(), "none", on_nonfinite="maybe"), "on_nonfinite"),
        (lambda: gradwire.torch.register(ddp(), "none", rules=[{"spec": "x"}]), "x"),
    ]
    for call, text in refused:
        with pytest.raises(gradwire.InvalidArgument, match=re.escape(text)):
            call()
    train(model, sgd(model), 0, 2)
    exchange.close()
    with pytest.raises(gradwire.InvalidArgument, match="has been closed"):
        loss_of(model, world.rank, 2).backward()


def test_what_cannot_be_is_refused(tmp_path):
    check(2, _refuses, tmp_path)


def _alone(world):
    model, exchange = registered("topk:1%")
    plain = ddp()
    for one in (model, plain):
        train(one, sgd(one), 0, 5)
    assert torch.equal(parameters(model), parameters(plain))
    assert exchange.stats() == {} and exchange.transport is None
    state = exchange.state_dict()
    assert state["world_size"] == 1 and state["reducer"].numel() == 0
    for own in (state, [state], {0: state}, lambda rank: state if rank == 0 else None):
        exchange.load_state_dict(own)  # of which there is nothing to take over
    several = dict(state, world_size=2)
    for bad, said in ((None, "is a NoneType"), ([], "holds a NoneType"), ({"w": 1}, "is no state of an"),
                      (several, "has 1 rank, which keeps nothing"), ([several] * 2, "is of 2 ranks")):
        with pytest.raises(gradwire.InvalidArgument, match=said):
            exchange.load_state_dict(bad)
    exchange.set_spec("int8"), exchange.close()
    for options, said in (({"carrier": "tcp"}, "one of auto, gloo, torch, nccl"),
                          ({"carrier": "nccl"}, "GPU memory"),
                          ({"timeout": -1.0}, "positive number of seconds")):
        with pytest.raises(gradwire.InvalidArgument, match=said):  # as where there are others to join
            gradwire.torch.register(ddp(), "int8", **options)


def test_one_rank_has_nothing_to_exchange(tmp_path):
    check(1, _alone, tmp_path)


def _refused_on_one_rank(world):
    model, exchange = registered()
    loss = loss_of(model, world.rank, 0)
    if world.rank == 0:
        started = time.monotonic()
        with pytest.raises(gradwire.TransportError, match="rank 1"):
            loss.backward()
        assert time.monotonic() - started < 15  # of a timeout of 30
    else:
        scaler = torch.amp.GradScaler("cpu")
        with pytest.raises(gradwire.InvalidArgument, match="a GradScaler is in use"):
            scaler.scale(loss).backward()
    torch.distributed.barrier()  # rank 1 is there all the time


def test_what_one_rank_refuses_ends_the_step_of_all(tmp_path):
    check(2, _refused_on_one_rank, tmp_path)


def _dies(world):
    model, exchange = registered()
    train(model, sgd(model), 0, 3)
    if world.rank == 1:
        model.module.maybe.weight.register_hook(lambda _: os._exit(3))
    started = time.monotonic()
    with pytest.raises(gradwire.TransportError, match="rank 1"):
        loss_of(model, world.rank, 3).backward()
    return time.monotonic() - started


def test_a_rank_that_dies_in_backward_ends_that_of_the_others(tmp_path):
    ends = run_ranks("torch_world", 2, _dies, folder=tmp_path, deadline=60.0, killed=(1,))
    assert ends[0].value < 10, ends[0].trace


def _dies_under_torchrun(world):
    # As torchrun starts it: with a file for the error, which `record` writes.
    os.environ["TORCHELASTIC_ERROR_FILE"] = file = f"{tempfile.gettempdir()}/gradwire-{os.getpid()}.json"
    try:
        with pytest.raises(gradwire.TransportError, match="rank 1 died") as caught:
            record(_dies_alone)(world)
        with open(file) as written:
            message = json.load(written)["message"]
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file)
    assert caught.value.peer == 1
    assert "TransportError" in message["message"] and "rank 1 died" in message["message"]
    assert "loss_of(model, world.rank, 3).backward()" in message["extraInfo"]["py_callstack"]


def _dies_alone(world):
    model, exchange = registered()
    train(model, sgd(model), 0, 3)
    if world.rank == 1:
        model.module.maybe.weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    loss_of(model, world.rank, 3).backward()


def test_torchruns_error_file_names_a_rank_that_was_killed(tmp_path):
    ends = run_ranks("torch_world", 2, _dies_under_torchrun, folder=tmp_path, deadline=60.0, killed=(1,))
    assert ends[0].error is None, ends[0].trace


def _forks(world):
    model, exchange = registered()
    train(model, sgd(model), 0, 2)
    loss = loss_of(model, world.rank, 2)
    for how in ("os._exit", "sys.exit"):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                loss.backward()
            except gradwire.InvalidArgument as error:
                code = 0 if "which a fork does not carry over" in str(error) else 2
            if how == "sys.exit":
                sys.stderr = open(os.devnull, "w")
                del model, exchange
            os._exit(code)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            time.sleep(0.05)
        else:
            os.kill(child, 9)
            raise AssertionError("the child hangs")
        assert os.waitstatus_to_exitcode(status) == 0
    loss.backward()
    train(model, sgd(model), 3, 5)


def test_a_forked_child_is_told_and_ends(tmp_path):
    check(2, _forks, tmp_path)


_SCRIPT = """
    import os, sys, torch, torch.distributed as dist
    sys.path.insert(0, {folder!r})
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rank = int(sys.argv[1])
    dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
    from ddp_case import loss_of, registered, sgd, train
    model, exchange = registered(carrier={carrier!r})
    train(model, sgd(model), 0, 2)
    if rank == 1:  # ends with its first bucket on its way
        model.module.first.weight.register_hook(lambda _: sys.exit(7))
    loss_of(model, rank, 2).backward()
"""


@pytest.mark.parametrize("carrier", ["gloo", "torch"])
def test_an_interpreter_that_ends_with_buckets_in_flight_ends(tmp_path, carrier):
    script = tmp_path / "script.py"
    folder = os.path.dirname(os.path.abspath(__file__))
    script.write_text(textwrap.dedent(_SCRIPT.format(folder=folder, carrier=carrier)))
    ranks = [subprocess.Popen([sys.executable, str(script), str(rank), str(tmp_path / "store")],
                              stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[1].returncode == 7, errors[1]
    assert ranks[0].returncode == 1
    assert "TransportError" in errors[0] and "rank 1" in errors[0], errors[0]
