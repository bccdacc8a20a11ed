"""1-bit Adam and 1-bit LAMB: both stages against the formula, and ranks whose plan changes by itself."""


import numpy as np
import pytest
from rank_processes import in_threads

import gradwire

SEED = 20261123


def adam(w, state, gradients, t, freeze, lr):
    """arXiv 2102.02888, algorithm 1, without bias correction, on the gradients of all ranks."""
    m, v = state.setdefault("m", np.zeros_like(w)), state.setdefault("v", np.zeros_like(w))
    mean = np.mean(gradients, axis=0)
    if t <= freeze:
        state["v"] = v = 0.999 * v + 0.001 * mean * mean
        state["m"] = 0.9 * m + 0.1 * mean
    else:
        state["m"] = np.mean([0.9 * m + 0.1 * g for g in gradients], axis=0)
    return w - lr * state["m"] / (np.sqrt(v) + 1e-8)


def test_both_stages_follow_the_paper():
    print(f"seed {SEED}")
    random = np.random.default_rng(SEED)
    start = [random.standard_normal(n).astype(np.float32) for n in (5, 3000)]
    ranks = [[w.copy() for w in start] for _ in range(3)]
    gradients = [[np.zeros_like(w) for w in start] for _ in range(3)]
    optimizers = [gradwire.OneBitAdam(w, g, lr=0.01, freeze_step=4, preset="paper")
                  for w, g in zip(ranks, gradients)]
    exact, states = [w.astype(np.float64) for w in start], [{}, {}]
    for t in range(1, 13):
        for g in gradients:
            for part in g:
                part[...] = random.standard_normal(part.shape)
        exact = [adam(w, s, [g[i].astype(np.float64) for g in gradients], t, 4, 0.01)
                 for i, (w, s) in enumerate(zip(exact, states))]
        for optimizer in optimizers:
            assert optimizer.exchanges == ("gradients" if t <= 4 else "momentum")
            optimizer.prepare()
        for i in range(2):
            mean = np.mean([g[i] for g in gradients], axis=0, dtype=np.float64)
            for g in gradients:
                g[i][...] = mean
        for optimizer in optimizers:
            optimizer.step()
        for rank in ranks:
            for w, e, other in zip(rank, exact, ranks[0]):
                np.testing.assert_array_equal(w, other)
                np.testing.assert_allclose(w, e, atol=2e-5)


def test_a_state_goes_on_behind_the_freeze():
    w, g = np.ones(4, np.float32), np.ones(4, np.float32)
    optimizer = gradwire.OneBitLAMB([w], [g], lr=0.1, freeze_step=2)
    for _ in range(3):
        g[...] = [1, 2, -3, 4]
        optimizer.prepare(), optimizer.step()
    state = optimizer.state_dict()
    assert state["scalars"]["0"] == {"step": 3, "variance_step": 2, "coefficients": 2}
    assert sorted(state["tensors"]["0"]) == ["coefficient", "exp_avg", "exp_avg_sq",
                                             "exp_avg_sq_fresh", "factor", "momentum_scale"]
    again, gradient = w.copy(), np.ones(4, np.float32)
    resumed = gradwire.OneBitLAMB([again], [gradient], lr=0.5, freeze_step=2)
    assert resumed.exchanges == "gradients"
    resumed.load_state_dict(state)
    assert resumed.exchanges == "momentum"
    for each, memory in ((optimizer, g), (resumed, gradient)):
        memory[...] = [2, 1, 1, 1]
        each.prepare(), each.step()
    np.testing.assert_array_equal(w, again)


def test_what_is_refused_says_why():
    w, g = np.ones(4, np.float32), np.ones(4, np.float32)
    optimizer = gradwire.OneBitAdam([w], [g], lr=0.1, freeze_step=1)
    optimizer.step()
    with pytest.raises(gradwire.InvalidArgument, match=r"apply\(\) without prepare\(\)"):
        optimizer.step()
    optimizer.prepare()
    with pytest.raises(gradwire.InvalidArgument, match="gradient_scale is 0.5, must be 1, as prepare"):
        optimizer.step(gradient_scale=0.5)
    optimizer.step()  # what prepare() wrote is still there
    g[2] = np.nan
    optimizer.prepare()
    assert np.isnan(g[2])
    with pytest.raises(gradwire.NonFiniteGradient, match="'0': element 2 is nan"):
        optimizer.step()
    with pytest.raises(gradwire.InvalidArgument, match="freeze_step is 0, must be a whole number"):
        gradwire.OneBitAdam([w], [g], lr=0.1, freeze_step=0)


@pytest.mark.parametrize("name", ["OneBitAdam", "OneBitLAMB"])
def test_a_loss_scale_changes_no_bit(name):
    random = np.random.default_rng(SEED)
    plain, scaled = np.ones(5000, np.float32), np.ones(5000, np.float32)
    gradients = np.zeros_like(plain), np.zeros_like(plain)
    one, other = (getattr(gradwire, name)([w], [g], lr=0.1, freeze_step=2, state="8bit")
                  for w, g in zip((plain, scaled), gradients))
    for step in range(5):
        gradients[0][...] = random.standard_normal(5000)
        gradients[1][...] = gradients[0] * 512
        one.prepare(), one.step()
        other.prepare(1 / 512), other.step(gradient_scale=1 / 512)
        np.testing.assert_array_equal(plain, scaled)
    np.testing.assert_array_equal(*gradients)  # of momenta
    with pytest.raises(gradwire.InvalidArgument, match=r"gradient_scale is 2, must be in \(0, 1\]"):
        other.prepare(2.0)


