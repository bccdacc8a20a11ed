"""gradwire.torch.register_fsdp(): what gradients under fully_shard become, on ranks that are processes."""

import io
import time
from datetime import timedelta

import pytest
import rank_processes
from rank_processes import needs_torch
from sampling import sample
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    import torch.distributed as dist
    from ddp_case import assert_ranks_agree, loss_of
    from fsdp_case import (
        gradients,
        local_gradients,
        loss_far_ahead,
        registered,
        sharded,
        step_on,
        train,
        weights,
    )
    from torch.distributed.fsdp import MixedPrecisionPolicy

    import gradwire
    import gradwire.torch

SPEC = "topk:10%"


def _bit_equal_to_plain(world):
    plain, (model, exchange) = sharded(whole=False), registered("none")
    train(plain, 0, 50), train(model, 0, 50)
    assert torch.equal(weights(plain), weights(model))
    assert exchange.step == 50 and exchange.stats()["step"] == 49
    assert exchange.residual("first.weight") is None


def test_none_on_two_ranks_has_the_bits_of_plain_fsdp(tmp_path):
    check(2, _bit_equal_to_plain, tmp_path)


def _near_plain(world):
    plain, (model, _) = sharded(whole=True), registered("none", whole=True)
    train(plain, 0, 10), train(model, 0, 10)
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-4, atol=1e-6)


def test_none_on_three_ranks_is_as_near_to_plain_fsdp_as_rounding_is(tmp_path):
    check(3, _near_plain, tmp_path)


def _reduced_in(dtype):
    policy = MixedPrecisionPolicy(reduce_dtype=dtype)
    plain = sharded(whole=False, mp_policy=policy)
    model, _ = registered("none", fsdp={"mp_policy": policy})
    train(plain, 0, 10), train(model, 0, 10)
    assert torch.equal(weights(plain), weights(model))
    model, exchange = registered(SPEC, fsdp={"mp_policy": policy})
    before = loss_far_ahead(model)
    train(model, 0, 60)
    assert loss_far_ahead(model) < 0.8 * before


def _in_bfloat16(world):
    _reduced_in(torch.bfloat16)


def _in_float16(world):
    _reduced_in(torch.float16)


@pytest.mark.parametrize("body", [_in_bfloat16, _in_float16])
def test_gradients_reduced_in_16_bits(tmp_path, body):
    check(2, body, tmp_path)


def _keeps_the_law(world):
    model, exchange = registered(SPEC)
    names = [name for name, _ in model.named_parameters()]
    wanted = dict.fromkeys(names, 0.0)
    delivered = dict.fromkeys(names, 0.0)
    for step in range(5):
        model.zero_grad()
        step_on(model, step)
        for name, gradient in gradients(model).items():
            delivered[name] = delivered[name] + gradient.double()
        for rank in range(world.world_size):
            for name, gradient in local_gradients(rank, step).items():
                wanted[name] = wanted[name] + gradient.double()
    sent_something = kept_something = False
    for name in names:
        owed = exchange.residual(name).double()
        sent_something |= bool(delivered[name].any())
        kept_something |= bool(owed.any())
        dist.all_reduce(owed)
        torch.testing.assert_close(
            delivered[name] * world.world_size + owed, wanted[name], rtol=1e-4, atol=1e-5)
    assert sent_something and kept_something


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_arrived_and_what_is_owed_is_what_there_was(tmp_path, ranks):
    check(ranks, _keeps_the_law, tmp_path)


def _with_hook(model, step, layer, seen):
    hook = layer.register_forward_hook(lambda module, inputs, output: output.register_hook(seen) and None)
    loss = loss_of(model, dist.get_rank(), step)
    hook.remove()
    model.zero_grad()
    loss.backward()


def _goes_on_beside_the_exchange(world):
    model, exchange = registered(SPEC, fsdp={"reshard_after_forward": False})
    calm, _ = registered(SPEC)
    store = dist.distributed_c10d._get_default_store()
    # Rank 1 has not reduced anything when rank 0's backward is past a group that it has.
    if world.rank == 0:
        _with_hook(model, 0, model.first, lambda gradient: store.set("went on", "yes"))
    else:
        _with_hook(model, 0, model.last, lambda gradient: store.wait(["went on"], timedelta(seconds=20)))
    step_on(calm, 0)
    for name, gradient in gradients(calm).items():
        assert torch.equal(gradients(model)[name], gradient)
    assert exchange.step == 1


def _exchanges_before_backward_ends(world):
    model, exchange = registered(SPEC, fsdp={"reshard_after_forward": False})
    arrived = []

    def comes_before_the_first_layer(gradient):
        until = time.monotonic() + 20
        while not exchange.transport.counters()["bytes_received"] > before and time.monotonic() < until:
            time.sleep(0.001)
        arrived.append(exchange.transport.counters()["bytes_received"] - before)

    before = exchange.transport.counters()["bytes_received"]
    _with_hook(model, 0, model.first, comes_before_the_first_layer)
    # That of `maybe`; those of the first layer and the root came behind it.
    assert 0 < arrived[0] < exchange.stats()["bytes_received"]


def test_backward_goes_on_beside_the_exchange(tmp_path):
    check(2, _goes_on_beside_the_exchange, tmp_path)


def test_what_is_reduced_first_arrives_before_backward_ends(tmp_path):
    check(2, _exchanges_before_backward_ends, tmp_path)


