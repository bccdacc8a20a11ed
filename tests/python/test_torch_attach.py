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


def _left_out_at_last(world):
    """The last pass does not reach a layer that one inside no_sync() has reached: on all ranks, or on one."""
    for unused in ("zero", "error"):
        for rank_with_both in (None, 1):
            model, exchange = _attached(spec="none", unused=unused)
            reference = Net()
            with exchange.no_sync():
                loss_of(model, world.rank, 0).backward()
            loss_of(model, world.rank, 1, use=world.rank == rank_with_both).backward()
            exchange.wait()
            for rank in range(2):
                for part, use in ((0, True), (1, rank == rank_with_both)):
                    (loss_of(reference, rank, part, use=use) / 2).backward()
            torch.testing.assert_close(flat(p.grad for p in model.parameters()),
                                       flat(p.grad for p in reference.parameters()))
            exchange.close()


def test_what_passes_inside_no_sync_reached_is_exchanged_where_the_last_does_not_reach_it(tmp_path):
    check(2, _left_out_at_last, tmp_path)


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
    with pytest.raises(gradwire.InvalidArgument, match=r"has left already; expected wait\(\)"):
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


def _closures(world):
    model, plain = Net(), ddp()
    optimizers = sgd(model), sgd(plain)
    _, exchange = _attached(model, "none", optimizer=optimizers[0])
    for step in range(4):
        for one, optimizer in zip((model, plain), optimizers):
            def closure(one=one, optimizer=optimizer, step=step):
                optimizer.zero_grad()
                loss = loss_of(one, world.rank, step)
                loss.backward()
                return loss
            if step % 2:
                optimizer.step(closure=closure)
            else:
                optimizer.step(closure)
    assert torch.equal(parameters(model), parameters(plain))


def test_the_optimizer_waits_behind_its_closure(tmp_path):
    check(2, _closures, tmp_path)


def _changed_before_wait(world):
    model, exchange = _attached()
    loss_of(model, world.rank, 0).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(gradwire.InvalidArgument, match="'first.weight' was changed or removed|"
                                                       "was changed or removed behind backward"):
        exchange.wait()
    model, exchange = _attached()
    loss_of(model, world.rank, 0).backward()
    model.zero_grad()
    with pytest.raises(gradwire.InvalidArgument, match="was changed or removed behind backward"):
        exchange.wait()
    scaler = torch.amp.GradScaler("cpu")
    for arguments, text in ((dict(optimizer=sgd(model), scaler=scaler), "together with a scaler"),
                            (dict(foo=1), "foo: is no argument here"),
                            (dict(spec=5), "spec: is a int")):
        with pytest.raises(gradwire.InvalidArgument, match=text):
            gradwire.torch.attach(Net(), arguments.pop("spec", "none"), **arguments)
    with pytest.raises(gradwire.InvalidArgument, match="an exchange has its gradients already"):
        _attached(model)
    with pytest.raises(gradwire.InvalidArgument, match="there is gradwire.torch.register"):
        gradwire.torch.attach(ddp(), "none")
    shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    plan = gradwire.make_plan(shapes, "none")
    own = gradwire.Reducer(plan, gradwire.make_transport("in_process"))
    exchanging = (lambda: gradwire.torch.DiLoCo(model.parameters(), own, every=2),
                  lambda: gradwire.torch.OneBitAdam(model.parameters(), own, plan, freeze_step=9),
                  lambda: gradwire.torch.OneBitLAMB(model.parameters(), own, plan, freeze_step=9))
    for make in exchanging:
        with pytest.raises(gradwire.InvalidArgument, match="'first.weight': an exchange has its gradients"):
            make()
    exchange.close()
    for make in exchanging:
        make()
    _attached(model)  # what is closed has none


def test_gradients_changed_before_they_were_exchanged_are_refused(tmp_path):
    check(2, _changed_before_wait, tmp_path)


class _Stop(Exception):
    pass


def _abandons(world):
    model, exchange = _attached()
    loss_of(model, world.rank, 0).backward()
    exchange.wait()
    residual = exchange.residual("maybe.weight")

    def stop(_):
        raise _Stop

    handle = model.maybe.weight.register_hook(stop)
    with pytest.raises(_Stop):
        loss_of(model, world.rank, 1).backward()
    handle.remove()
    exchange.abandon()
    assert torch.equal(exchange.residual("maybe.weight"), residual)
    model.zero_grad()
    loss_of(model, world.rank, 2).backward()
    assert exchange.wait()
    assert_ranks_agree(flat(p.grad for p in model.parameters()))


def test_a_backward_that_raised_is_abandoned(tmp_path):
    check(2, _abandons, tmp_path)


def _one_lacks_a_gradient(world):
    model, exchange = _attached()
    loss_of(model, world.rank, 0, use=world.rank == 0).backward()
    error = gradwire.InvalidArgument if world.rank == 1 else gradwire.TransportError
    with pytest.raises(error):
        exchange.wait()
    dist.barrier()  # both are there all the time


def test_peers_hear_of_a_missing_gradient_at_once(tmp_path):
    check(2, _one_lacks_a_gradient, tmp_path, deadline=25)  # of a timeout of 30 s


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