def test_a_state_that_is_loaded_wants_another_prepare():
    w, g = np.ones(4, np.float32), np.ones(4, np.float32)
    optimizer = gradwire.OneBitAdam([w], [g], lr=0.1, freeze_step=1)
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.prepare()
    optimizer.load_state_dict(state)
    before = w.copy()
    with pytest.raises(gradwire.InvalidArgument, match=r"apply\(\) without prepare\(\)"):
        optimizer.step()
    np.testing.assert_array_equal(w, before)
    optimizer.prepare()
    optimizer.step()


@pytest.mark.parametrize("name", ["OneBitAdam", "OneBitLAMB"])
def test_torch_ranks_step_alike_under_a_loss_scale(name):
    torch = pytest.importorskip("torch", reason="torch is an optional extra")
    import gradwire.torch as gt

    def train(transport, scale):
        random = np.random.default_rng(SEED + transport.rank)
        p = torch.nn.Parameter(torch.ones(30, 20))
        shapes = [("p", (30, 20))]
        reducer = gradwire.Reducer(gradwire.make_plan(shapes, "none"), transport)
        plan = gradwire.make_plan(shapes, "1bit", exchange="two_shot")
        optimizer = getattr(gt, name)([p], reducer, plan, lr=0.01, freeze_step=3)
        for _ in range(6):
            p.grad = torch.from_numpy(random.standard_normal((30, 20)).astype(np.float32)) * scale
            assert optimizer.step(gradient_scale=1 / scale)
        return p.detach()

    plain, scaled = ([end.result() for end in in_threads(2, lambda t, s=s: train(t, s))]
                     for s in (1.0, 256.0))
    assert torch.equal(scaled[0], scaled[1]) and torch.equal(scaled[0], plain[0])


@pytest.mark.parametrize("name", ["OneBitAdam", "OneBitLAMB"])
def test_torch_ranks_change_the_plan_stay_equal_and_learn(name):
    torch = pytest.importorskip("torch", reason="torch is an optional extra")
    import copy

    import gradwire.torch as gt

    ranks, freeze, steps = 2, 30, 90
    torch.manual_seed(SEED)
    first = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    inputs = torch.randn(256, 20)
    targets = torch.sin(inputs.sum(1, keepdim=True))

    def train(transport):
        rank = transport.rank
        model = copy.deepcopy(first)
        shapes = [(n, tuple(p.shape)) for n, p in model.named_parameters()]
        plan = gradwire.make_plan(shapes, "1bit", exchange="two_shot")
        reducer = gradwire.Reducer(gradwire.make_plan(shapes, "none"), transport)
        optimizer = getattr(gt, name)(model.parameters(), reducer, plan, lr=5e-3,
                                      freeze_step=freeze)
        mine = slice(rank * 128, rank * 128 + 128)
        losses = []
        for step in range(steps):
            if step == 60:  # a checkpoint, and what goes on from it
                state = optimizer.state_dict()
                optimizer = getattr(gt, name)(
                    model.parameters(),
                    gradwire.Reducer(gradwire.make_plan(shapes, "none"), transport), plan,
                    lr=1e-3, freeze_step=freeze)
                optimizer.load_state_dict(state)
                assert optimizer.lr == 5e-3
            assert optimizer.exchanges == ("gradients" if step < freeze else "momentum")
            loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
            model.zero_grad()
            loss.backward()
            assert optimizer.step()
            losses.append(loss.item())
        model.zero_grad()
        with pytest.raises(gradwire.InvalidArgument, match=r"parameters\[0\]: has no gradient"):
            optimizer.step()
        return losses, [p.detach().clone() for p in model.parameters()]

    results = [end.result() for end in in_threads(ranks, train, deadline=120.0)]
    for a, b in zip(results[0][1], results[1][1]):
        assert torch.equal(a, b)
    assert results[0][0][freeze] < 0.9 * results[0][0][0]
    assert results[0][0][-1] < 0.95 * results[0][0][freeze]


def test_torch_refuses_what_does_not_fit_its_plans_before_any_step():
    torch = pytest.importorskip("torch", reason="torch is an optional extra")
    import gradwire.torch as gt

    def plan_of(*shapes, spec="none"):
        return gradwire.make_plan([(str(i), shape) for i, shape in enumerate(shapes)], spec)

    reducer = gradwire.Reducer(plan_of((20, 10), (3,)), gradwire.make_transport("in_process"))
    fits = [torch.nn.Parameter(torch.ones(20, 10)), torch.nn.Parameter(torch.ones(3))]
    plan = plan_of((20, 10), (3,), spec="1bit")
    for parameters, second, words in (
            (fits, "1bit", "plan: is a str, must be a Plan"),
            (fits, plan_of((20, 10), spec="1bit"), "of other parameters than the reducer's"),
            (fits, plan_of((20, 11), (3,), spec="1bit"), "of other parameters than the reducer's"),
            (fits[:1], plan, "parameters: are 1, must be the plan's 2"),
            ([torch.nn.Parameter(torch.ones(10)), fits[1]], plan,
             r"has the shape \(10,\), must have \(20, 10\)"),
    ):  # fmt: skip
        with pytest.raises(gradwire.InvalidArgument, match=words):
            gt.OneBitAdam(parameters, reducer, second, freeze_step=1)
    optimizer = gt.OneBitAdam(fits, reducer, plan, freeze_step=1)
    for _ in range(3):
        for p in fits:
            p.grad = torch.ones_like(p)
        assert optimizer.step()
