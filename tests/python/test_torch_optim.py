"""gradwire.torch's optimizers: torch.optim's numbers where it has them, its habits everywhere."""

import copy
import io

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an optional extra")

from torch_optimizers import OPTIMIZERS, SHAPES  # noqa: E402

import gradwire  # noqa: E402
import gradwire.torch as gt  # noqa: E402

SEED = 20261122
every = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


@pytest.fixture(autouse=True)
def seeded():
    print(f"seed {SEED}")
    torch.manual_seed(SEED)


def parameters(dtype=torch.float32):
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def copies(of):
    return [torch.nn.Parameter(p.detach().clone()) for p in of]


def fill(*sets):
    """The same new gradients for all sets, as new tensors."""
    for group in zip(*sets):
        gradient = torch.randn(group[0].shape)
        for p in group:
            p.grad = torch.empty_like(p).copy_(gradient)


def same(ours, theirs, tolerance=0.0):
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("ours, theirs", [
    (lambda p: gt.SGD(p, lr=0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
    (lambda p: gt.SGD(p, 0.05, 0.8, 0.01, True),
     lambda p: torch.optim.SGD(p, 0.05, momentum=0.8, weight_decay=0.01, nesterov=True)),
    (lambda p: gt.AdamW(p, lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01)),
    (lambda p: gt.AdamW(p, 0.01, (0.8, 0.95), 1e-6, 0.1),
     lambda p: torch.optim.AdamW(p, 0.01, (0.8, 0.95), 1e-6, 0.1)),
])
def test_two_hundred_steps_are_those_of_torch(ours, theirs):
    mine, peers = parameters(), None
    peers = copies(mine)
    a, b = ours(mine), theirs(peers)
    for step in range(200):
        fill(mine, peers)
        if step % 7 == 3:  # a parameter that a step did not use
            mine[4].grad = peers[4].grad = None
        a.step()
        b.step()
    same(mine, peers, 2e-5)


def test_groups_and_a_schedule_that_moves_all_of_their_settings_are_torchs():
    def build(p, module):
        groups = [{"params": p[:2], "lr": 0.02, "betas": (0.7, 0.9)},
                  {"params": p[2:4], "weight_decay": 0.0, "eps": 1e-3}]
        optimizer = module.AdamW(groups, lr=0.01)
        optimizer.add_param_group({"params": p[4:], "weight_decay": 0.3})
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=40)
        return optimizer, schedule
    mine = parameters()
    peers = copies(mine)
    ours, our_schedule = build(mine, gt)
    theirs, their_schedule = build(peers, torch.optim)
    for _ in range(40):
        fill(mine, peers)
        for optimizer in (ours, theirs):
            optimizer.step()
        our_schedule.step() if our_schedule.last_epoch < 39 else None
        their_schedule.step() if their_schedule.last_epoch < 39 else None
    assert ours.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
    same(mine, peers, 2e-5)


@every
def test_steps_are_those_of_the_arrays_class(make):
    mine = parameters()
    optimizer = make(mine)
    arrays = [p.detach().numpy().copy() for p in mine]
    gradients = [np.zeros_like(a) for a in arrays]
    core = getattr(gradwire, type(optimizer).__name__)(
        arrays, gradients, optimizer.param_groups[0]["lr"],
        state="8bit" if "state=8bit" in optimizer.spec else "float32",
        **{"AdamW": {"weight_decay": 0.01}}.get(type(optimizer).__name__, {}))
    for _ in range(3):
        fill(mine)
        for array, p in zip(gradients, mine):
            array[...] = p.grad.numpy()
        optimizer.step()
        core.step()
    for array, p in zip(arrays, mine):
        np.testing.assert_array_equal(array, p.detach().numpy())


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("master", ["remainder", "float32"])
def test_parameters_of_16_bits_follow_exact_masters(make, dtype, master):
    halves = parameters(dtype)
    floats = [torch.nn.Parameter(p.detach().float()) for p in halves]
    a, b = make(halves, master=master), make(floats)
    for _ in range(20):
        fill(halves)
        for h, f in zip(halves, floats):
            f.grad = h.grad.float()
        a.step()
        b.step()
    for h, f in zip(halves, floats):  # as near as the type can be to what float32 gave
        gap = (h.detach().float() - f.detach()).abs()
        nearest = (f.detach().to(dtype).float() - f.detach()).abs()
        assert (gap <= nearest).all()
    assert {p.dtype for p in halves} == {dtype}
    assert a.state[halves[0]]["step"].item() == 20


@every
def test_any_order_of_elements_gives_the_same_steps(make):
    mine = parameters()
    peers = copies(mine)
    mine[5].data = mine[5].data.contiguous(memory_format=torch.channels_last)
    mine[0].data = mine[0].data.t().contiguous().t()
    a, b = make(mine), make(peers)
    for step in range(3):
        fill(mine, peers)
        if step == 1:  # not in the parameter's order
            mine[5].grad = mine[5].grad.contiguous()
        a.step()
        b.step()
    # A sum of squares has another order, and with it the last bits of a ratio.
    same(mine, peers, 0.0 if type(a).__name__ in ("SGD", "AdamW") else 1e-6)
    assert a.state[mine[5]]["step"].item() == 3


@every
def test_a_checkpoint_resumes_bit_for_bit(make):
    mine = parameters(torch.bfloat16)
    optimizer = make(mine)
    for _ in range(3):
        fill(mine)
        optimizer.step()
    file = io.BytesIO()
    torch.save({"w": mine, "o": optimizer.state_dict()}, file)
    file.seek(0)
    with torch.serialization.safe_globals([torch.nn.Parameter]):
        loaded = torch.load(file, weights_only=True)
    again = [torch.nn.Parameter(p.detach()) for p in loaded["w"]]
    resumed = make(again)
    resumed.load_state_dict(loaded["o"])
    twin = copy.deepcopy((mine, optimizer))
    for _ in range(3):
        fill(mine, again, twin[0])
        for o in (optimizer, resumed, twin[1]):
            o.step()
    same(mine, again)
    same(mine, twin[0])
    for key, value in optimizer.state[mine[4]].items():
        assert torch.equal(value, resumed.state[again[4]][key]), key


@pytest.mark.parametrize("name, settings", [("SGD", {"momentum": 0.9}), ("AdamW", {}), ("SGD", {})])
def test_a_checkpoint_of_torchs_own_goes_on(name, settings):
    theirs = parameters()
    peer = getattr(torch.optim, name)(theirs, lr=0.01, **settings)
    for _ in range(3):
        fill(theirs)
        peer.step()
    mine = copies(theirs)
    optimizer = getattr(gt, name)(mine, lr=1.0, **settings)
    optimizer.load_state_dict(peer.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.01
    for _ in range(20):
        fill(mine, theirs)
        optimizer.step()
        peer.step()
    same(mine, theirs, 1e-5)


@every
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_gradient_changes_nothing(make, bad):
    mine = parameters()
    optimizer = make([(f"layer.{i}", p) for i, p in enumerate(mine)])
    fill(mine)
    optimizer.step()
    before = copy.deepcopy((mine, optimizer.state_dict()))
    fill(mine)
    mine[4].grad[4999] = bad
    with pytest.raises(gradwire.NonFiniteGradient, match="layer.4.*4999"):
        optimizer.step()
    same(mine, before[0])
    for i, state in before[1]["state"].items():
        for key, value in state.items():
            assert torch.equal(optimizer.state_dict()["state"][i][key], value)


@every
def test_a_grad_scaler_skips_bad_steps_and_hands_over_its_scale(make):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    mine = parameters()
    peers = copies(mine)
    optimizer, plain = make(mine), make(peers)
    for step in range(8):
        fill(mine, peers)
        scaled = [p.grad * scaler.get_scale() for p in mine]
        for p, g in zip(mine, scaled):
            p.grad = g
        scaler.scale(torch.zeros(()))  # as loss.backward() would have
        if step == 4:
            mine[0].grad[3, 3] = float("inf")
        if step == 6:
            scaler.unscale_(optimizer)  # as before clipping
        scaler.step(optimizer)
        scaler.update()
        if step != 4:
            plain.step()
        assert scaler.get_scale() == [1024, 1024, 2048, 2048, 1024, 1024, 1024, 2048][step]
    same(mine, peers)  # powers of two: the same bits


def test_a_scale_below_one_does_not_overflow():
    scaler = torch.amp.GradScaler("cpu", init_scale=0.25)
    mine = parameters()
    peers = copies(mine)
    a, b = gt.SGD(mine, lr=0.1), gt.SGD(peers, lr=0.1)
    fill(mine, peers)
    for p in mine:
        p.grad *= 0.25
    scaler.scale(torch.zeros(()))
    scaler.step(a)
    b.step()
    same(mine, peers)


def test_a_closure_zero_grad_and_nothing_to_do():
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = gt.SGD([w], lr=0.5)
    optimizer.step()  # no gradient anywhere
    assert torch.equal(w, torch.ones(3))

    def closure():
        optimizer.zero_grad()
        loss = (w * w).sum() / 2
        loss.backward()
        return loss
    assert optimizer.step(closure).item() == 1.5
    assert torch.equal(w, torch.full((3,), 0.5))


def test_a_momentum_a_dtype_and_an_order_may_change_on_the_way():
    mine = parameters()
    peers = copies(mine)
    a, b = gt.SGD(mine, lr=0.1), torch.optim.SGD(peers, lr=0.1)
    fill(mine, peers)
    a.step(), b.step()
    assert "momentum_buffer" not in a.state[mine[0]]
    a.param_groups[0]["momentum"] = b.param_groups[0]["momentum"] = 0.5
    for _ in range(3):
        fill(mine, peers)
        a.step(), b.step()
    same(mine, peers, 1e-6)
    for p in mine:  # as model.bfloat16() does: the memory is another, of another size
        p.data = p.data.bfloat16()
    before = [p.detach().clone() for p in mine]
    fill(mine)
    a.step()
    assert all(p.dtype == torch.bfloat16 for p in mine)
    assert not torch.equal(before[0], mine[0])


def test_values_written_by_others_become_the_masters():
    w = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = gt.SGD([w], lr=0.001)
    for _ in range(3):  # less than half of a bfloat16 step each
        w.grad = torch.ones_like(w)
        optimizer.step()
    assert torch.equal(w, torch.full_like(w, 0.99609375))
    with torch.no_grad():
        w.fill_(1.0)
    optimizer.values_changed()
    w.grad = torch.ones_like(w)
    optimizer.step()
    assert torch.equal(w, torch.ones_like(w))  # 0.999 is nearest to 1


@pytest.mark.parametrize("call, message", [
    (lambda: gt.SGD([torch.nn.Parameter(torch.ones(2, dtype=torch.float64))]), "is torch.float64"),
    (lambda: gt.SGD([torch.nn.Parameter(torch.ones(4, 4)[:, 1])]), "do not fill one piece"),
    (lambda: gt.SGD([torch.nn.Parameter(torch.empty(2, device="meta"))]), "is on meta"),
    (lambda: gt.SGD([torch.nn.Parameter(torch.ones(2))], lr=-1.0), "lr: is -1"),
    (lambda: gt.SGD([torch.nn.Parameter(torch.ones(2))], max_grad_norm=-1.0), "max_grad_norm is -1"),
    (lambda: gt.LAMB([torch.nn.Parameter(torch.ones(2))], preset="none"), "preset: unknown name"),
    (lambda: gt.SGD([torch.nn.Parameter(torch.ones(2))], master="half"), "master is 'half'"),
])
def test_bad_requests_are_refused_by_name(call, message):
    with pytest.raises(gradwire.InvalidArgument, match=message):
        call()


def test_settings_out_of_range_at_a_step_change_nothing():
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = gt.AdamW([w], lr=0.1)
    for key, bad, message in [("lr", float("nan"), "lr: is nan"), ("betas", (1.0, 0.9), "beta1 is 1"),
                              ("weight_decay", -1.0, "weight_decay is -1"), ("eps", 0.0, "epsilon is 0")]:
        good = optimizer.param_groups[0][key]
        optimizer.param_groups[0][key] = bad
        w.grad = torch.ones(3)
        with pytest.raises(gradwire.InvalidArgument, match=message):
            optimizer.step()
        optimizer.param_groups[0][key] = good
    assert torch.equal(w, torch.ones(3))
    w.grad = torch.ones(3).to_sparse()
    with pytest.raises(gradwire.InvalidArgument, match="layout is torch.sparse_coo"):
        optimizer.step()
    optimizer.zero_grad()
    w.grad = torch.ones(3)
    optimizer.step()
    torch.testing.assert_close(w.detach(), torch.full((3,), 0.9 - 0.001))


def damaged(state):
    def change(key, value):
        result = copy.deepcopy(state)
        result["state"][0][key] = value
        return result
    yield "step.*is -1", change("step", torch.tensor(-1.0))
    yield "exp_avg.*is \\(2,\\), must have", change("exp_avg", torch.ones(2))
    yield "exp_avg.*is torch.int64", change("exp_avg", torch.ones(3, dtype=torch.int64))
    yield "max_exp_avg_sq.*is no state of adamw", change("max_exp_avg_sq", torch.ones(3))
    without = copy.deepcopy(state)
    del without["state"][0]["exp_avg_sq"]
    yield "exp_avg_sq.*is missing", without
    amsgrad = copy.deepcopy(state)
    amsgrad["param_groups"][0]["amsgrad"] = True
    yield "amsgrad is True, must be False", amsgrad


def test_a_state_of_something_else_is_refused_and_changes_nothing():
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = gt.AdamW([w], lr=0.1)
    w.grad = torch.ones(3)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    for message, state in damaged(before):
        with pytest.raises(gradwire.InvalidArgument, match=message):
            optimizer.load_state_dict(state)
        after = optimizer.state_dict()
        assert after["param_groups"] == before["param_groups"]
        for key, value in before["state"][0].items():
            assert torch.equal(after["state"][0][key], value)
    with pytest.raises(ValueError):  # torch's own check
        gt.AdamW([w, torch.nn.Parameter(torch.ones(1))]).load_state_dict(before)
