"""gradwire.torch.register() beside other hooks and optimizers of torch, and after its own."""

import threading

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    import torch.distributed as dist
    from ddp_case import assert_ranks_agree, ddp, flat, loss_of, parameters, registered, sgd, train
    from torch.distributed.optim import _apply_optimizer_in_backward

    import gradwire
    import gradwire.torch


def _beside_others(world):
    with_builtin = ddp()
    with_builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    with pytest.raises(gradwire.InvalidArgument, match="communication hook already, .*FP16.*must have none"):
        gradwire.torch.register(with_builtin, "topk:1%")
    train(with_builtin, sgd(with_builtin), 0, 2)  # nothing has changed for it
    stepped = ddp()
    _apply_optimizer_in_backward(torch.optim.SGD, stepped.module.last.parameters(), {"lr": 0.1})
    with pytest.raises(gradwire.InvalidArgument, match="'last.weight': _apply_optimizer_in_backward"):
        gradwire.torch.register(stepped, "topk:1%")
    with pytest.raises(gradwire.InvalidArgument, match="'last.weight': _apply_optimizer_in_backward"):
        gradwire.torch.attach(stepped.module, "topk:1%")
    # Behind register(): at the next backward. (Before the first forward torch itself refuses it.)
    model, exchange = registered()
    loss = loss_of(model, world.rank, 0)
    _apply_optimizer_in_backward(torch.optim.SGD, model.module.last.parameters(), {"lr": 0.1})
    with pytest.raises(gradwire.InvalidArgument, match="'last.weight': _apply_optimizer_in_backward"):
        loss.backward()
    exchange.close()


def test_what_steps_or_exchanges_besides_is_refused(tmp_path):
    check(2, _beside_others, tmp_path)


def _registers_again(world):
    model, first = registered("tensortopk:10%")
    optimizer = sgd(model)
    train(model, optimizer, 0, 3)
    with pytest.raises(gradwire.InvalidArgument, match="close.. makes room for another"):
        gradwire.torch.register(model, "none")
    first.close()
    assert "closed" in repr(first)
    second = gradwire.torch.register(model, "none", timeout=30.0)
    assert "'none' of 6 parameters>" in repr(second)
    train(model, optimizer, 3, 5)
    assert_ranks_agree(parameters(model), "parameters")
    optimizer.zero_grad()
    loss_of(model, world.rank, 5).backward()
    mean = flat(p.grad for p in model.parameters())
    optimizer.zero_grad()
    with model.no_sync():  # of all ranks, by torch
        loss_of(model, world.rank, 5).backward()
    own = flat(p.grad for p in model.parameters())
    dist.all_reduce(own)
    torch.testing.assert_close(mean, own / world.world_size)
    assert second.stats()["committed"] and first.stats()["step"] == 2
    second.close()


def test_a_closed_exchange_makes_room_for_another(tmp_path):
    check(2, _registers_again, tmp_path)


def _asks_elsewhere(world):
    model, exchange = registered()
    train(model, sgd(model), 0, 2)
    said = []

    def ask():
        assert exchange.stats()["step"] == 1  # without norms
        with pytest.raises(gradwire.InvalidArgument, match="in thread 'asker', expected the thread that"):
            exchange.stats(norms=True)
        said.append("refused")

    asker = threading.Thread(target=ask, name="asker")
    asker.start(), asker.join()
    assert said == ["refused"] and exchange.stats(norms=True)["gradient_norm"] > 0
    exchange.close()


def test_norms_are_told_to_the_thread_that_trains(tmp_path):
    check(2, _asks_elsewhere, tmp_path)


def _maps_once(world):
    model, exchange = registered()
    optimizer = sgd(model)
    train(model, optimizer, 0, 4)  # DDP's buckets have settled, and the plan has followed them

    def refuse(bucket, buffer):
        raise AssertionError("looked up anew")

    exchange._map = refuse
    train(model, optimizer, 4, 6)
    assert_ranks_agree(parameters(model), "parameters")
    exchange.close()


def test_where_a_bucket_lies_is_looked_up_once(tmp_path):
    check(2, _maps_once, tmp_path)
