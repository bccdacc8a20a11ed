"""DDP's buckets are used where they lie: gradients are moved in them at most, and a plan follows them from
the first step on."""

import random

import numpy as np
import pytest
import rank_processes
from rank_processes import needs_torch, run_ranks

import gradwire
from gradwire import _core

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    from ddp_case import assert_ranks_agree, ddp, loss_of, parameters, sgd, train

    import gradwire.torch


def check(world_size, body, tmp_path):
    ends = run_ranks("torch_world", world_size, body, folder=tmp_path, deadline=120.0)
    return [end.result() for end in ends]


def moved(dtype, numels, order):
    """The runs after move_elements(), and as NumPy puts them together."""
    values = np.arange(sum(numels)).astype(dtype)
    runs = np.split(values.copy(), np.cumsum(numels)[:-1])
    _core.move_elements(values.ctypes.data, values.itemsize, numels, order)
    return values, np.concatenate([runs[i] for i in order])


@pytest.mark.parametrize("dtype", ["int16", "int32", "int64"])
def test_runs_of_elements_change_their_order_where_they_lie(dtype):
    seed = 20261127
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(300):
        numels = [draw.choice([0, 1, 3, 40, 200]) for _ in range(draw.randint(1, 9))]
        order = list(range(len(numels)))
        draw.shuffle(order)
        own, expected = moved(dtype, numels, order)
        assert np.array_equal(own, expected), (numels, order)


@pytest.mark.parametrize("order", [[0], [0, 0], [0, 2], [0, 1, 2]])
def test_what_is_no_permutation_is_refused_and_moves_nothing(order):
    values = np.arange(5, dtype=np.int32)
    with pytest.raises(gradwire.InvalidArgument, match="order: "):
        _core.move_elements(values.ctypes.data, 4, [2, 3], order)
    assert values.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(gradwire.InvalidArgument, match="address: is 0"):
        _core.move_elements(0, 4, [2, 3], [1, 0])


def _nothing_is_copied(world):
    ways = [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"bucket_cap_mb": 25}]
    for spec, exempt in (("none", "auto"), ("int8", "never"), ("int8", "auto"), ("topk:5%,int4", "auto")):
        for way in ways:
            model = ddp(**way)
            exchange = gradwire.torch.register(
                model, spec, exempt_1d=exempt, timeout=30.0, bucket_bytes=2000
            )
            optimizer = sgd(model)
            for step in range(4):
                buckets = len(exchange.plan.layout)  # behind the step it may be the next one's
                train(model, optimizer, step, step + 1)
                rows = [[part.bucket for part in row.slices] for row in exchange._mapped.values()]
                used = [bucket for row in rows for bucket in row]
                assert all(rows), (spec, way, step, rows)
                assert sorted(used) == list(range(buckets)), (spec, way, step, rows)
            assert_ranks_agree(parameters(model))
            exchange.close()


def test_no_gradient_is_copied_in_any_step(tmp_path):
    check(2, _nothing_is_copied, tmp_path)


def _a_ddp_that_has_trained(world):
    model = ddp()
    optimizer = sgd(model)
    train(model, optimizer, 0, 2)  # alone: its buckets are those of all later steps
    exchange = gradwire.torch.register(model, "int8", exempt_1d="never", timeout=30.0, bucket_bytes=2000)
    layout = exchange.plan.layout
    for step in range(2, 5):
        train(model, optimizer, step, step + 1)
        assert exchange.plan.layout == layout, step
        assert all(row.slices for row in exchange._mapped.values()), step
    exchange.close()


def test_the_plan_of_a_ddp_that_has_trained_before_never_changes(tmp_path):
    check(2, _a_ddp_that_has_trained, tmp_path)


def _freezes(world):
    """A layer is frozen between DDP and register(), on rank 1 or on all, and thaws before the first step."""
    for ranks in ((1,), (0, 1)):
        for way in ({}, {"static_graph": True}):
            model, plain = ddp(**way), ddp(**way)
            layer = list(model.parameters())[0]
            layer.requires_grad_(world.rank not in ranks)
            exchange = gradwire.torch.register(model, "none", timeout=30.0)
            layer.requires_grad_(True)
            for each in (model, plain):
                train(each, sgd(each), 0, 4)
            assert torch.equal(parameters(model), parameters(plain)), (ranks, way)
            assert all(row.slices for row in exchange._mapped.values()), (ranks, way)
            exchange.close()


def test_a_layer_that_is_frozen_when_the_exchange_is_made_trains_later(tmp_path):
    check(2, _freezes, tmp_path)


def _closed_early(world):
    model = ddp()
    gradwire.torch.register(model, "int8", timeout=30.0).close()
    for parameter in model.parameters():
        assert not parameter._post_accumulate_grad_hooks


def test_close_leaves_no_hook_behind(tmp_path):
    check(2, _closed_early, tmp_path)


def _biases_move(world):
    """Biases are a group of their own in each bucket."""
    model, plain = ddp(), ddp()
    rules = [{"name": "*.bias", "spec": "none"}]
    exchange = gradwire.torch.register(model, "bf16", rules=rules, timeout=30.0)
    assert any(len(bucket["groups"]) == 2 for bucket in exchange.plan.layout)
    for step in range(4):
        for each in (model, plain):
            each.zero_grad()
            loss_of(each, world.rank, step).backward()
        assert any(part.is_moved() for row in exchange._mapped.values() for part in row.slices)
        for (name, own), wanted in zip(model.named_parameters(), plain.parameters()):
            # Two roundings to bf16 of what may cancel out, and none of biases.
            near = 1e-6 if own.ndim == 1 else 2.0**-7 * float(wanted.grad.abs().max())
            torch.testing.assert_close(own.grad, wanted.grad, rtol=0, atol=near, msg=f"{step} {name}")
        plain.load_state_dict(model.state_dict())
    exchange.close()


def test_gradients_that_move_in_their_bucket_come_back_to_their_places(tmp_path):
    check(2, _biases_move, tmp_path)
