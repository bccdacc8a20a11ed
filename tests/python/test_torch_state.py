"""State of eight bits in gradwire.torch's optimizers, and checkpoints of it."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is an optional extra")

import gradwire  # noqa: E402
import gradwire.torch as gt  # noqa: E402


def test_state_of_8_bits_is_codes_and_scales_but_in_groups_that_are_full():
    w = [torch.nn.Parameter(torch.ones(100, 50)) for _ in range(2)]
    groups = [{"params": w[:1]}, {"params": w[1:], "full_state": True}]
    optimizer = gt.AdamW(groups, lr=0.1, state="8bit")
    for p in w:
        p.grad = torch.full_like(p, 0.5)
    optimizer.step()
    coded, full = (optimizer.state[p] for p in w)
    assert coded["exp_avg"].dtype == torch.uint8 and coded["exp_avg"].shape == (100, 50)
    assert coded["exp_avg_sq.scale"].shape == (20,)
    assert full["exp_avg"].dtype == torch.float32 and "exp_avg.scale" not in full
    before = copy.deepcopy(optimizer.state_dict())
    optimizer.param_groups[1]["full_state"] = False
    with pytest.raises(gradwire.InvalidArgument, match="group 1: full_state is 0, expected 1"):
        optimizer.step()

    short = copy.deepcopy(before)
    short["state"][0]["exp_avg.scale"] = torch.ones(19)
    with pytest.raises(gradwire.InvalidArgument, match=r"is \(19,\), must have the shape \(20,\)"):
        optimizer.load_state_dict(short)
    del short["state"][0]["exp_avg.scale"]
    with pytest.raises(gradwire.InvalidArgument, match=r"exp_avg.scale'\]: is missing"):
        optimizer.load_state_dict(short)


def test_state_of_8_bits_stays_in_the_order_of_elements_it_was_made_in():
    def made(order):
        torch.manual_seed(1)
        w = torch.nn.Parameter(torch.randn(32, 16, 4, 4).contiguous(memory_format=order))
        return w, gt.SGD([w], lr=0.1, momentum=0.9, state="8bit")

    w, optimizer = made(torch.contiguous_format)
    w.grad = torch.randn(w.shape)
    optimizer.step()
    other, loaded = made(torch.channels_last)
    with pytest.raises(gradwire.InvalidArgument, match="momentum_buffer.*its strides are .*another order"):
        loaded.load_state_dict(optimizer.state_dict())
    same, loaded = made(torch.contiguous_format)
    with torch.no_grad():
        same.copy_(w)
    loaded.load_state_dict(optimizer.state_dict())
    for p, of in ((w, optimizer), (same, loaded)):
        p.grad = torch.ones_like(p)
        of.step()
    assert torch.equal(w, same)
    w.data = w.data.contiguous(memory_format=torch.channels_last)
    before = w.detach().clone()
    with pytest.raises(gradwire.InvalidArgument, match="another order of elements"):
        optimizer.step()
    assert torch.equal(w, before)


def trained(made, steps=3):
    w, optimizer = made
    torch.manual_seed(7)
    for _ in range(steps):
        w.grad = torch.randn(w.shape).contiguous(memory_format=torch.contiguous_format)
        optimizer.step()
    return w, optimizer


def made_with(order=torch.contiguous_format, **options):
    torch.manual_seed(1)
    w = torch.nn.Parameter(torch.randn(32, 16, 4, 4).contiguous(memory_format=order))
    return w, gt.AdamW([w], lr=0.01, **options)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_state_takes_the_form_of_the_optimizer_that_loads_it(order):
    w, coded = trained(made_with(state="8bit"))
    saved = copy.deepcopy(coded.state_dict())
    other, plain = made_with(order)  # floats follow into any order of elements
    with torch.no_grad():
        other.copy_(w)
    plain.load_state_dict(saved)
    mine = plain.state_dict()["state"][0]
    arrays, back = [t.numpy().ravel() for t in (w.detach(), torch.zeros(8192))], saved["state"][0]
    free = gradwire.AdamW([arrays[0].copy()], [arrays[1]], 0.01)  # the same by the other way in
    state = free.state_dict()
    state["spec"] = "adamw:state=8bit"
    state["tensors"]["0"] = {k: v.numpy().ravel() for k, v in back.items() if k != "step"}
    state["scalars"]["0"] = {"step": 3}
    free.load_state_dict(state)
    for key in ("exp_avg", "exp_avg_sq"):
        assert mine[key].dtype == torch.float32 and f"{key}.scale" not in mine
        assert (mine[key].numpy().ravel() == free.state_dict()["tensors"]["0"][key]).all()
    # Back in the order that codes were made in they are what they were, to the value.
    again, coded_again = made_with(state="8bit")
    with torch.no_grad():
        again.copy_(w)
    coded_again.load_state_dict(plain.state_dict())
    for p, of in ((w, coded), (again, coded_again)):
        p.grad = torch.ones_like(p)
        of.step()
    assert torch.equal(w, again)
    assert coded_again.state[again]["exp_avg"].dtype == torch.uint8


def test_a_torch_checkpoint_becomes_8_bits_and_full_groups_stay_full():
    w = [torch.nn.Parameter(torch.randn(100, 50)) for _ in range(2)]
    reference = torch.optim.AdamW([{"params": w[:1]}, {"params": w[1:]}], lr=0.01)
    for p in w:
        p.grad = torch.randn(p.shape)
    reference.step()
    optimizer = gt.AdamW([{"params": w[:1]}, {"params": w[1:], "full_state": True}], state="8bit")
    saved = reference.state_dict()
    optimizer.load_state_dict(saved)
    assert "full_state" not in saved["param_groups"][1]
    coded, full = (optimizer.state[p] for p in w)
    assert coded["exp_avg"].dtype == torch.uint8 and coded["exp_avg_sq.scale"].shape == (20,)
    assert torch.equal(full["exp_avg"], reference.state[w[1]]["exp_avg"])
    reference.step(), optimizer.step()
    assert optimizer.state[w[0]]["step"] == 2


@pytest.mark.parametrize("key, value, says", [
    ("exp_avg.scale", torch.full((32,), float("nan")), "scale 0 is nan, must be 0 or a power of two"),
    ("exp_avg_sq.scale", torch.full((32,), -1.0), "scale 0 is -1"),
    ("exp_avg_sq.scale", torch.full((32,), 0.75), "scale 0 is 0.75"),
    ("step", torch.tensor(-3), "is -3.0, must be a whole number from 0 to 2"),
    ("step", torch.tensor(float("nan")), "is nan, must be a whole number"),
    ("step", torch.tensor(float("inf")), "is inf, must be a whole number"),
    ("step", torch.tensor(1e30), "is 1.*e.30, must be a whole number"),
    ("step", torch.tensor(0.5), "is 0.5, must be a whole number"),
])
def test_state_that_no_optimizer_writes_is_refused(key, value, says):
    w, coded = trained(made_with(state="8bit"))
    _, plain = trained(made_with())
    broken = copy.deepcopy(coded.state_dict())
    broken["state"][0][key] = value
    for optimizer in (coded, plain):
        before = copy.deepcopy(optimizer.state_dict()["state"][0])
        with pytest.raises(gradwire.InvalidArgument, match=says):
            optimizer.load_state_dict(broken)
        after = optimizer.state_dict()["state"][0]
        assert all(torch.equal(before[name], after[name]) for name in before)