def _over_torch(world):
    models = [registered("topk:10%,int4", carrier=carrier)[0] for carrier in ("torch", "auto")]
    for model in models:
        train(model, 0, 10)
    assert torch.equal(weights(models[0]), weights(models[1]))


def test_collectives_of_torch_carry_the_slices_as_well(tmp_path):
    check(2, _over_torch, tmp_path)


def _hooks(world):
    model, _ = registered(SPEC)
    calm, _ = registered(SPEC)
    seen = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: seen.update({name: p.grad.to_local().clone()}))
    for each in (model, calm):
        for step in range(2):  # the second adds to what is there
            step_on(each, step)
    for name, parameter in calm.named_parameters():
        assert torch.equal(seen[name], parameter.grad.to_local()), name


def test_hooks_and_sums_find_gradients_that_have_come(tmp_path):
    check(2, _hooks, tmp_path)


def _sends_less(world):
    model, exchange = registered("topk:1%,int4")
    train(model, 0, 3)
    stats = exchange.stats()
    elements = sum(p.numel() for p in model.parameters())
    assert stats["dense_bytes"] >= 4 * elements
    assert 0 < stats["bytes_sent"] < stats["dense_bytes"] / 2
    assert stats["committed"] == 1 and stats["exposed_us"] > 0
    written = {}

    class Writer:
        def add_scalar(self, key, value, at):
            written[key] = (value, at)

    exchange.write_to(Writer())
    assert written["gradwire/bytes_sent"] == (stats["bytes_sent"], 2)


def test_stats_say_what_was_sent(tmp_path):
    check(2, _sends_less, tmp_path)


def _rows_train(world):
    refused = []
    rows = sample(gradwire.compressors(), 6)
    for row in rows:
        try:
            model, exchange = registered(row.example, whole=True)
        except gradwire.InvalidArgument as error:
            refused.append(row.name)
            assert "must be one whose payloads are decoded by one rank alone" in str(error)
            continue
        before = loss_far_ahead(model)
        train(model, 0, 60, lr=0.02)
        assert loss_far_ahead(model) < before, row.name
        assert_ranks_agree(weights(model), row.name)
        exchange.close()
    assert refused == [row.name for row in rows if row.name == "powersgd"]


@pytest.mark.soak
def test_every_compressor_but_those_that_need_all_payloads_trains(tmp_path):
    check(2, _rows_train, tmp_path)


def _converges(world):
    plain, (model, _) = sharded(whole=False), registered("topk:5%,int8")
    start = loss_far_ahead(model)
    train(plain, 0, 150), train(model, 0, 150)
    end = [loss_far_ahead(each) for each in (plain, model)]
    assert end[0] < 0.6 * start and end[1] < 0.7 * start, (start, end)
    assert_ranks_agree(weights(model))


def test_a_compressed_run_comes_near_the_plain_one(tmp_path):
    check(2, _converges, tmp_path)


def _accumulates(world):
    plain, (model, exchange) = sharded(whole=False), registered("none")
    for each in (plain, model):
        for part in range(3):
            each.set_requires_gradient_sync(part == 2)
            step_on(each, part)
    for name, gradient in gradients(plain).items():
        assert torch.equal(gradients(model)[name], gradient)
    assert exchange.step == 1
    model.set_force_sum_reduction_for_comms(True)
    model.zero_grad(), plain.zero_grad()
    for each in (plain, model):
        step_on(each, 4)
    for name, gradient in gradients(plain).items():
        assert torch.equal(gradients(model)[name], gradient)


def test_passes_without_sync_add_up_and_sums_are_divided_by_fsdp(tmp_path):
    check(2, _accumulates, tmp_path)


def _unused(world):
    model, exchange = registered(SPEC, whole=False)
    for part in (model.first, model.maybe, model):
        part.set_reduce_scatter_unused_params(True)
    for step in range(6):
        model.zero_grad()
        model(torch.zeros(1, 16), use=True)  # its parameters are there
        step_on(model, step, use=step % 2 == 0)
    assert exchange.step == 6


def test_parameters_that_a_backward_does_not_reach(tmp_path):
    check(2, _unused, tmp_path)


def _goes_on(world):
    model, exchange = registered("topk:10%,int4")
    train(model, 0, 3)
    file = io.BytesIO()
    torch.save(exchange.state_dict(), file)
    kept = {name: p.detach().full_tensor().clone() for name, p in model.named_parameters()}
    train(model, 3, 6)
    again, other = registered("topk:10%,int4")
    with torch.no_grad():
        for name, p in again.named_parameters():
            rows = torch.chunk(kept[name], world.world_size)
            p.to_local().copy_(rows[world.rank])
    state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    other.load_state_dict(state)
    train(again, 3, 6)
    assert torch.equal(weights(model), weights(again))
    for name in kept:
        assert torch.equal(exchange.residual(name), other.residual(name))
    # What one rank cannot use, none does.
    for broken, text in (
        ({**state, "spec": "int8"} if world.rank == 0 else state, "spec"),
        ({**state, "rank": 0}, "rank"),
        ({k: v for k, v in state.items() if k != "slices"}, "slices"),
    ):
        before = other.residual("first.weight")
        with pytest.raises(gradwire.InvalidArgument, match=text):
            other.load_state_dict(broken)
        assert torch.equal(before, other.residual("first.weight")) and other.step == 6


def test_a_loaded_state_goes_on_bit_for_bit(tmp_path):
    check(2, _goes_on, tmp_path)
