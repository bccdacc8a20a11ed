"""Parameters whose memory is not in C order (channels_last, channels_last_3d, transposed, with gaps): what
gradwire.torch makes of their gradients is what torch makes of them, and state is by element, not by place."""

import re

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    import torch.distributed as dist
    from memory_case import Given, exchanged, given, in_ddp, laid_out, residuals, sums

    import gradwire
    import gradwire.torch

SPECS = {"none": 0.0, "int8": 0.05, "topk:100%": 1e-6, "powersgd:2,rounds=2": 0.02}  # of the largest mean
WAYS = [{"gradient_as_bucket_view": view, **way} for view in (False, True)
        for way in ({}, {"find_unused_parameters": True}, {"static_graph": True})]  # fmt: skip


def assert_near(found, wanted, share, what):
    largest = max(float(exact.abs().max()) for exact in wanted)
    for i, (mean, exact) in enumerate(zip(found, wanted)):
        assert mean.shape == exact.shape, (what, i)
        gap = float((mean - exact).abs().max()) / largest
        assert gap <= share, (what, i, gap)


def _ddp_means(world):
    for spec, share in SPECS.items():
        for way in WAYS:
            model = in_ddp(Given("all"), **way)
            exchange = gradwire.torch.register(model, spec, exempt_1d="never", timeout=30.0)
            for step in range(4):
                mine = given("all", world.rank, step)
                wanted = [total / 2 for total in sums(mine)]
                assert_near(exchanged(model, exchange, mine), wanted, share, (spec, way, step))
            exchange.close()


def test_means_of_ddp_are_torchs_in_every_memory_format(tmp_path):
    check(2, _ddp_means, tmp_path)


def _attached_means(world):
    for spec, share in SPECS.items():
        model = Given("all")
        exchange = gradwire.torch.attach(model, spec, exempt_1d="never", timeout=30.0)
        for step in range(4):
            mine = given("all", world.rank, step)
            wanted = [total / 2 for total in sums(mine)]
            assert_near(exchanged(model, exchange, mine), wanted, share, (spec, step))
        exchange.close()


def test_means_of_attach_are_torchs_in_every_memory_format(tmp_path):
    check(2, _attached_means, tmp_path)


