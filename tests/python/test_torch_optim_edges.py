"""gradwire.torch's optimizers where torch or the user reaches into them: a look at the state before the first
step, and state that somebody else has put there."""

import pytest

torch = pytest.importorskip("torch", reason="torch is an optional extra")

from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict  # noqa: E402

import gradwire  # noqa: E402
import gradwire.torch as gt  # noqa: E402

KINDS = {
    "SGD": lambda p: gt.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: gt.AdamW(p, lr=0.1),
    "LARS": lambda p: gt.LARS(p, lr=0.1),
    "LAMB": lambda p: gt.LAMB(p, lr=0.1, weight_decay=0.1),
}
kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@pytest.mark.parametrize("keyword, says", [
    ("fused", "AdamW: unknown keyword 'fused' of torch.optim: a step is one call anyhow, leave it out; "
     "known: params, lr, betas, eps, weight_decay, max_grad_norm, master, state, threads"),
    ("foreach", "AdamW: unknown keyword 'foreach' of torch.optim: a step is one call anyhow, leave it out; "),
    ("amsgrad", "AdamW: unknown keyword 'amsgrad' of torch.optim, which is not there; known: params, lr, "),
    ("wd", "AdamW: unknown keyword 'wd' (did you mean 'weight_decay'?); known: params, lr, "),
    ("nesterov", "AdamW: unknown keyword 'nesterov'; known: params, lr, "),
])  # fmt: skip
def test_a_keyword_that_an_optimizer_does_not_take_is_answered_by_those_it_does(keyword, says):
    for kind in (gradwire.InvalidArgument, TypeError):  # TypeError: what Python itself raises
        with pytest.raises(kind) as refused:
            gt.AdamW([torch.nn.Parameter(torch.ones(3))], lr=0.1, **{keyword: True})
        assert str(refused.value).startswith(says)


def test_a_class_made_of_an_optimizer_has_keywords_of_its_own():
    class Mine(gt.SGD):
        def __init__(self, params, **settings):
            self.mine = settings.pop("mine")
            super().__init__(params, **settings)

    assert Mine([torch.nn.Parameter(torch.ones(3))], lr=0.1, mine=3).mine == 3


def trained(make, look):
    torch.manual_seed(4)
    model = torch.nn.Linear(6, 3)
    optimizer = make(model.parameters())
    if look:
        found = get_optimizer_state_dict(model, optimizer)
        assert float(found["state"]["weight"]["step"]) == 0.0
        assert found["param_groups"][0]["lr"] == 0.1
    for step in range(3):
        optimizer.zero_grad()
        (model(torch.full((2, 6), 1.0 + step)) ** 2).sum().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@kinds
def test_a_look_at_the_state_before_the_first_step_changes_no_bit(make):
    for a, b in zip(trained(make, look=True), trained(make, look=False)):
        assert torch.equal(a, b)


def steps_of_both(ours, theirs, mine, peer, count, start=0):
    for step in range(start, start + count):
        gradient = torch.arange(1.0, 6.0) * (-1) ** step
        mine.grad, peer.grad = gradient.clone(), gradient.clone()
        ours.step(), theirs.step()
    torch.testing.assert_close(mine.detach(), peer.detach(), rtol=1e-6, atol=1e-6)


def pair():
    mine, peer = torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(5))
    return gt.AdamW([mine], lr=0.1), torch.optim.AdamW([peer], lr=0.1), mine, peer


def test_a_first_step_of_rate_0_with_gradients_counts_as_in_torch():
    ours, theirs, mine, peer = pair()
    for each in (ours, theirs):  # a warm-up that begins at 0
        each.param_groups[0]["lr"] = 0.0
    steps_of_both(ours, theirs, mine, peer, 1)
    assert int(ours.state[mine]["step"]) == int(theirs.state[peer]["step"]) == 1
    for each in (ours, theirs):
        each.param_groups[0]["lr"] = 0.1
    steps_of_both(ours, theirs, mine, peer, 3, start=1)


