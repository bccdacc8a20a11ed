"""Parameters that others write between steps: gradwire.torch's optimizers go on from what was written."""

import math

import pytest
from rank_processes import HAS_TORCH, needs_torch

pytestmark = needs_torch

if HAS_TORCH:
    import torch

    import gradwire
    import gradwire.torch as gt

SHAPES = [(70, 60), (9,), ()]
OPTIMIZERS = {
    "SGD": lambda p, lr, **k: gt.SGD(p, lr=lr, **k),
    "SGD with momentum": lambda p, lr, **k: gt.SGD(p, lr=lr, momentum=0.9, nesterov=True, **k),
    "SGD of 8 bits": lambda p, lr, **k: gt.SGD(p, lr=lr, momentum=0.9, state="8bit", **k),
    "AdamW": lambda p, lr, **k: gt.AdamW(p, lr=lr, **k),
    "AdamW of 8 bits": lambda p, lr, **k: gt.AdamW(p, lr=lr, state="8bit", **k),
    "AdamW that clips": lambda p, lr, **k: gt.AdamW(p, lr=lr, max_grad_norm=0.5, **k),
    # Its momentum holds steps, which a rate of 0 does not stop.
    "LARS": lambda p, lr, **k: gt.LARS(p, lr=lr, preset="timm", **k),
    "LARC": lambda p, lr, **k: gt.LARC(p, lr=lr, momentum=0.0, **k),
    "LAMB": lambda p, lr, **k: gt.LAMB(p, lr=lr, **k),
}
WAYS = {
    "clamp_": lambda p: p.clamp_(-0.25, 0.25),
    "copy_": lambda p: p.copy_(torch.linspace(-3, 3, p.numel()).reshape(p.shape)),
    "zero_": lambda p: p.zero_(),
    "mul_": lambda p: p.mul_(-2),
    "one element": lambda p: p.view(-1)[:1].fill_(7.25),
    "data": lambda p: setattr(p, "data", torch.full_like(p, 1.5)),
}
DTYPES = ["float16", "bfloat16", "float32"]


class Model(torch.nn.Module if HAS_TORCH else object):
    def __init__(self, dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        self.all = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in SHAPES])


def fill(step, *models):
    generator = torch.Generator().manual_seed(100 + step)
    for shape, *each in zip(SHAPES, *(m.all for m in models)):
        g = (torch.randn(shape, generator=generator) * 0.1).half().bfloat16()  # exact in each
        for p in each:
            p.grad = g.to(p.dtype)


def same_bits(a, b):
    kind = torch.int32 if a.dtype == torch.float32 else torch.int16
    return a.dtype == b.dtype and torch.equal(a.detach().view(kind), b.detach().view(kind))


def stepped(name, dtype, rate=0.05, **options):
    model = Model(getattr(torch, dtype))
    optimizer = OPTIMIZERS[name](model.all, rate, **options)
    for step in range(3):
        fill(step, model)
        optimizer.step()
    return model, optimizer


def write(model, way):
    if way == "load_state_dict":
        model.load_state_dict({k: torch.full_like(v, -1.25) for k, v in model.state_dict().items()})
        return
    with torch.no_grad():
        for p in model.all:
            WAYS[way](p)


@pytest.mark.parametrize("way", [*WAYS, "load_state_dict"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_rate_0_leaves_what_was_written(name, dtype, way):
    model, optimizer = stepped(name, dtype)
    write(model, way)
    written = [p.detach().clone() for p in model.all]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    fill(3, model)
    optimizer.step()
    for p, wanted in zip(model.all, written):
        assert torch.equal(p, wanted)  # which takes -0 for 0, and no NaN


@pytest.mark.parametrize("way", [*WAYS, "load_state_dict"])
@pytest.mark.parametrize("dtype, master", [("float16", "remainder"), ("bfloat16", "float32")])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_masters_go_on_as_float32_parameters_that_are_written_alike(name, dtype, master, way):
    dtype = getattr(torch, dtype)
    half, exact = Model(dtype), Model(torch.float32)
    exact.load_state_dict(half.state_dict())
    a, b = OPTIMIZERS[name](half.all, 0.05, master=master), OPTIMIZERS[name](exact.all, 0.05)
    for step in range(6):
        if step == 3:
            before = [p.detach().clone() for p in half.all]
            write(half, way)
            with torch.no_grad():  # where nothing was written both keep what they have
                for p, q, old in zip(half.all, exact.all, before):
                    q.copy_(torch.where(p == old, q, p.float()))
        fill(step, half, exact)
        a.step(), b.step()
        for p, q in zip(half.all, exact.all):
            assert same_bits(a.state[p]["master"], q), step
            assert same_bits(p, q.to(dtype)), step


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_was_written_is_stepped_as_by_a_new_optimizer(dtype):
    model, optimizer = stepped("SGD", dtype)
    fresh = Model(getattr(torch, dtype))
    write(model, "load_state_dict"), write(fresh, "load_state_dict")
    again = OPTIMIZERS["SGD"](fresh.all, 0.05)
    if dtype == "bfloat16":
        optimizer.values_changed()  # the other bits of its masters
    fill(3, model, fresh)
    optimizer.step(), again.step()
    assert all(map(same_bits, model.all, fresh.all))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.0, -0.0])
def test_infinities_nans_and_zeros_are_followed(dtype, value):
    model, optimizer = stepped("SGD", dtype)
    with torch.no_grad():
        for p in model.all:
            p.fill_(value)
    fill(3, model)
    optimizer.param_groups[0]["lr"] = 1e-6
    for _ in range(2):
        optimizer.step()
    for p in model.all:
        if math.isnan(value):
            assert p.isnan().all()
        elif math.isinf(value):  # 0 * weight makes NaN of it; of bfloat16 a finite master may round to it
            assert dtype == "bfloat16" or not p.isfinite().any()
        else:
            assert (p.abs() <= 2e-6).all()


def test_values_that_round_to_what_is_there_keep_their_masters():
    p = torch.nn.Parameter(torch.ones(4, dtype=torch.float16))
    optimizer = gt.SGD([p], lr=2.0**-13)
    p.grad = torch.ones_like(p)
    optimizer.step()
    with torch.no_grad():
        p.copy_(p.clone()), p.clamp_(-5, 5)
    optimizer.step(), optimizer.step()
    assert torch.equal(optimizer.state[p]["master"], torch.full((4,), 1 - 3 * 2.0**-13))
    assert torch.equal(p, torch.full((4,), 1 - 2.0**-11).half())


def test_a_step_that_is_refused_keeps_what_was_written():
    model, optimizer = stepped("AdamW", "float16")
    write(model, "mul_")
    written = [p.detach().clone() for p in model.all]
    fill(3, model)
    model.all[1].grad[2] = math.nan
    with pytest.raises(gradwire.NonFiniteGradient):
        optimizer.step()
    assert all(map(same_bits, model.all, written))
