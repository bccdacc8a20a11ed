"""State of gradwire.torch across memory formats: what a model in one format has kept goes on in a model in
another, element by element; and optimizers step parameters of any format as torch.optim does."""

import copy
import io

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    from memory_case import DENSE, SHAPES, Given, exchanged, given, in_ddp, residuals, sums

    import gradwire
    import gradwire.torch

WAYS = [("all", "contiguous"), ("contiguous", "all")]


def _model(form):
    return Given(form, of=None if form == "all" else "all")


def _made(adapter, form, spec):
    model = _model(form)
    if adapter == "register":
        model = in_ddp(model)
    register = getattr(gradwire.torch, adapter)
    return model, register(model, spec, exempt_1d="never", timeout=30.0)


def _goes_on(world):
    """What ranks owe is kept by element: it goes to the same ones of a model in another format."""
    for spec in ("topk:10%", "int4", "powersgd:2", "dgc:10%"):
        for adapter in ("register", "attach"):
            for way in WAYS:
                model, exchange = _made(adapter, way[0], spec)
                for step in range(4):
                    exchanged(model, exchange, given("all", world.rank, step))
                saved, kept = copy.deepcopy(exchange.state_dict()), residuals(model, exchange)
                other, resumed = _made(adapter, way[1], spec)
                for step in range(50, 53):  # until DDP's buckets have settled
                    exchanged(other, resumed, given("all", world.rank, step))
                resumed.load_state_dict(saved)
                for step in range(4, 6):
                    for mine, exact in zip(residuals(other, resumed), kept):
                        assert torch.equal(mine, exact), (spec, adapter, way)
                    mine = given("all", world.rank, step)
                    wanted = [g + e for g, e in zip(sums(mine), sums(kept))]
                    means = exchanged(other, resumed, mine)
                    for mean, same in zip(means, exchanged(model, exchange, mine)):
                        assert torch.equal(mean, same), (spec, adapter, way)
                    kept = residuals(model, exchange)
                    owed = sums(residuals(other, resumed))
                    for mean, e, exact in zip(means, owed, wanted if spec != "dgc:10%" else []):
                        torch.testing.assert_close(2 * mean + e, exact, rtol=1e-4, atol=1e-4)
                exchange.close()
                resumed.close()


def test_residuals_go_on_in_another_memory_format(tmp_path):
    check(2, _goes_on, tmp_path)


def _outer_goes_on(world):
    transport = gradwire.torch.transport(timeout=30.0)

    def made(form):
        model = _model(form)
        plan = gradwire.make_plan([(n, tuple(p.shape)) for n, p in model.named_parameters()], "topk:25%",
                                  exempt_1d="never")  # fmt: skip
        reducer = gradwire.Reducer(plan, transport)
        return model, reducer, gradwire.torch.DiLoCo(model.parameters(), reducer, every=1, threads=1)

    def step_on(made_one, step):
        model, _, outer = made_one
        with torch.no_grad():
            for p, c in zip(model.parameters(), given("all", world.rank, step)):
                p.sub_(0.1 * c)
        outer.step()
        return [p.detach().clone() for p in model.parameters()]

    for way in WAYS:
        first, second = made(way[0]), made(way[1])
        for step in range(3):
            step_on(first, step)
        with torch.no_grad():
            for p, q in zip(second[0].parameters(), first[0].parameters()):
                p.copy_(q)
        second[2].load_state_dict(copy.deepcopy(first[2].state_dict()))
        with io.BytesIO() as out:
            first[1].save(out)
            saved = out.getvalue()
        second[1].load({world.rank: saved}.get)
        for step in range(3, 5):
            for a, b in zip(step_on(first, step), step_on(second, step)):
                assert torch.equal(a, b), (way, step)
    transport.close()


def test_an_outer_step_goes_on_in_another_memory_format(tmp_path):
    check(2, _outer_goes_on, tmp_path)


@pytest.mark.parametrize("name, settings", [("SGD", {"momentum": 0.9}), ("AdamW", {})])
@pytest.mark.parametrize("form", DENSE if rank_processes.HAS_TORCH else [])
def test_optimizers_step_every_dense_format_as_torchs(name, settings, form):
    mine, theirs = Given(form), Given("contiguous", of=form)
    stepped = getattr(gradwire.torch, name)(mine.parameters(), lr=0.01, **settings)
    peer = getattr(torch.optim, name)(theirs.parameters(), lr=0.01, **settings)
    for step in range(3):
        for model, optimizer in ((mine, stepped), (theirs, peer)):
            optimizer.zero_grad()
            model(given(form, 0, step)).backward()
            optimizer.step()
        for p, exact in zip(mine.parameters(), theirs.parameters()):
            torch.testing.assert_close(p, exact, rtol=1e-5, atol=1e-6)
        for key, exact in peer.state[theirs.first].items():
            state = stepped.state[mine.first][key]
            torch.testing.assert_close(state.float(), exact.float(), rtol=1e-5, atol=1e-6)
    assert mine.first.stride() == Given(form).first.stride()


def test_optimizers_refuse_what_is_not_dense_by_its_name():
    model = Given("gaps")
    assert SHAPES["gaps"] == tuple(model.first.shape)
    with pytest.raises(gradwire.InvalidArgument, match="'first'.*do not fill one piece of memory"):
        gradwire.torch.SGD(model.named_parameters(), lr=0.1)


def test_optimizers_see_values_whose_memory_holds_their_negatives():
    """As torch has the imaginary part of a conjugate."""
    negative = torch.conj(torch.complex(torch.zeros(1), torch.tensor([3.0]))).imag
    assert negative.is_neg()
    p = torch.nn.Parameter(torch.ones(1))
    p.grad = negative
    gradwire.torch.SGD([p], lr=1.0).step()
    assert p.item() == 4.0
    with pytest.raises(gradwire.InvalidArgument, match=r"its memory holds negatives"):
        gradwire.torch.SGD([torch.nn.Parameter(negative)], lr=1.0)
