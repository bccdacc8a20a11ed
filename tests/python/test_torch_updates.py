"""What gradwire.torch's 'auto' makes of the optimizers that step its gradients' parameters."""

import math

import pytest
from rank_processes import HAS_TORCH, needs_torch

import gradwire
from gradwire import _core

pytestmark = needs_torch
if not gradwire.build_info()["features"]["planner"]:
    pytest.skip("this build has no planner", allow_module_level=True)

if HAS_TORCH:
    import torch
    from auto_case import check
    from ddp_case import ddp, sgd, train
    from slow_link import make_the_link_slow, wide

    import gradwire.torch
    from gradwire.torch.updates import updates_of


def _ids(parameters):
    return {id(p) for p in parameters}


def _adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


@pytest.fixture
def layer():
    return torch.nn.Linear(2, 2)


def _sgds():
    return [torch.optim.SGD, gradwire.torch.SGD] if HAS_TORCH else []


def _others():
    if not HAS_TORCH:
        return []
    ours = [gradwire.torch.AdamW, gradwire.torch.LARS, gradwire.torch.LARC, gradwire.torch.LAMB]
    return [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, *ours]


@pytest.mark.parametrize("kind", _sgds())
def test_sgd_is_a_sum_of_gradients(layer, kind):
    optimizer = kind(layer.parameters(), lr=0.1, momentum=0.9)
    assert updates_of(_ids(layer.parameters())) == "linear"
    assert optimizer is not None


@pytest.mark.parametrize("kind", _others())
def test_others_divide_by_the_size_of_gradients(layer, kind):
    beside = torch.optim.SGD(layer.parameters(), lr=0.1)
    optimizer = kind(layer.parameters(), lr=0.1)
    assert updates_of(_ids(layer.parameters())) == "scaled"
    del optimizer
    assert updates_of(_ids(layer.parameters())) == "linear"  # it was found, and was the reason
    assert beside is not None


def test_sgd_that_clips_divides_by_a_norm(layer):
    optimizer = gradwire.torch.SGD(layer.parameters(), lr=0.1, max_grad_norm=1.0)
    assert updates_of(_ids(layer.parameters())) == "scaled"
    optimizer = gradwire.torch.SGD(layer.parameters(), lr=0.1, max_grad_norm=0.0)
    assert updates_of(_ids(layer.parameters())) == "linear"
    assert optimizer is not None


def test_a_class_derived_from_sgd_is_sgd_as_long_as_its_step_is(layer):
    class Named(torch.optim.SGD):
        pass

    class Sign(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.sign_()
            return super().step(closure)

    optimizer = Named(layer.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)  # puts a step of its own around the object's
    assert updates_of(_ids(layer.parameters())) == "linear"
    optimizer = Sign(layer.parameters(), lr=0.1)
    assert updates_of(_ids(layer.parameters())) == "scaled"
    assert optimizer is not None


def test_without_an_optimizer_nobody_knows(layer):
    other = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    assert updates_of(_ids(layer.parameters())) == "scaled"
    assert updates_of(_ids(other.parameters())) == "linear"
    del optimizer
    assert updates_of(_ids(other.parameters())) == "scaled"


def test_one_that_divides_is_enough(layer):
    first = torch.optim.SGD([layer.weight], lr=0.1)
    assert updates_of(_ids(layer.parameters())) == "linear"
    second = torch.optim.Adam([layer.bias], lr=0.1)
    assert updates_of(_ids(layer.parameters())) == "scaled"
    assert updates_of({id(layer.weight)}) == "linear"
    assert first is not second


def _wrapper(name, module):
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, wrapped):
            setattr(self, name, wrapped)
            self.param_groups = wrapped.param_groups

    Wrapper.__module__ = module
    return Wrapper


