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

FORMS = ["channels_last", "channels_last_3d", "transposed"]


def _made(adapter, form, of, spec):
    model = Given(form, of=of)
    if adapter == "register":
        model = in_ddp(model)
    register = getattr(gradwire.torch, adapter)
    return model, register(model, spec, exempt_1d="never", timeout=30.0)


def _goes_on(world):
    """What ranks owe is kept by element: the law holds from a model in one format to one in another."""
    for spec in ("topk:10%", "int4", "powersgd:1"):
        for adapter in ("register", "attach"):
            for form in FORMS:
                for ways in ((form, "contiguous"), ("contiguous", form), (form, form)):
                    model, exchange = _made(adapter, ways[0], form, spec)
                    for step in range(4):
                        exchanged(model, exchange, given(form, world.rank, step))
                    saved, kept = copy.deepcopy(exchange.state_dict()), residuals(exchange)
                    other, resumed = _made(adapter, ways[1], form, spec)
                    exchanged(other, resumed, given(form, world.rank, 50))
                    resumed.load_state_dict(saved)
                    what = (spec, adapter, ways)
                    for mine, exact in zip(residuals(resumed), kept):
                        assert torch.equal(mine, exact), what
                    # Bit for bit as what goes on in the old format, and by the law.
                    mine = given(form, world.rank, 4)
                    wanted = [g + e for g, e in zip(sums(mine), sums(kept))]
                    means = [t.clone() for t in exchanged(other, resumed, mine)]
                    owed = sums(residuals(resumed))
                    for mean, e, exact in zip(means, owed, wanted):
                        gap = (2 * mean + e - exact).abs().max() / exact.abs().max()
                        assert gap <= 1e-5, (*what, float(gap))
                    for mean, same in zip(means, exchanged(model, exchange, mine)):
                        if adapter == "attach":
                            assert torch.equal(mean, same), what
                    exchange.close()
                    resumed.close()


def test_residuals_go_on_in_another_memory_format(tmp_path):
    check(2, _goes_on, tmp_path)


def _outer_goes_on(world):
    transport = gradwire.torch.transport(timeout=30.0)

    def made(form, of):
        model = Given(form, of=of)
        plan = gradwire.make_plan([(n, tuple(p.shape)) for n, p in model.named_parameters()], "topk:25%",
                                  exempt_1d="never")  # fmt: skip
        reducer = gradwire.Reducer(plan, transport)
        return model, reducer, gradwire.torch.DiLoCo(model.parameters(), reducer, every=1, threads=1)

    def step_on(made_one, form, step):
        model, _, outer = made_one
        with torch.no_grad():
            for p, c in zip(model.parameters(), given(form, world.rank, step)):
                p.sub_(0.1 * c)
        outer.step()
        return [p.detach().clone() for p in model.parameters()]

    for form in FORMS:
        first = made(form, form)
        for step in range(3):
            step_on(first, form, step)
        second = made("contiguous", form)
        with torch.no_grad():
            for p, q in zip(second[0].parameters(), first[0].parameters()):
                p.copy_(q)
        second[2].load_state_dict(copy.deepcopy(first[2].state_dict()))
        kept = [torch.from_numpy(first[1].residual(i)) for i in range(3)]
        assert [tuple(k.shape) for k in kept] == [tuple(p.shape) for p in first[0].parameters()], form
        with io.BytesIO() as out:
            first[1].save(out)
            saved = out.getvalue()
        second[1].load({world.rank: saved}.get)
        for step in range(3, 5):
            for a, b in zip(step_on(first, form, step), step_on(second, form, step)):
                assert torch.equal(a, b), (form, step)
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
        for key, state in stepped.state[mine.first].items():
            exact = peer.state[theirs.first][key]
            torch.testing.assert_close(state.float(), exact.float(), rtol=1e-5, atol=1e-6)
    assert mine.first.is_contiguous() == (form == "contiguous")


def test_optimizers_refuse_what_is_not_dense_by_its_name():
    model = Given("gaps")
    assert SHAPES["gaps"] == tuple(model.first.shape)
    with pytest.raises(gradwire.InvalidArgument, match="'first'.*do not fill one piece of memory"):
        gradwire.torch.SGD(model.named_parameters(), lr=0.1)
