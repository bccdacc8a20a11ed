"""OneBitAdam, OneBitLAMB and DiLoCo as torch.optim.Optimizer: schedulers, groups, torch's checkpoints."""

import copy
import io

import pytest
from rank_processes import HAS_TORCH, in_threads, needs_torch

pytestmark = needs_torch

if HAS_TORCH:
    import torch
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    import gradwire
    import gradwire.torch as gt

SHAPES = [("weight", (40, 30)), ("bias", (40,))]
every_kind = pytest.mark.parametrize("kind", ["OneBitAdam", "OneBitLAMB", "DiLoCo"])
both = pytest.mark.parametrize("kind", ["OneBitAdam", "OneBitLAMB"])


class Model(torch.nn.Module if HAS_TORCH else object):
    def __init__(self):
        super().__init__()
        draws = torch.Generator().manual_seed(5)  # torch's own is shared by threads
        self.weight = torch.nn.Parameter(torch.randn(40, 30, generator=draws))
        self.bias = torch.nn.Parameter(torch.randn(40, generator=draws))


def made(kind, params, transport=None, every=1, **options):
    transport = transport or gradwire.make_transport("in_process")
    reducer = gradwire.Reducer(gradwire.make_plan(SHAPES, "none"), transport)
    if kind == "DiLoCo":
        return gt.DiLoCo(params, reducer, every=every, **options)
    momenta = gradwire.make_plan(SHAPES, "1bit", exchange="two_shot")
    return getattr(gt, kind)(params, reducer, momenta, **{"freeze_step": 2, "lr": 0.01, **options})


def step(model, optimizer, number, rank=0):
    draws = torch.Generator().manual_seed(100 + 10 * number + rank)
    for p in model.parameters():
        if isinstance(optimizer, gt.DiLoCo):
            p.data.add_(torch.randn(p.shape, generator=draws), alpha=0.01)
        else:
            p.grad = torch.randn(p.shape, generator=draws)
    optimizer.step()


def residuals_of(optimizer):
    file = io.BytesIO()
    optimizer._reducer.save(file)
    return lambda rank: file.getvalue()


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


@every_kind
def test_a_scheduler_of_torch_sets_the_rate_of_every_step(kind):
    def end(scheduled):
        model = Model()
        optimizer = made(kind, model.parameters(), lr=0.5)
        assert isinstance(optimizer, torch.optim.Optimizer)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1) if scheduled else None
        for number in range(6):
            if schedule is None:
                optimizer.lr = 0.5 * [1, 1, 0.1, 0.1, 0.1 * 0.1, 0.1 * 0.1][number]
            step(model, optimizer, number)
            if schedule is not None:
                schedule.step()
        assert optimizer.lr == pytest.approx(0.5e-3 if scheduled else 0.5e-2)
        return model

    for a, b in zip(end(True).parameters(), end(False).parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_outer_steps_of_a_schedule_follow_the_formula():
    model, exact = Model(), [p.detach().double() for p in Model().parameters()]
    outer = made("DiLoCo", model.parameters(), lr=1.0, momentum=0.5, nesterov=False)
    schedule = torch.optim.lr_scheduler.ExponentialLR(outer, 0.5)
    velocity = [torch.zeros_like(p) for p in exact]
    for number in range(4):
        step(model, outer, number)
        torch.manual_seed(100 + 10 * number)
        for p, v in zip(exact, velocity):
            v.mul_(0.5).sub_(0.01 * torch.randn(p.shape).double())  # theta before, minus theta
            p.sub_(v, alpha=0.5**number)
        schedule.step()
    for p, q in zip(model.parameters(), exact):
        torch.testing.assert_close(p.detach().double(), q, rtol=1e-5, atol=1e-5)


def test_the_stage_of_gradients_is_adamw_of_torch_with_its_groups_and_schedule():
    model, peer = Model(), Model()
    mine = made("OneBitAdam", [{"params": [("bias", model.bias)], "weight_decay": 0.0, "lr": 0.02},
                               {"params": [("weight", model.weight)]}],
                freeze_step=20, weight_decay=0.1)  # in another order than the plan's: by name
    theirs = torch.optim.AdamW([{"params": [peer.bias], "weight_decay": 0.0, "lr": 0.02},
                                {"params": [peer.weight]}], lr=0.01, weight_decay=0.1)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 10) for o in (mine, theirs)]
    for number in range(10):
        step(model, mine, number), step(peer, theirs, number)
        for schedule in schedules:
            schedule.step()
    for p, q in zip(model.parameters(), peer.parameters()):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


