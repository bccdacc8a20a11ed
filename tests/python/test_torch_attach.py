"""gradwire.torch.attach(): gradients of models without DistributedDataParallel."""

import re

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    import torch.distributed as dist
    from ddp_case import Net, assert_ranks_agree, ddp, flat, loss_of, parameters, sgd

    import gradwire
    import gradwire.torch

SPEC = "tensortopk:10%"


def _attached(model=None, spec=SPEC, **options):
    model = Net() if model is None else model
    return model, gradwire.torch.attach(model, spec, timeout=30.0, exempt_1d="never", **options)


def _as_ddp(world):
    model = Net()
    if world.rank == 1:
        torch.nn.init.zeros_(model.first.weight)  # rank 0's are taken
    model, exchange = _attached(model)
    other = ddp()
    gradwire.torch.register(other, SPEC, exempt_1d="never", timeout=30.0)
    optimizers = sgd(model), sgd(other)
    for step in range(10):
        for one, optimizer in zip((model, other), optimizers):
            optimizer.zero_grad()
            loss_of(one, world.rank, step).backward()
            if one is model:
                assert exchange.wait()
            optimizer.step()
    assert torch.equal(parameters(model), parameters(other))
    assert exchange.stats()["step"] == 9


def test_means_have_the_bits_of_the_hook(tmp_path):
    check(2, _as_ddp, tmp_path)


def _accumulates(world):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, exchange = _attached(model, "none", optimizer=optimizer)
    reference = Net()
    with exchange.no_sync():
        loss_of(model, world.rank, 0).backward()
    loss_of(model, world.rank, 1).backward()
    with pytest.raises(gradwire.InvalidArgument, match="gradients have left already"):
        with exchange.no_sync():
            pass
    optimizer.step()  # waits
    for rank in range(2):
        for part in range(2):
            (loss_of(reference, rank, part) / 2).backward()
    torch.testing.assert_close(flat(p.grad for p in model.parameters()),
                               flat(p.grad for p in reference.parameters()))
    optimizer.step()  # nothing is on its way: as torch's own
    exchange.detach()
    before = exchange.stats()["step"]
    loss_of(model, world.rank, 2).backward()
    assert exchange.stats()["step"] == before


def test_passes_add_up_and_the_optimizer_waits(tmp_path):
    check(2, _accumulates, tmp_path)


def _unused(world):
    model, exchange = _attached(unused="zero")
    own, given = torch.zeros(24, 24), torch.zeros(24, 24)
    alone = Net()
    for step in range(9):
        use = step % 3 == 0 or (step % 3 == 2 and world.rank == 0)
        model.zero_grad(), alone.zero_grad()
        loss_of(model, world.rank, step, use=use).backward()
        loss_of(alone, world.rank, step, use=use).backward()
        exchange.wait()
        own += 0 if alone.maybe.weight.grad is None else alone.maybe.weight.grad
        given += 0 if model.maybe.weight.grad is None else model.maybe.weight.grad
        assert_ranks_agree(torch.cat([flat([p.grad]) for p in model.parameters()
                                      if p.grad is not None]))
    owed = exchange.residual("maybe.weight").clone()
    dist.all_reduce(own), dist.all_reduce(owed)
    torch.testing.assert_close(given + owed / 2, own / 2, rtol=1e-4, atol=1e-6)
    strict, exchange = _attached()
    loss_of(strict, world.rank, 0, use=False).backward()
    with pytest.raises(gradwire.InvalidArgument, match=re.escape("'maybe.weight'")):
        exchange.wait()


def test_unused_parameters(tmp_path):
    check(2, _unused, tmp_path)


def _channels_last(world):
    def make():
        torch.manual_seed(3)
        return torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)

    images = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(world.rank))
    model, exchange = _attached(make(), "none")
    (model(images.to(memory_format=torch.channels_last)) ** 2).sum().backward()
    exchange.wait()
    plain = make()
    (plain(images.to(memory_format=torch.channels_last)) ** 2).sum().backward()
    mean = plain.weight.grad.contiguous()
    dist.all_reduce(mean)
    torch.testing.assert_close(model.weight.grad, mean / 2)


def test_gradients_in_another_memory_order(tmp_path):
    check(2, _channels_last, tmp_path)


def _fails(world):
    model, exchange = _attached()
    with pytest.raises(gradwire.InvalidArgument, match="no gradient has appeared"):
        exchange.wait()
    loss = loss_of(model, world.rank, 0)
    (loss * (float("inf") if world.rank == 0 else 1)).backward()
    with pytest.raises(gradwire.NonFiniteGradient, match="rank 0's"):
        exchange.wait()
    assert all(p.grad.isnan().all() for p in model.parameters())
    model.zero_grad()
    loss_of(model, world.rank, 1).backward()
    assert exchange.wait()
    loss_of(model, world.rank, 2).backward()
    with pytest.raises(gradwire.InvalidArgument, match="already ready"):
        loss_of(model, world.rank, 3).backward()


def test_bad_steps_are_refused(tmp_path):
    check(2, _fails, tmp_path)


def _elsewhere(world):
    parts = Net()
    parts.last.to("meta")
    for model, text in ((parts, "lie on cpu and meta, must be on one device"),
                        (Net().to("meta"), "is on meta, must be on the CPU"),
                        (Net().requires_grad_(False), "none requires a gradient")):
        with pytest.raises(gradwire.InvalidArgument, match=text):
            gradwire.torch.attach(model, "none")


def test_models_that_lie_elsewhere_are_refused(tmp_path):
    check(2, _elsewhere, tmp_path)


def _alone(world):
    model, exchange = _attached()
    plain = Net()
    for one in (model, plain):
        loss_of(one, 0, 0).backward()
    assert exchange.wait()
    assert torch.equal(flat(p.grad for p in model.parameters()),
                       flat(p.grad for p in plain.parameters()))


def test_one_rank_keeps_its_gradients(tmp_path):
    check(1, _alone, tmp_path)
