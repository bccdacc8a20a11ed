"""Buckets that leave as ranks agree on what is ready: the means of NumPy, and of the plan's order."""

import random

import pytest
import rank_processes
from rank_processes import in_threads, needs_torch
from reducer_case import SHAPES, TopK, assert_same, gradients, means, plan_of, residuals
from test_torch_ddp import check

import gradwire

if rank_processes.HAS_TORCH:
    import torch
    from ddp_case import assert_ranks_agree, flat

    import gradwire.torch


def test_means_are_those_of_numpy_whatever_the_order_of_gradients():
    def body(transport):
        reducer = gradwire.Reducer(plan_of(), transport, launch_order="agreed", streams=2)
        for step in range(4):
            values = gradients(transport.rank, step)
            order = list(range(len(SHAPES)))
            random.Random(10 * step + transport.rank).shuffle(order)
            for p in order:
                reducer.gradient(p)[...] = values[p]
                reducer.grad_ready(p)
            assert reducer.wait()
        return means(reducer), residuals(reducer), reducer.trace()

    expected = TopK(3, plan_of())
    mean = expected.steps(0, 4)
    found = [end.result() for end in in_threads(3, body)]
    for rank, (of_rank, kept, trace) in enumerate(found):
        assert_same(of_rank, mean)
        assert_same(kept, expected.residuals[rank])
        for step in trace:  # 3 buckets: one byte, behind a header of 64, to two ranks
            assert step["rounds"] > 0
            assert step["round_bytes_sent"] == step["rounds"] * 2 * 65
            assert step["bytes_sent"] > step["round_bytes_sent"]
        assert [s["rounds"] for s in trace] == [s["rounds"] for s in found[0][2]]


def test_nothing_is_agreed_on_unless_asked_for():
    def body(transport):
        reducer = gradwire.Reducer(plan_of(), transport)
        for p in range(len(SHAPES)):
            reducer.gradient(p)[...] = 1
            reducer.grad_ready(p)
        assert reducer.wait()
        return reducer.trace()[-1]

    for end in in_threads(2, body):
        assert end.result()["rounds"] == end.result()["round_bytes_sent"] == 0


def test_other_words_and_other_orders_are_refused():
    with pytest.raises(gradwire.InvalidArgument, match="launch_order.*'ready'.*agreed"):
        gradwire.Reducer(plan_of(), gradwire.make_transport("in_process"), launch_order="ready")

    def body(transport):
        gradwire.Reducer(plan_of(), transport, launch_order="agreed" if transport.rank else "plan")

    for end in in_threads(2, body):
        assert end.error == "InvalidArgument"
        assert "'launch order: agreed' expected 'launch order: plan'" in end.message


def _experts():
    """Layers of which every batch takes two, in an order of its own."""
    torch.manual_seed(5)
    return torch.nn.ModuleList([torch.nn.Linear(12, 12) for _ in range(6)])


def _train(world, spec, launch_order, **options):
    experts = _experts()
    exchange = gradwire.torch.attach(
        experts, spec, timeout=30.0, unused="zero", launch_order=launch_order, bucket_bytes=600,
        exempt_1d="never", **options)
    optimizer = torch.optim.SGD(experts.parameters(), lr=0.1)
    for step in range(12):
        optimizer.zero_grad()
        x = torch.randn(4, 12, generator=torch.Generator().manual_seed(50 * step + world.rank))
        for e in random.Random(7 * step + world.rank).sample(range(6), 2):
            x = torch.tanh(experts[e](x))
        x.square().sum().backward()
        exchange.wait()
        optimizer.step()
    stats, trained = exchange.stats(), flat(experts.parameters())
    exchange.close()
    return stats, trained


def _as_the_plan(world):
    for spec, options in (("none", {}), ("topk:10%,int4", {"streams": 2})):
        stats, planned = _train(world, spec, "plan", **options)
        assert stats["rounds"] == 0
        stats, agreed = _train(world, spec, "agreed", **options)
        assert stats["rounds"] > 0
        assert torch.equal(agreed, planned)
        assert_ranks_agree(agreed, spec)
    stats, by_torch = _train(world, "topk:10%,int4", "agreed", carrier="torch")
    assert stats["rounds"] > 0 and torch.equal(by_torch, agreed)


@needs_torch
def test_experts_chosen_by_each_rank_learn_what_they_do_in_the_plans_order(tmp_path):
    check(3, _as_the_plan, tmp_path)


def _refused_by_ddp(world):
    from ddp_case import ddp

    with pytest.raises(gradwire.InvalidArgument, match="launch_order: is 'agreed'.*attach"):
        gradwire.torch.register(ddp(), "none", launch_order="agreed")


@needs_torch
def test_ddp_has_an_order_of_its_own(tmp_path):
    check(2, _refused_by_ddp, tmp_path)