@every_kind
def test_state_goes_through_torchs_checkpoints_bit_for_bit(kind):
    first, ends = Model(), []
    optimizer = made(kind, first.parameters(), every=2)
    before = copy.deepcopy(first)
    get_optimizer_state_dict(first, optimizer)  # changes nothing, and exchanges nothing
    assert same(first, before)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for number in range(3):
        step(first, optimizer, number), schedule.step()
    found = get_optimizer_state_dict(first, optimizer)
    moment = "anchor" if kind == "DiLoCo" else "exp_avg"
    assert found["state"]["weight"][moment].shape == (40, 30)
    file, kept = io.BytesIO(), residuals_of(optimizer)
    torch.save([found, optimizer.state_dict()], file)
    for through_torch in (True, False):
        file.seek(0)
        by_name, plain = torch.load(file, weights_only=True)
        second = copy.deepcopy(first)
        resumed = made(kind, second.parameters(), every=2)
        if through_torch:
            set_optimizer_state_dict(second, resumed, by_name)
        else:
            resumed.load_state_dict(plain)
        resumed._reducer.load(kept)
        assert resumed.lr == optimizer.lr
        ends.append((second, resumed))
    for each, own in ((first, optimizer), *ends):
        for number in range(3, 6):
            step(each, own, number)
    assert all(same(first, each) for each, _ in ends)


@every_kind
def test_a_state_from_before_there_were_groups_loads(kind):
    first, second = Model(), Model()
    optimizer = made(kind, first.parameters(), lr=0.25)
    for number in range(3):
        step(first, optimizer, number)
    second.load_state_dict(first.state_dict())
    old = {**optimizer._arrays.state_dict(), "lr": 0.25}
    old["tensors"] = {name: {key: torch.from_numpy(value) for key, value in own.items()}
                      for name, own in old["tensors"].items()}
    resumed = made(kind, second.parameters(), lr=0.5)
    resumed.load_state_dict({"steps": 3, "outer": old} if kind == "DiLoCo" else old)
    assert resumed.lr == 0.25
    resumed._reducer.load(residuals_of(optimizer))
    step(first, optimizer, 3), step(second, resumed, 3)
    assert same(first, second)


@both
def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(kind):
    model = Model()
    optimizer = made(kind, model.parameters())
    step(model, optimizer, 0)
    before, kept = copy.deepcopy(model), optimizer.state_dict()
    optimizer.lr = 0.5
    for change, words in (
        (lambda s: s["state"][0].pop("exp_avg"), r"\['exp_avg'\]: is missing"),
        (lambda s: s["state"][1].update(step=torch.tensor(-1)), r"\['step'\]: is -1, must be"),
        (lambda s: s["state"].clear(), "is missing"),
        (lambda s: s.update(spec="sgd"), r"state\['spec'\]: is 'sgd'"),
        (lambda s: s["param_groups"][0].update(lr=-1.0), "lr: is -1"),
    ):
        bad = copy.deepcopy(kept)
        change(bad)
        with pytest.raises(gradwire.InvalidArgument, match=words):
            optimizer.load_state_dict(bad)
        assert optimizer.lr == 0.5
    optimizer.state[model.weight]["exp_avg"] = torch.zeros(40, 30)
    with pytest.raises(gradwire.InvalidArgument, match="state: was written to, must be taken over by"):
        step(model, optimizer, 1)
    for group, words in (({"momentum": 0.9}, "a group has 'momentum'"),
                         ({"wd": 0.1}, "key 'wd', which nothing reads"), ({"lr": -1.0}, "lr: is -1")):
        with pytest.raises(gradwire.InvalidArgument, match=words):
            made(kind, [{"params": list(Model().parameters()), **group}])
    with pytest.raises(gradwire.InvalidArgument, match="the groups hold all parameters of the plan"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(sum(p.sum() for p in model.parameters())).backward()
    with pytest.raises(gradwire.InvalidArgument, match=r"GradScaler.step\(\): steps OneBit"):
        scaler.step(optimizer)
    assert same(model, before)
    optimizer.load_state_dict(kept)
    step(model, optimizer, 1)  # and it goes on
    with pytest.raises(gradwire.InvalidArgument, match="closure: is given, must be None"):
        made("DiLoCo", Model().parameters()).step(lambda: 0)
    assert optimizer.step(lambda: 3.5) == 3.5


def test_another_number_of_ranks_goes_on_from_where_the_old_ones_last_agreed():
    """Three ranks stop in the middle of local steps; two go on, as two would from that agreement."""
    def before(transport):
        model = Model()
        outer = made("DiLoCo", model.parameters(), transport, every=2)
        for number in range(4):
            step(model, outer, number, transport.rank)
        agreed, there = copy.deepcopy(model), outer.state_dict()
        step(model, outer, 4, transport.rank)
        return agreed, there, model.state_dict(), outer.state_dict()

    old = [end.result() for end in in_threads(3, before)]
    assert same(old[0][0], old[2][0])

    def after(transport, middle):
        agreed, there, parameters, state = old[2 if middle else 0]
        model = copy.deepcopy(agreed)
        outer = made("DiLoCo", model.parameters(), transport, every=2)
        if middle:
            model.load_state_dict(parameters)
            outer.load_state_dict(state)
            assert outer.steps == 5 and not same(model, agreed)
            outer.rewind()
        else:
            outer.load_state_dict(there)
        assert outer.steps == 4 and same(model, agreed)
        for number in range(5, 9):
            step(model, outer, number, transport.rank)
        return model

    ends = [[end.result() for end in in_threads(2, lambda t, m=m: after(t, m))] for m in (True, False)]
    assert same(ends[0][0], ends[0][1]) and same(ends[0][0], ends[1][0])
