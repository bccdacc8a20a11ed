"""gradwire.torch.register(): what DDP's gradients become, on ranks that are processes."""

import pytest
import rank_processes
from rank_processes import needs_torch, run_ranks
from sampling import sample

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    import torch.distributed as dist
    from ddp_case import Net, assert_ranks_agree, ddp, flat, loss_of, parameters, registered, sgd, train

    import gradwire
    import gradwire.torch


def check(world_size, body, tmp_path, deadline=120.0, killed=()):
    return [end.result() if rank not in killed else end for rank, end in enumerate(
        run_ranks("torch_world", world_size, body, folder=tmp_path, deadline=deadline,
                  killed=killed))]


def _beside_ddp(world, steps):
    plain, hooked = ddp(), ddp()
    exchange = gradwire.torch.register(hooked, "none")
    for model in (plain, hooked):
        train(model, sgd(model), 0, steps)
    assert exchange.plan.buckets > 1
    assert exchange.stats()["step"] == steps - 1
    return plain, hooked


def _bit_equal_to_ddp(world):
    plain, hooked = _beside_ddp(world, 200)
    assert torch.equal(parameters(plain), parameters(hooked))


def test_none_on_two_ranks_has_the_bits_of_plain_ddp(tmp_path):
    check(2, _bit_equal_to_ddp, tmp_path)


def _near_ddp(world):
    plain, hooked = _beside_ddp(world, 10)
    difference = (parameters(plain) - parameters(hooked)).double().norm()
    assert difference <= 1e-6 * parameters(plain).double().norm()


def test_none_on_four_ranks_is_as_near_to_ddp_as_rounding_is(tmp_path):
    check(4, _near_ddp, tmp_path)