def _local_steps(world):
    transport = gradwire.torch.transport(timeout=30.0)
    for spec, share in SPECS.items():
        model, alone = Given("all"), Given("contiguous", of="all")
        strides = [p.stride() for p in model.parameters()]
        plan = gradwire.make_plan([(n, tuple(p.shape)) for n, p in model.named_parameters()], spec,
                                  exempt_1d="never")  # fmt: skip
        outer = gradwire.torch.DiLoCo(model.parameters(), gradwire.Reducer(plan, transport), every=2,
                                      preset="local-sgd", threads=1)  # fmt: skip
        inners = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, alone)]
        for step in range(4):
            mine = given("all", world.rank, step // 2)  # twice the same: moves are matrices of rank 1
            for each, inner in zip((model, alone), inners):
                inner.zero_grad()
                each(mine).backward()
                inner.step()
            if not outer.step():
                continue
            with torch.no_grad():
                for p, here in zip(alone.parameters(), model.parameters()):
                    p.copy_(sums([p])[0] / 2)
                assert_near(list(model.parameters()), list(alone.parameters()), share + 1e-6, (spec, step))
                for p, here in zip(alone.parameters(), model.parameters()):
                    p.copy_(here)
        assert [p.stride() for p in model.parameters()] == strides
    transport.close()


def test_local_steps_end_in_torchs_mean_in_every_memory_format(tmp_path):
    check(2, _local_steps, tmp_path)


def _onebit(world):
    transport = gradwire.torch.transport(timeout=30.0)
    for kind in (gradwire.torch.OneBitAdam, gradwire.torch.OneBitLAMB):
        seen = []
        for model in (Given("contiguous", of="all"), Given("all")):
            shapes = [(n, tuple(p.shape)) for n, p in model.named_parameters()]
            reducer = gradwire.Reducer(gradwire.make_plan(shapes, "none"), transport)
            momenta = gradwire.make_plan(shapes, "1bit", exchange="two_shot")
            optimizer = kind(model.parameters(), reducer, momenta, lr=0.01, freeze_step=2)
            for step in range(5):
                model.zero_grad()
                model(given("all", world.rank, step)).backward()
                optimizer.step()
            state = optimizer.state_dict()["state"]
            seen.append([*model.parameters(), *(t for part in state.values() for t in part.values())])
        assert len(seen[0]) == len(seen[1]) > len(shapes)
        for mine, exact in zip(*seen):
            assert torch.equal(mine, exact), kind
    transport.close()


def test_1bit_optimizers_step_alike_in_every_memory_format(tmp_path):
    check(2, _onebit, tmp_path)


def keeps_the_law(world, form, model, exchange, steps, what, change=lambda step: None):
    """Of every element: what arrives on all ranks and what they keep is what they had and what they kept."""
    owed = [torch.zeros(p.shape) for p in model.parameters()]
    for step in range(steps):
        change(step)
        mine = given(form, world.rank, step)
        wanted = [g + e for g, e in zip(sums(mine), owed)]
        means = exchanged(model, exchange, mine)
        owed = sums(residuals(model, exchange))
        assert_near([2 * mean + e for mean, e in zip(means, owed)], wanted, 1e-5, (what, step))
    assert any(bool(e.any()) for e in owed), what


def _law(world):
    for spec in ("topk:10%", "int4", "powersgd:2", "1bit"):
        for adapter in ("register", "attach"):
            model = Given("all")
            if adapter == "register":
                model = in_ddp(model)
            register = getattr(gradwire.torch, adapter)
            exchange = register(model, spec, exempt_1d="never", timeout=30.0)
            keeps_the_law(world, "all", model, exchange, 4, (spec, adapter))
            exchange.close()


def test_residuals_have_the_order_of_their_gradients(tmp_path):
    check(2, _law, tmp_path)


def _conv(world):
    """A model of torch's own layers, whose activations are in channels_last too."""
    def made():
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))
        return model.to(memory_format=torch.channels_last)

    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(world.rank))
    images = images.contiguous(memory_format=torch.channels_last)
    for view in (False, True):
        for spec, share in (("none", 1e-6), ("topk:100%", 1e-6), ("int8", 0.05)):
            plain, hooked = (in_ddp(made(), find_unused_parameters=True, gradient_as_bucket_view=view)
                             for _ in range(2))  # fmt: skip
            exchange = gradwire.torch.register(hooked, spec, exempt_1d="never", timeout=30.0)
            for _ in range(3):
                for model in (plain, hooked):
                    model.zero_grad()
                    model(images).square().mean().backward()
                for found, exact in zip(hooked.parameters(), plain.parameters()):
                    assert found.grad.stride() == exact.grad.stride()
                    assert_near([found.grad], [exact.grad], share, (view, spec))
            exchange.close()


def test_a_model_in_channels_last_has_the_gradients_of_plain_ddp(tmp_path):
    check(2, _conv, tmp_path)


def _alike(world):
    """The bits of a model in C order, whatever the compressor keeps: residuals, velocities, estimates,
    factors. And a group whose ranks differ in their memory formats."""
    ways = {"attach": ["all", "contiguous", "all" if world.rank == 0 else "contiguous"],
            "register": ["all", "contiguous"]}  # fmt: skip
    for row in gradwire.compressors():
        for adapter, forms in ways.items():
            models = [Given(form, of=None if form == "all" else "all") for form in forms]
            if adapter == "register":
                models = [in_ddp(model, find_unused_parameters=True) for model in models]
            register = getattr(gradwire.torch, adapter)
            exchanges = [register(model, row.example, exempt_1d="never", timeout=30.0) for model in models]
            for step in range(3):
                mine = given("all", world.rank, step)
                seen = [[t.clone() for t in exchanged(model, exchange, mine)] + residuals(model, exchange)
                        for model, exchange in zip(models, exchanges)]  # fmt: skip
                for form, tensors in zip(forms, seen):
                    for tensor, exact in zip(tensors, seen[1]):
                        assert torch.equal(tensor, exact), (row.example, adapter, form, step)
            for exchange in exchanges:
                exchange.close()


