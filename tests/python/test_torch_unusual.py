"""gradwire.torch with parameters that are frozen, whose gradients are sparse or of a wide dtype, and with
copies of models."""

import copy
import io
import logging

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    import torch.distributed as dist
    from ddp_case import (
        Net,
        assert_ranks_agree,
        batch,
        ddp,
        flat,
        loss_of,
        parameters,
        registered,
        sgd,
        train,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    import gradwire
    import gradwire.torch


class Said(logging.Handler):
    """What gradwire has said since."""

    def __init__(self):
        super().__init__()
        self.texts = []
        logging.getLogger("gradwire").addHandler(self)

    def emit(self, record):
        self.texts.append(record.getMessage())


def _unfreezes(world):
    plain, hooked = ddp(find_unused_parameters=True), ddp(find_unused_parameters=True)
    for model in (plain, hooked):
        model.module.maybe.requires_grad_(False)
    exchange = gradwire.torch.register(hooked, "none", timeout=30.0)
    assert "maybe.weight" in exchange.plan.parameters  # DDP has it in its buckets
    optimizers = [sgd(model) for model in (plain, hooked)]
    for model, optimizer in zip((plain, hooked), optimizers):
        train(model, optimizer, 0, 3)
        model.module.maybe.requires_grad_(True)
        train(model, optimizer, 3, 6)
    assert torch.equal(parameters(plain), parameters(hooked))
    assert not torch.equal(hooked.module.maybe.weight, Net().maybe.weight)
    exchange.close()
    # DDP itself has nothing of what was frozen before it was made: such a rank would train alone.
    inside = Net()
    inside.maybe.weight.requires_grad_(False)
    model = ddp(inside)
    gradwire.torch.register(model, "none", timeout=30.0)
    train(model, sgd(model), 0, 2)
    inside.maybe.weight.requires_grad_(True)
    with pytest.raises(gradwire.InvalidArgument, match="'maybe.weight': requires a gradient now, and did not "
                       "when DistributedDataParallel was made"):
        loss_of(model, world.rank, 2).backward()
    dist.barrier()
    alone = Net()
    alone.last.bias.requires_grad_(False)
    attached = gradwire.torch.attach(alone, "none", timeout=30.0)
    loss_of(alone, world.rank, 0).backward()
    attached.wait()
    alone.last.bias.requires_grad_(True)
    with pytest.raises(gradwire.InvalidArgument, match="'last.bias': requires .* when attach.. was called"):
        loss_of(alone, world.rank, 1).backward()


def test_a_layer_that_was_frozen_trains_with_the_others_or_is_named(tmp_path):
    check(2, _unfreezes, tmp_path)


class Words(torch.nn.Module if rank_processes.HAS_TORCH else object):
    """A table, whose gradients are sparse by the layer's own word or by that of a function."""

    def __init__(self, layer=True):
        super().__init__()
        self.layer = layer
        self.table = torch.nn.Embedding(10, 4, sparse=layer)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        if self.layer:
            return self.head(self.table(x))
        return self.head(torch.nn.functional.embedding(x, self.table.weight, sparse=True))


def _sparse(world):
    words = "'table.weight': its Embedding has sparse=True, .*torch.sparse_coo, must be dense"
    with pytest.raises(gradwire.InvalidArgument, match=words):
        gradwire.torch.register(DistributedDataParallel(Words()), "none")
    with pytest.raises(gradwire.InvalidArgument, match=words):
        gradwire.torch.attach(Words(), "none")
    bag = torch.nn.EmbeddingBag(10, 4, sparse=True)
    with pytest.raises(gradwire.InvalidArgument, match="'weight': its EmbeddingBag has sparse=True"):
        gradwire.torch.attach(bag, "none")
    wrapped = DistributedDataParallel(Words())
    wrapped.module.table.weight.requires_grad_(False)  # which is behind DDP, and may end
    with pytest.raises(gradwire.InvalidArgument, match=words):
        gradwire.torch.register(wrapped, "none")
    frozen = Words()
    frozen.table.weight.requires_grad_(False)  # gives none
    exchange = gradwire.torch.attach(frozen, "none")
    frozen(torch.tensor([1, 2])).sum().backward()
    assert exchange.wait()
    hidden = Words(layer=False)
    exchange = gradwire.torch.attach(hidden, "none")
    with pytest.raises(gradwire.InvalidArgument, match="'table.weight': its gradient is torch.sparse_coo"):
        hidden(torch.tensor([1, 2])).sum().backward()


def test_sparse_gradients_are_refused_by_name_before_the_first_step(tmp_path):
    check(2, _sparse, tmp_path)


class Wide(torch.nn.Module if rank_processes.HAS_TORCH else object):
    """float32 with a layer of float64 and a complex parameter, which a batch may leave out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.narrow = torch.nn.Linear(16, 8)
        self.wide = torch.nn.Linear(8, 5, dtype=torch.float64)
        self.phase = torch.nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, x, use=True):
        out = self.wide(torch.tanh(self.narrow(x)).double())
        return (out * self.phase.abs() if use else out).to(torch.float32)


def _loss(called, rank, step, use=True):
    x, y = batch(rank, step)
    return torch.nn.functional.cross_entropy(called(x, use=use), y)


def _beside(world, wrap, spec, mean_of):
    """`mean_of(model, ...)` after each step beside means by hand."""
    said = Said()
    model, plain = Wide(), Wide()
    wrapped, exchange = wrap(model, spec)
    told = [text for text in said.texts if "travel dense in their own dtype" in text]
    assert len(told) == 1 and "'phase' (torch.complex64) and those of 2 others" in told[0]
    for step in range(4):
        model.zero_grad(), plain.zero_grad()
        for one in (wrapped, plain):
            _loss(one, world.rank, step, use=step % 2 == 0).backward()
        mean_of(exchange)
        for (name, p), q in zip(model.named_parameters(), plain.parameters()):
            mean = torch.zeros_like(q) if q.grad is None else q.grad / world.world_size
            dist.all_reduce(mean)
            if q.grad is None:
                assert p.grad is None or not p.grad.any()
            elif spec == "none" or p.dtype != torch.float32:
                torch.testing.assert_close(p.grad, mean, rtol=1e-6 if p.dtype == torch.float32 else 1e-12,
                                           atol=1e-9 if p.dtype == torch.float32 else 1e-15, msg=name)
    assert exchange.residual("wide.weight") is None
    return model, wrapped, exchange


def _wide(world):
    def registers(model, spec):
        # Small buckets, so that plans follow them.
        wrapped = ddp(model, find_unused_parameters=True, bucket_cap_mb=0.0002)
        return wrapped, gradwire.torch.register(wrapped, spec, timeout=30.0, exempt_1d="never")

    def attaches(model, spec):
        return model, gradwire.torch.attach(model, spec, timeout=30.0, exempt_1d="never", unused="zero")

    for wrap, mean_of in ((registers, lambda exchange: None), (attaches, lambda exchange: exchange.wait())):
        for spec in ("none", "tensortopk:10%"):
            model, wrapped, exchange = _beside(world, wrap, spec, mean_of)
            state, kept = exchange.state_dict(), exchange.residual("narrow.weight")
            # A gradient of float64 that is not finite leaves out the step of all.
            if world.rank == 1:
                bad = model.wide.bias.register_hook(lambda grad: grad * float("inf"))
            model.zero_grad()
            with pytest.raises(gradwire.NonFiniteGradient, match="rank 1's gradient holds NaN"):
                _loss(wrapped, world.rank, 9).backward()
                mean_of(exchange)
            if world.rank == 1:
                bad.remove()
            assert all(p.grad is None or p.grad.isnan().all() for p in model.parameters())
            assert (kept is None) == (spec == "none")
            assert kept is None or torch.equal(exchange.residual("narrow.weight"), kept)
            exchange.load_state_dict(state)
            model.zero_grad()
            _loss(wrapped, world.rank, 10).backward()
            mean_of(exchange)
            assert_ranks_agree(flat(p.grad.abs() for p in model.parameters()))
            assert all(p.grad.isfinite().all() for p in model.parameters())
            exchange.close()
    only = ddp(Net(torch.float64))
    exchange = gradwire.torch.register(only, "topk:1%", timeout=30.0)
    plain = ddp(Net(torch.float64))
    for model in (only, plain):
        train(model, sgd(model), 0, 5)
    assert torch.equal(torch.cat([p.flatten() for p in only.parameters()]),
                       torch.cat([p.flatten() for p in plain.parameters()]))


def test_gradients_of_other_dtypes_travel_dense_in_their_own(tmp_path):
    check(2, _wide, tmp_path)


def _copies(world):
    model, exchange = registered("tensortopk:10%")
    optimizer = sgd(model)
    train(model, optimizer, 0, 3)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    plain = DistributedDataParallel(copy.deepcopy(model.module))
    for copied in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        said = Said()
        assert torch.equal(parameters(copied), parameters(model))
        copied.eval()
        with torch.no_grad():
            copied(torch.zeros(1, 16))
        assert said.texts == []  # which is no training
        copied.train()
        for step in (3, 4):
            for one in (copied, plain):
                one.zero_grad()
                loss_of(one, world.rank, step).backward()
            # By DDP alone.
            assert torch.equal(flat(p.grad for p in copied.parameters()),
                               flat(p.grad for p in plain.parameters()))
        assert len(said.texts) == 1 and "is a copy of one with an exchange" in said.texts[0]
        again = gradwire.torch.register(copied, "tensortopk:10%", exempt_1d="never", timeout=30.0)
        copied.zero_grad()
        loss_of(copied, world.rank, 5).backward()
        assert again.residual("maybe.weight").any() and len(said.texts) == 1
        assert exchange.stats()["step"] == 2
        again.close()
    train(model, optimizer, 3, 5)
    assert_ranks_agree(parameters(model))
    with pytest.raises(gradwire.InvalidArgument, match="an exchange cannot be pickled"):
        torch.save(exchange, io.BytesIO())


def test_a_copy_of_a_model_has_no_exchange_and_says_so(tmp_path):
    check(2, _copies, tmp_path)


class Layers(torch.nn.Module if rank_processes.HAS_TORCH else object):
    """A parameter group of float64 between two of float32."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first = torch.nn.Linear(16, 8)
        self.wide = torch.nn.Linear(8, 8, dtype=torch.float64)
        self.last = torch.nn.Linear(8, 5)

    def forward(self, x):
        return self.last(torch.tanh(self.wide(torch.tanh(self.first(x)).double())).float())


def _sharded_layers():
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Layers()
    for part in (model.first, model.wide, model.last):
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _fsdp(world):
    plain, said = _sharded_layers(), Said()
    model = _sharded_layers()
    exchange = gradwire.torch.register_fsdp(model, "tensortopk:10%", timeout=30.0)
    assert [text for text in said.texts if "gradients of 'wide' travel dense in torch.float64" in text]
    for step in range(3):
        for one in (model, plain):
            one.zero_grad()
            loss_of(one, world.rank, step).backward()
        for found, expected in zip(model.wide.parameters(), plain.wide.parameters()):
            assert torch.equal(found.grad.to_local(), expected.grad.to_local())
        assert exchange.step == step + 1
    assert exchange.residual("wide.weight") is None
    kept = exchange.residual("first.weight")
    assert kept.any()
    state = exchange.state_dict()
    if world.rank == 1:
        model.wide.register_full_backward_pre_hook(lambda _, grads: (grads[0] * float("nan"),))
    with pytest.raises(gradwire.NonFiniteGradient, match="rank 1's gradients of 'wide' hold NaN"):
        loss_of(model, world.rank, 3).backward()
    assert torch.equal(exchange.residual("first.weight"), kept) and exchange.step == 3
    exchange.load_state_dict(state)
    exchange.close()
    model = Net()
    model.maybe.bias.requires_grad_(False)
    model = fully_shard(model, mesh=init_device_mesh("cpu", (world.world_size,)))
    gradwire.torch.register_fsdp(model, "none", timeout=30.0)
    loss_of(model, world.rank, 0).backward()
    model.maybe.bias.requires_grad_(True)
    with pytest.raises(gradwire.InvalidArgument, match="'maybe.bias': requires .* when register_fsdp.. was"):
        loss_of(model, world.rank, 1).backward()
    words = fully_shard(Words(), mesh=init_device_mesh("cpu", (world.world_size,)))
    with pytest.raises(gradwire.InvalidArgument, match="'table.weight': its Embedding has sparse=True"):
        gradwire.torch.register_fsdp(words, "none")


def test_fsdp_has_the_same_of_its_groups(tmp_path):
    check(2, _fsdp, tmp_path)


def _local_steps(world):
    with gradwire.torch.transport() as transport:
        torch.manual_seed(1)
        model = Words()
        plan = gradwire.make_plan([(n, tuple(p.shape)) for n, p in model.named_parameters()], "none")
        outer = gradwire.torch.DiLoCo(model.parameters(), gradwire.Reducer(plan, transport), every=2)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        before = model.table.weight.detach().clone()
        for step in range(4):
            inner.zero_grad()
            model(torch.tensor([world.rank, step])).sum().backward()
            assert model.table.weight.grad.layout == torch.sparse_coo
            inner.step(), outer.step()
        assert_ranks_agree(parameters(model))
        assert not torch.equal(before[1], model.table.weight[1])


def test_local_steps_go_with_sparse_gradients(tmp_path):
    check(2, _local_steps, tmp_path)