def _all_stay_equal(world):
    for row in sample(gradwire.compressors(), 6):
        model, exchange = registered(row.example, exempt_1d="auto")
        before = parameters(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        train(model, optimizer, 0, 200)
        assert_ranks_agree(parameters(model), row.name)
        assert exchange.stats()["step"] == 199
        assert not torch.equal(before, parameters(model))
        exchange.close()


@pytest.mark.soak
def test_ranks_stay_bit_identical_with_every_compressor(tmp_path):
    check(4, _all_stay_equal, tmp_path, deadline=600.0)


def _top_k_by_hand(world):
    """Per parameter, so that it does not matter in which buckets they travel."""
    model, exchange = registered("tensortopk:10%")
    reference = Net()
    kept = {name: [torch.zeros(p.numel()) for _ in range(world.world_size)]
            for name, p in reference.named_parameters()}
    for step in range(20):
        model.zero_grad()
        loss_of(model, world.rank, step).backward()
        means = {name: torch.zeros(p.numel()) for name, p in reference.named_parameters()}
        for rank in range(world.world_size):
            reference.zero_grad()
            loss_of(reference, rank, step).backward()
            for name, p in reference.named_parameters():
                x = p.grad.reshape(-1) + kept[name][rank]
                largest = x.abs().topk(-(-p.numel() // 10)).indices
                means[name][largest] += x[largest] / world.world_size
                kept[name][rank] = x.clone()
                kept[name][rank][largest] = 0
        for name, p in model.module.named_parameters():
            torch.testing.assert_close(p.grad.reshape(-1), means[name], rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(exchange.residual(name).reshape(-1), kept[name][world.rank],
                                       rtol=1e-5, atol=1e-7)


def test_gradients_are_those_of_top_k_with_error_feedback_by_hand(tmp_path):
    check(2, _top_k_by_hand, tmp_path)


def _accumulates(world):
    model, exchange = registered("none")
    reference = Net()
    for step in range(3):
        model.zero_grad(), reference.zero_grad()
        with model.no_sync():
            loss_of(model, world.rank, 2 * step).backward()
        loss_of(model, world.rank, 2 * step + 1).backward()
        for rank in range(world.world_size):
            for part in (2 * step, 2 * step + 1):
                (loss_of(reference, rank, part) / world.world_size).backward()
        torch.testing.assert_close(flat(p.grad for p in model.parameters()),
                                   flat(p.grad for p in reference.parameters()))
    assert exchange.stats()["step"] == 2  # one exchange for two passes


def test_no_sync_adds_passes_up_and_exchanges_once(tmp_path):
    check(2, _accumulates, tmp_path)


def _nothing_is_lost(world):
    # Whatever DDP does with parameters that no rank uses: what gradients were, .grad and residuals
    # have given.
    for bucket_view in (False, True):
        for set_to_none in (False, True):
            model = ddp(find_unused_parameters=True, gradient_as_bucket_view=bucket_view)
            exchange = gradwire.torch.register(model, "tensortopk:10%", exempt_1d="never")
            alone, given = Net(), torch.zeros(24, 24)
            own = torch.zeros(24, 24)
            for step in range(12):
                # All use it, none does, rank 0 alone does.
                use = step % 3 == 0 or (step % 3 == 2 and world.rank == 0)
                model.zero_grad(set_to_none=set_to_none), alone.zero_grad()
                loss_of(model, world.rank, step, use=use).backward()
                loss_of(alone, world.rank, step, use=use).backward()
                own += 0 if alone.maybe.weight.grad is None else alone.maybe.weight.grad
                if model.module.maybe.weight.grad is not None:
                    given += model.module.maybe.weight.grad
            owed = exchange.residual("maybe.weight") + 0
            total = own.clone()
            dist.all_reduce(total), dist.all_reduce(owed)
            torch.testing.assert_close(given + owed / 2, total / 2, rtol=1e-4, atol=1e-6)
            assert_ranks_agree(flat(p.grad for p in model.parameters()))
            exchange.close()


def test_what_ranks_owe_to_unused_parameters_is_not_lost(tmp_path):
    check(2, _nothing_is_lost, tmp_path)


def _ways_to_wrap(world):
    expected = None
    ways = [dict(), dict(static_graph=True), dict(gradient_as_bucket_view=True)]
    for number, way in enumerate([*ways, "torch.compile outside", "torch.compile inside"]):
        inside = Net()
        if way == "torch.compile inside":
            inside = torch.compile(inside, backend="aot_eager")
        # torch.compile splits graphs by buckets, of which it wants the first to be no larger.
        wrapped = ddp(inside, **(way if isinstance(way, dict) else {"bucket_cap_mb": 25}))
        exchange = gradwire.torch.register(wrapped, "tensortopk:10%", exempt_1d="never")
        assert exchange.plan.parameters[0] == "first.weight"
        model = wrapped
        if way == "torch.compile outside":
            model = torch.compile(wrapped, backend="aot_eager")
        train(model, sgd(model), 0, 6)
        expected = parameters(wrapped) if number == 0 else expected
        torch.testing.assert_close(parameters(wrapped), expected, msg=str(way))
        assert_ranks_agree(parameters(wrapped))
        exchange.close()


def test_static_graphs_bucket_views_and_compiled_models(tmp_path):
    check(2, _ways_to_wrap, tmp_path, deadline=200.0)


def _carriers(world):
    found = []
    for carrier in ("gloo", "torch"):
        model, exchange = registered("topk:5%,int4", carrier=carrier)
        assert exchange.transport.name == carrier
        train(model, sgd(model), 0, 8)
        found.append(parameters(model))
        exchange.close()
    assert torch.equal(*found)


def test_carriers_give_the_same_bits(tmp_path):
    check(2, _carriers, tmp_path)


def _narrow(world):
    for dtypes in ((torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)):
        inside = Net(torch.bfloat16)
        inside.last.to(dtypes[1])
        inside.forward = lambda x, n=inside, d=dtypes[1]: n.last(torch.tanh(n.first(x)).to(d))
        del inside.maybe
        model = ddp(inside)
        exchange = gradwire.torch.register(model, "none")
        plain = Net(torch.bfloat16)
        train(model, sgd(model), 0, 5)
        assert_ranks_agree(parameters(model), str(dtypes))
        assert not torch.equal(parameters(model)[:16], parameters(plain)[:16])
        loss_of(model, world.rank, 9).backward()
        mean = torch.zeros_like(model.module.first.weight, dtype=torch.float32)
        model.zero_grad()
        own = loss_of(model.module, world.rank, 10)
        own.backward()
        mean += model.module.first.weight.grad.float()
        dist.all_reduce(mean)
        model.zero_grad()
        loss_of(model, world.rank, 10).backward()
        torch.testing.assert_close(model.module.first.weight.grad.float(), mean / 2, rtol=1e-2,
                                   atol=1e-3)
        exchange.close()


def test_bfloat16_and_mixed_parameters(tmp_path):
    check(2, _narrow, tmp_path)


def _uneven(world):
    model, exchange = registered("none")
    plain = ddp()
    for one in (model, plain):
        optimizer = sgd(one)
        with torch.distributed.algorithms.join.Join([one]):
            for step in range(4 + 2 * world.rank):
                optimizer.zero_grad()
                loss_of(one, world.rank, step).backward()
                optimizer.step()
    torch.testing.assert_close(parameters(model), parameters(plain))
    assert exchange.stats()["step"] == 5


def test_a_rank_with_fewer_batches_joins_in_with_zeros(tmp_path):
    check(2, _uneven, tmp_path)