@pytest.mark.parametrize("name, module", [
    ("optimizer", "accelerate.optimizer"), ("optim", "torch.distributed.optim.any"),
    ("optimizer", "lightning.pytorch.core.optimizer"),
])  # fmt: skip
def test_wrappers_are_what_they_wrap(layer, name, module):
    for kind, found in ((torch.optim.SGD, "linear"), (torch.optim.Adam, "scaled")):
        wrapper = _wrapper(name, module)(kind(layer.parameters(), lr=0.1))
        assert updates_of(_ids(layer.parameters())) == found
        del wrapper


def test_a_wrapper_that_nobody_knows_may_scale_gradients(layer):
    wrapper = _wrapper("optim", "accelerated_lars")(torch.optim.SGD(layer.parameters(), lr=0.1))
    assert updates_of(_ids(layer.parameters())) == "scaled"
    assert wrapper is not None


def test_an_optimizer_that_raises_is_said_and_stops_nothing(layer, caplog):
    class Broken(torch.optim.Optimizer):
        param_groups = property(lambda self: 1 / 0)

        def __init__(self):
            pass

    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    broken = Broken()
    with caplog.at_level("WARNING", logger="gradwire"):
        assert updates_of(_ids(layer.parameters())) == "scaled"
    assert "none is taken for SGD: ZeroDivisionError" in caplog.text
    del broken
    assert updates_of(_ids(layer.parameters())) == "linear"
    assert optimizer is not None


def test_one_that_is_being_made_has_no_parameters_yet(layer):
    class Unfinished(torch.optim.Optimizer):
        def __init__(self):
            pass

    unfinished = Unfinished()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    assert updates_of(_ids(layer.parameters())) == "linear"
    assert unfinished is not optimizer


def test_the_pilot_takes_two_words():
    def pilot(**words):
        return _core.Pilot([("weight", (64, 64))], 2, **words)

    known = pilot(updates="linear")
    assert (known.updates, pilot().updates) == ("linear", "scaled")
    known.updates = "scaled"
    assert known.updates == "scaled"
    said = "updates: are 'adam', must be linear or scaled"
    with pytest.raises(gradwire.InvalidArgument, match=said):
        pilot(updates="adam")
    with pytest.raises(gradwire.InvalidArgument, match=said):
        known.updates = "adam"
    assert known.updates == "scaled"


def _waits(world, make, before):
    """What the first prediction counts of top-k, in steps, and what is known when the job begins."""
    make_the_link_slow()
    model = ddp(wide())
    optimizer = make(model) if before else None
    exchange = gradwire.torch.register(model, "auto:window=10,specs=int4|topk:1%", timeout=60.0)
    optimizer = optimizer or make(model)
    for step in range(10):
        train(model, optimizer, step, step + 1)
    found = [
        [v for name, v in row["numbers"].items() if name.startswith("waits_steps of topk")]
        for row in exchange.decisions()
        if row["what"] in ("begin", "predict")
    ]
    exchange.close()
    return found


def _sgd_before(world):
    return _waits(world, sgd, before=True)


def _sgd_behind(world):
    return _waits(world, sgd, before=False)


def _adam_on_rank_1(world):
    return _waits(world, sgd if world.rank == 0 else _adam, before=True)


@pytest.mark.parametrize("run, begins, predicts", [
    (_sgd_before, "linear", "linear"),
    (_sgd_behind, "scaled", "linear"),  # there is no optimizer yet when the exchange is made
    (_adam_on_rank_1, "scaled", "scaled"),
])  # fmt: skip
def test_ranks_agree_on_what_counts_and_learn_it_later(tmp_path, run, begins, predicts):
    ends = check(2, run, tmp_path)
    assert ends[0] == ends[1]
    assert len(ends[0]) == 2
    for found, updates in zip(ends[0], (begins, predicts)):
        assert found
        for waits in found:  # less than 99 where biases travel whole
            expected = math.sqrt(99) if updates == "linear" else 99
            assert 0.85 * expected < waits <= expected
