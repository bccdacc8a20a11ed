"""States of gradwire.torch that hold more than tensors of their own: torch.load() takes them."""

import io

import pytest
from rank_processes import HAS_TORCH, needs_torch

pytestmark = needs_torch

if HAS_TORCH:
    import torch

    import gradwire
    import gradwire.torch

SHAPES = [("weight", (40, 30)), ("bias", (40,))]


def made(kind, transport):
    torch.manual_seed(5)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for _, shape in SHAPES]
    reducer = gradwire.Reducer(gradwire.make_plan(SHAPES, "none"), transport)
    if kind == "DiLoCo":
        return parameters, gradwire.torch.DiLoCo(parameters, reducer, every=1)
    momenta = gradwire.make_plan(SHAPES, "1bit", exchange="two_shot")
    return parameters, getattr(gradwire.torch, kind)(parameters, reducer, momenta, lr=0.01,
                                                     freeze_step=2)


def step(parameters, optimizer, number):
    torch.manual_seed(100 + number)
    for parameter in parameters:
        if isinstance(optimizer, gradwire.torch.DiLoCo):
            parameter.data.add_(torch.randn(parameter.shape), alpha=0.01)
        else:
            parameter.grad = torch.randn(parameter.shape)
    optimizer.step()


@pytest.mark.parametrize("kind", ["DiLoCo", "OneBitAdam", "OneBitLAMB"])
def test_it_loads_with_weights_only_and_goes_on_bit_for_bit(kind):
    first, optimizer = made(kind, gradwire.make_transport("in_process"))
    for number in range(2):
        step(first, optimizer, number)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    second, resumed = made(kind, gradwire.make_transport("in_process"))
    for a, b in zip(first, second):
        b.data.copy_(a.data)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    step(first, optimizer, 2), step(second, resumed, 2)
    for a, b in zip(first, second):
        assert torch.equal(a, b)