def test_every_compressor_sees_elements_in_the_order_of_shapes_on_all_ranks(tmp_path):
    check(2, _alike, tmp_path, deadline=200.0)


def _sharded(world):
    """torch itself shards parameters in C order alone. Activations may have any."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world.world_size,))

    def made():
        torch.manual_seed(5)
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3))

    with pytest.raises(NotImplementedError, match="non-contiguous parameters"):
        fully_shard(made().to(memory_format=torch.channels_last), mesh=mesh)
    images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(world.rank))
    images = images.contiguous(memory_format=torch.channels_last)
    for spec in ("none", "int8", "topk:100%"):
        alone, model = made(), fully_shard(made(), mesh=mesh)
        exchange = gradwire.torch.register_fsdp(model, spec, timeout=30.0)
        for each in (alone, model):
            each(images).square().mean().backward()
        wanted = [total / 2 for total in sums([p.grad for p in alone.parameters()])]
        found = [p.grad.full_tensor() for p in model.parameters()]
        assert_near(found[::2], wanted[::2], max(SPECS[spec], 1e-6), spec)
        exchange.close()


def test_fsdp_in_channels_last_has_torchs_gradients(tmp_path):
    check(2, _sharded, tmp_path)


def _changes(world):
    """model.to(memory_format=...) where DDP has made its buffers, or between steps."""
    form = "channels_last"

    def convert(model):
        for p in model.parameters():
            p.data = laid_out(p.data, form) if p.ndim == 4 else p.data

    for adapter, before in (("register", True), ("register", False), ("attach", False)):
        model = Given("contiguous")
        if adapter == "register":
            model = in_ddp(model, find_unused_parameters=True)  # buffers are never made anew
        if before:
            convert(model)
        register = getattr(gradwire.torch, adapter)
        exchange = register(model, "topk:10%", exempt_1d="never", timeout=30.0)
        keeps_the_law(world, "contiguous", model, exchange, 4, (adapter, before),
                      lambda step, model=model: step == 2 and convert(model))  # fmt: skip
        exchange.close()
    transport = gradwire.torch.transport(timeout=30.0)
    model = Given("contiguous")
    plan = gradwire.make_plan([(n, tuple(p.shape)) for n, p in model.named_parameters()], "none")
    outer = gradwire.torch.DiLoCo(model.parameters(), gradwire.Reducer(plan, transport), every=1,
                                  preset="local-sgd", threads=1)  # fmt: skip
    convert(model)  # the memory that the outer optimizer knows is another one from here on
    with torch.no_grad():
        model.first.add_(float(world.rank))
    outer.step()
    torch.testing.assert_close(model.first, Given("contiguous").first + 0.5)
    transport.close()


def test_a_memory_format_may_change_in_the_middle_of_training(tmp_path):
    check(2, _changes, tmp_path)


def _laid_over(world):
    """Parameters whose memory is what the outer optimizer steps: in another order, or another's."""
    transport = gradwire.torch.transport(timeout=30.0)

    def transpose(a, b):
        a.data = a.data.t()

    def swap(a, b):
        a.data, b.data = b.data, a.data

    def swap_transposed(a, b):
        a.data, b.data = b.data.t(), a.data.t()

    def share(a, b):
        a.data = b.data.t()

    for change in (transpose, swap, swap_transposed, share):
        torch.manual_seed(3)
        pair = [torch.nn.Parameter(torch.randn(5, 5)) for _ in range(2)]
        plan = gradwire.make_plan([("a", (5, 5)), ("b", (5, 5))], "none")
        outer = gradwire.torch.DiLoCo(pair, gradwire.Reducer(plan, transport), every=1, preset="local-sgd",
                                      threads=1)  # fmt: skip
        change(*pair)
        if change is share:
            words = "parameters[0]: 'a' lies in the memory of parameters[1], 'b', must have its own"
            with pytest.raises(gradwire.InvalidArgument, match=re.escape(words)):
                outer.step()
            continue
        for step in range(2):
            with torch.no_grad():  # a local step, of each rank another
                for p in pair:
                    p.add_(torch.arange(25.0).view(5, 5) * (world.rank + step))
            wanted = [total / 2 for total in sums(pair)]
            outer.step()
            assert_near([p.detach() for p in pair], wanted, 1e-6, (change.__name__, step))
    transport.close()