@pytest.mark.parametrize("change", [
    lambda o, p: o.state[p].update(exp_avg=torch.full((5,), 3.0)),
    lambda o, p: o.state[p].update(step=torch.tensor(40.0)),
    lambda o, p: o.state[p]["exp_avg_sq"].fill_(7.0),
    lambda o, p: o.state.update({p: {"step": torch.tensor(9.0), "exp_avg": torch.ones(5),
                                     "exp_avg_sq": torch.full((5,), 2.0)}}),
    lambda o, p: o.state.clear(),
], ids=["a moment", "a count", "in place", "all of a parameter", "nothing is left"])  # fmt: skip
@pytest.mark.parametrize("before", [0, 2])
def test_state_that_somebody_replaces_is_stepped_from_as_in_torch(before, change):
    ours, theirs, mine, peer = pair()
    steps_of_both(ours, theirs, mine, peer, before)
    if before == 0:  # torch makes the rest of the state at the first step alone where there is none
        full = {"step": torch.tensor(0.0), "exp_avg": torch.zeros(5), "exp_avg_sq": torch.zeros(5)}
        ours.state[mine], theirs.state[peer] = dict(full), {k: v.clone() for k, v in full.items()}
    change(ours, mine), change(theirs, peer)
    steps_of_both(ours, theirs, mine, peer, 3, start=before)
    for key, value in theirs.state[peer].items():
        torch.testing.assert_close(ours.state[mine][key].float(), value, rtol=1e-6, atol=1e-6)


def test_state_that_does_not_fit_is_refused_by_name_and_changes_nothing():
    ours, theirs, mine, peer = pair()
    steps_of_both(ours, theirs, mine, peer, 2)
    kept, before = dict(ours.state[mine]), mine.detach().clone()
    for key, value, words in (
        ("exp_avg", torch.ones(1), r"state\['exp_avg'\]: is \(1,\), must have its parameter's shape"),
        ("exp_avg_sq", torch.ones(5, dtype=torch.int32), r"state\['exp_avg_sq'\]: is torch.int32"),
        ("step", torch.tensor(-1.0), r"state\['step'\]: is -1.0, must be a whole number"),
    ):
        ours.state[mine][key] = value
        for call in (ours.step, ours.state_dict):
            with pytest.raises(gradwire.InvalidArgument, match=words):
                call()
        ours.state[mine][key] = kept[key]
    assert torch.equal(mine.detach(), before)
    del ours.state[mine]["exp_avg"]
    with pytest.raises(gradwire.InvalidArgument, match=r"state\['exp_avg'\]: is missing"):
        ours.step()
    ours.state[mine]["exp_avg"] = kept["exp_avg"]
    ours.state[mine]["mine"] = "stays"  # what scripts keep there
    ours.state[mine]["exp_avg"] = kept["exp_avg"].clone()
    steps_of_both(ours, theirs, mine, peer, 2, start=2)
    assert ours.state[mine]["mine"] == "stays"


def test_codes_of_8_bits_that_somebody_replaces_by_floats_become_codes():
    torch.manual_seed(1)
    start, gradient, moment = torch.randn(5000), torch.randn(5000).sign(), torch.rand(5000) + 0.5
    ends = []
    for state in ("8bit", "float32"):
        p = torch.nn.Parameter(start.clone())
        optimizer = gt.AdamW([p], lr=0.01, state=state)
        for step in range(3):
            if step == 1:
                optimizer.state[p]["exp_avg"] = moment.clone()
                optimizer.state[p].pop("exp_avg.scale", None)
            p.grad = gradient.clone()
            optimizer.step()
        assert optimizer.state[p]["exp_avg"].dtype == (torch.uint8 if state == "8bit" else torch.float32)
        ends.append(p.detach())
    off, moved = ends[0] - ends[1], ends[1] - start
    assert float(off.abs().mean()) < 0.03 * float(moved.abs().mean())
