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

    plain = gt.AdamW([{"params": w[:1]}, {"params": w[1:]}], lr=0.1)
    wanted = "exp_avg.*is torch.uint8, must be torch.float32"
    with pytest.raises(gradwire.InvalidArgument, match=wanted):
        plain.load_state_dict(before)
    plain.step()
    wanted = "exp_avg.*is torch.float32, must be torch.uint8 as state of 8 bits is"
    with pytest.raises(gradwire.InvalidArgument, match=wanted):
        gt.AdamW([{"params": w[:1]}, {"params": w[1:]}], state="8bit").load_state_dict(
            plain.state_dict())
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
