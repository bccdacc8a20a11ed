"""GradScalers of other exchanges: passed over, and refused where they step the parameters of this one too."""

import pytest
from rank_processes import HAS_TORCH, needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if HAS_TORCH:
    import torch
    from ddp_case import ddp, loss_of, parameters, registered, sgd
    from fsdp_case import sharded, weights

    import gradwire
    import gradwire.torch


def _scaled_step(model, scaler, rank, step, optimizer=None):
    optimizer = optimizer or sgd(model)
    optimizer.zero_grad()
    scaler.scale(loss_of(model, rank, step)).backward()
    scaler.step(optimizer), scaler.update()


def _plain_steps(model, rank, count=3):
    optimizer = sgd(model)
    for step in range(count):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()


def _experiments(world):
    first, scaler = ddp(), torch.amp.GradScaler("cpu", init_scale=256.0)
    exchange = gradwire.torch.register(first, "topk:10%", scaler=scaler)
    _scaled_step(first, scaler, world.rank, 0)

    def second():
        model, mine = registered("topk:10%")
        _plain_steps(model, world.rank)
        mine.close()
        return parameters(model)

    beside = second()  # while the first is open
    sharded_model = sharded()
    gradwire.torch.register_fsdp(sharded_model, "topk:10%", timeout=30.0)
    _plain_steps(sharded_model, world.rank)
    exchange.close()
    after = second()  # and when it is closed
    del first, exchange, scaler  # the scaler ends
    assert torch.equal(beside, after) and torch.equal(after, second())


def test_a_scaler_of_another_exchange_open_or_closed_is_passed_over(tmp_path):
    check(2, _experiments, tmp_path)


def _shared(world):
    first, scaler = ddp(), torch.amp.GradScaler("cpu", init_scale=256.0)
    gradwire.torch.register(first, "topk:10%", scaler=scaler)
    _scaled_step(first, scaler, world.rank, 0)
    for made, register, read in ((ddp, gradwire.torch.register, parameters),
                                 (sharded, gradwire.torch.register_fsdp, weights)):
        model = made()
        exchange, optimizer = register(model, "topk:10%", timeout=30.0), sgd(model)
        before = read(model)
        for step in range(2):
            with pytest.raises(gradwire.InvalidArgument, match="given to another exchange steps"):
                _scaled_step(model, scaler, world.rank, step, optimizer)
            scaler.update()
        assert torch.equal(before, read(model))
        exchange.close()
    _scaled_step(first, scaler, world.rank, 1)  # whose it is goes on


def test_a_scaler_of_another_exchange_that_steps_this_model_too_is_refused(tmp_path):
    check(2, _shared, tmp_path)
