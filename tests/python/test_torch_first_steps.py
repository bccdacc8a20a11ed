"""start= and warmup= behind register(), attach() and register_fsdp(); what is said of two momenta and of
'auto'. Checks of one kind share a set of processes."""

import copy
import logging
import re

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import fsdp_case
    import torch
    from ddp_case import Net, assert_ranks_agree, ddp, loss_of, parameters, registered, sgd, train

    import gradwire
    import gradwire.torch

START = 3


def _under_ddp(world):
    for spec in ("tensortopk:10%", "powersgd:2", "int8"):
        plain = ddp()
        model, exchange = registered(f"{spec},start={START}")
        by_hand, other = registered("none")
        optimizers = {each: sgd(each) for each in (plain, model, by_hand)}
        for step in range(8):
            if step == START:
                other.set_spec(spec)
            for each, optimizer in optimizers.items():
                train(each, optimizer, step, step + 1)
            assert torch.equal(parameters(plain), parameters(model)) == (step < START), (spec, step)
            assert torch.equal(parameters(by_hand), parameters(model)), (spec, step)
            assert (exchange.residual("first.weight") is None) == (step < START)
        assert_ranks_agree(parameters(model))
        assert str(gradwire.parse_spec(exchange.spec)) == f"{spec},start={START}"


def _is_saved(world):
    spec = f"tensortopk:10%,start={START},warmup=2"
    model, exchange = registered(spec)
    optimizer = sgd(model)
    train(model, optimizer, 0, START)  # the next step is another spec's
    state, weights = exchange.state_dict(), copy.deepcopy(model.state_dict())
    momenta = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, START, START + 5)
    again, loaded = registered(spec)
    train(again, sgd(again), 0, 1)  # of which nothing may be left
    again.load_state_dict(weights)
    loaded.load_state_dict(state)
    resumed = sgd(again)
    resumed.load_state_dict(momenta)
    train(again, resumed, START, START + 5)
    assert torch.equal(parameters(again), parameters(model))
    assert not torch.equal(loaded.residual("first.weight"), torch.zeros(24, 16))


def _under_attach(world):
    model, plain = Net(), ddp()
    exchange = gradwire.torch.attach(
        model, f"tensortopk:10%,start={START}", timeout=30.0, exempt_1d="never")  # fmt: skip
    optimizers = sgd(model), sgd(plain)
    for step in range(START + 2):
        for each, optimizer in zip((model, plain), optimizers):
            optimizer.zero_grad()
            loss_of(each, world.rank, step).backward()
            if each is model:
                exchange.wait()
            optimizer.step()
        assert torch.equal(parameters(plain), parameters(model)) == (step < START), step


def _all_but_fsdp(world):
    _under_ddp(world), _is_saved(world), _under_attach(world)


def test_ddp_and_attach_send_everything_in_the_first_steps(tmp_path):
    check(2, _all_but_fsdp, tmp_path)


def _under_fsdp(world):
    plain = fsdp_case.sharded(whole=False)
    model, exchange = fsdp_case.registered(f"topk:10%,start={START},warmup=1")
    optimizers = {each: torch.optim.SGD(each.parameters(), lr=0.05) for each in (plain, model)}
    sent, saved = [], None
    for step in range(START + 4):
        if step == START:
            saved = exchange.state_dict(), [p.detach().full_tensor() for p in model.parameters()]
        for each, optimizer in optimizers.items():
            optimizer.zero_grad()
            fsdp_case.step_on(each, step)
            optimizer.step()
        same = torch.equal(fsdp_case.weights(plain), fsdp_case.weights(model))
        assert same == (step < START), step
        assert (exchange.residual("first.weight") is None) == (step < START)
        sent.append(exchange.stats()["bytes_sent"])
    assert sent[0] == sent[START - 1] > sent[START] > sent[START + 1], sent  # all, 25%, 10%
    net = Net()
    for mine, value in zip(net.parameters(), saved[1]):
        mine.data.copy_(value)
    again = fsdp_case.sharded(net, whole=False)
    loaded = gradwire.torch.register_fsdp(again, exchange.spec, timeout=30.0)
    loaded.load_state_dict(saved[0])
    optimizer = torch.optim.SGD(again.parameters(), lr=0.05)
    for step in range(START, START + 4):
        optimizer.zero_grad()
        fsdp_case.step_on(again, step)
        optimizer.step()
    assert torch.equal(fsdp_case.weights(again), fsdp_case.weights(model))


def _says(call):
    """What the logger says meanwhile."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("gradwire")
    logger.addHandler(handler)
    try:
        call()
    finally:
        logger.removeHandler(handler)
    return [text for text in said if "momentum" in text]


def _of_two_momenta(world):
    for spec, momentum, times in (("dgc:10%", 0.9, 1), ("dgc:10%", 0.0, 0), ("int8,momentum=0.5", 0.5, 1),
                                  ("topk:10%", 0.9, 0), ("dgc:10%,momentum=0", 0.9, 0)):  # fmt: skip
        model, _ = registered(spec)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
        said = _says(lambda m=model, o=optimizer: train(m, o, 0, 4))
        assert len(said) == times, (spec, momentum, said)
        assert all(f"SGD has momentum {momentum:g}, expected 0 there" in text for text in said)
    model, _ = fsdp_case.registered("dgc:10%")
    assert len(_says(lambda: fsdp_case.train(model, 0, 4))) == 1


def _of_auto(world):
    for spec in ("auto", "auto:window=5", "auto,int8"):
        with pytest.raises(gradwire.InvalidArgument, match="'auto' is of register.. and attach"):
            fsdp_case.registered(spec)
    for register in (registered, fsdp_case.registered):
        with pytest.raises(gradwire.InvalidArgument, match="unknown name 'Auto'.* 'auto', whose options"):
            register("Auto")
    with pytest.raises(gradwire.InvalidArgument, match=re.escape("must follow a ':', as in 'auto:specs=")):
        registered("auto,int8")
    with pytest.raises(gradwire.InvalidArgument, match="'int8,start=5' is another spec in its first steps"):
        registered("auto:specs=int8,start=5")


def _fsdp_and_words(world):
    _under_fsdp(world), _of_two_momenta(world), _of_auto(world)


def test_fsdp_does_so_too_and_two_momenta_and_auto_are_answered(tmp_path):
    check(2, _fsdp_and_words, tmp_path)


def _of_other_parameters(world):
    shapes = [("weight", (4, 3)), ("bias", (4,)), ("last", (5,))]
    reducer = gradwire.Reducer(gradwire.make_plan(shapes, "none"), world)
    frozen = gradwire.make_plan(shapes, "1bit")
    values = [torch.zeros(shape) for _, shape in shapes]
    for given, message in (
        (values[:2], "are 2, must be the plan's 3 in its order: 'last' is not among them"),
        ([*values, torch.zeros(7)], r"parameters: are 4, .* parameters.3. of shape \(7,\) is in no plan"),
        ([values[0], values[2], values[1]], r"has the shape \(5,\), must have \(4,\), as the plan.s .bias."),
    ):
        for make in (lambda p: gradwire.torch.DiLoCo(p, reducer, every=2),
                     lambda p: gradwire.torch.OneBitAdam(p, reducer, frozen)):
            with pytest.raises(gradwire.InvalidArgument, match=message):
                make(given)


def test_optimizers_over_a_reducer_say_which_parameter_its_plan_is_short_of():
    _of_other_parameters(gradwire.make_in_process_group(1)[0])