def test_a_parameter_may_come_to_lie_over_what_local_steps_keep_of_it(tmp_path):
    check(2, _laid_over, tmp_path)


class _Converted(torch.nn.Module if rank_processes.HAS_TORCH else object):
    """A weight and one in transposed memory, that convert() lays out in other orders."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.bias = torch.nn.Parameter(torch.randn(5))
        self.image = torch.nn.Parameter(torch.randn(6, 4, 3, 3))
        self.matrix = torch.nn.Parameter(laid_out(torch.randn(12, 9), "transposed"))

    def forward(self, factors, every):
        used = list(zip(self.parameters(), factors))
        return sum((p * c).sum() for p, c in (used if every else used[:1]))

    def convert(self):
        self.image.data = laid_out(self.image.data, "channels_last")
        self.matrix.data = self.matrix.data.contiguous()


# Spec, find_unused_parameters, gradient_as_bucket_view, and what rank 0 has in the first step.
CONVERTED = [
    ("none", False, False, "used"), ("topk:20%", False, False, "zero"), ("none", True, False, "unused"),
    ("topk:20%", True, False, "zero"), ("none", True, False, "nan"), ("none", True, True, "unused"),
    ("topk:20%", True, True, "unused"),
]  # fmt: skip


def _converted(world):
    """DDP itself gives other means then, with .grad apart from its buffers: it writes gradients in the order
    that parameters had, and reads means in that which they have."""
    for spec, unused, view, first in CONVERTED:
        ddp = in_ddp(_Converted(), gradient_as_bucket_view=view, find_unused_parameters=unused)
        skip = {"on_nonfinite": "skip"} if first == "nan" else {}
        exchange = gradwire.torch.register(ddp, spec, exempt_1d="never", timeout=30.0, **skip)
        ddp.module.convert()
        owed = [torch.zeros(()) for _ in ddp.parameters()]
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + world.rank)
            mine = [torch.randn(p.shape, generator=generator) for p in ddp.parameters()]
            at_first = step == 0 and world.rank == 0 and first != "used"
            if at_first:  # what rank 0 has tells it no order
                mine = [c * (float("nan") if first == "nan" else 0.0) for c in mine]
            ddp.zero_grad()
            ddp(mine, every=not (at_first and first == "unused")).backward()
            if step == 0 and first == "nan":
                assert all(bool(p.grad.isnan().all()) for p in ddp.parameters())
                continue
            wanted = [g + e for g, e in zip(sums(mine), owed)]
            owed = sums(residuals(ddp, exchange))
            found = [2 * p.grad + e for p, e in zip(ddp.parameters(), owed)]
            assert_near(found, wanted, 1e-5, (spec, unused, view, first, step))
        exchange.close()


def test_means_are_right_where_ddp_was_made_before_a_memory_format(tmp_path):
    check(2, _converted, tmp_path)


def _refused(world):
    class Shared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3, 1).expand(3, 4))

    words = re.escape("'w': its elements share memory (shape (3, 4), strides (1, 0)), must each have")
    with pytest.raises(gradwire.InvalidArgument, match=f"parameter {words}"):
        gradwire.torch.attach(Shared(), "none")
    transport = gradwire.torch.transport(timeout=30.0)
    plan = gradwire.make_plan([("w", (3, 4))], "none")
    for make in (lambda: gradwire.torch.DiLoCo(Shared().parameters(), gradwire.Reducer(plan, transport), 2),
                 lambda: gradwire.torch.OneBitAdam(Shared().parameters(), gradwire.Reducer(plan, transport),
                                                   plan, freeze_step=2)):  # fmt: skip
        with pytest.raises(gradwire.InvalidArgument, match=r"parameters\[0\]: " + words):
            make()
    dist.barrier()
    transport.close()


def test_elements_that_share_memory_are_refused_by_the_parameters_name(tmp_path):
    check(2, _refused, tmp_path)
