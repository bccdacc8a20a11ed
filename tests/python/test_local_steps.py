"""Local steps: the outer optimizer against its formula, and ranks that exchange once in many steps."""


import numpy as np
import pytest
from rank_processes import in_threads

import gradwire

SEED = 20261122


@pytest.mark.parametrize("settings, lr, momentum, nesterov", [
    ({}, 0.7, 0.9, True),
    ({"momentum": 0.5, "nesterov": False, "lr": 0.3}, 0.3, 0.5, False),
    ({"preset": "paper"}, 0.7, 0.9, True),
    ({"momentum": 0.0, "nesterov": False}, 1.0, 0.0, False),
    ({"preset": "sparseloco"}, 1.0, 0.0, False),
    ({"preset": "local-sgd"}, 1.0, 0.0, False),
])
def test_outer_steps_follow_the_paper(settings, lr, momentum, nesterov):
    print(f"seed {SEED}")
    random = np.random.default_rng(SEED)
    start = [random.standard_normal(n).astype(np.float32) for n in (5, 3000)]
    ranks = [[w.copy() for w in start] for _ in range(3)]
    gradients = [[np.full_like(w, np.nan) for w in start] for _ in range(3)]
    outers = [gradwire.DiLoCo(w, g, **settings) for w, g in zip(ranks, gradients)]
    theta = [w.astype(np.float64) for w in start]
    velocity = [np.zeros_like(t) for t in theta]
    for _ in range(20):
        for rank in ranks:
            for w in rank:
                w += 0.05 * random.standard_normal(w.shape).astype(np.float32)
        for i, t in enumerate(theta):
            mean = t - np.mean([rank[i].astype(np.float64) for rank in ranks], axis=0)
            velocity[i] = momentum * velocity[i] + mean
            theta[i] = t - lr * (mean + momentum * velocity[i] if nesterov else velocity[i])
        for outer in outers:
            outer.prepare()
        for i in range(2):
            mean = np.mean([g[i] for g in gradients], axis=0, dtype=np.float64)
            for g in gradients:
                g[i][...] = mean
        for outer in outers:
            outer.step()
        for rank in ranks:
            for w, t, other in zip(rank, theta, ranks[0]):
                np.testing.assert_array_equal(w, other)
                np.testing.assert_allclose(w, t, atol=2e-5)


def test_a_state_goes_on_in_the_middle_of_local_steps():
    w, g = np.ones(4, np.float32), np.zeros(4, np.float32)
    outer = gradwire.DiLoCo([w], [g])
    w -= 0.5
    again = w.copy()
    resumed = gradwire.DiLoCo([again], [g.copy()], lr=0.1)
    resumed.load_state_dict(outer.state_dict())
    outer.prepare(), outer.step()
    resumed.prepare(), resumed.step()
    np.testing.assert_array_equal(g, np.full(4, 0.5, np.float32))
    np.testing.assert_allclose(w, 1 - 0.7 * 0.5 * 1.9, rtol=1e-6)
    np.testing.assert_array_equal(w, again)


def test_torch_ranks_exchange_once_in_many_steps_and_learn():
    torch = pytest.importorskip("torch", reason="torch is an optional extra")
    import gradwire.torch as gt

    ranks, every = 2, 5
    torch.manual_seed(SEED)
    first = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    inputs = torch.randn(256, 20)
    targets = torch.sin(inputs.sum(1, keepdim=True))

    def train(transport):
        import copy

        rank = transport.rank
        model = copy.deepcopy(first)
        plan = gradwire.make_plan([(n, tuple(p.shape)) for n, p in model.named_parameters()],
                                  "topk:25%,decay=0.95")
        inner = gt.AdamW(model.parameters(), lr=3e-3, threads=1)
        outer = gt.DiLoCo(model.parameters(), gradwire.Reducer(plan, transport), every,
                          threads=1)
        mine = slice(rank * 128, rank * 128 + 128)
        losses, seen = [], []
        for step in range(60):
            loss = torch.nn.functional.mse_loss(model(inputs[mine]), targets[mine])
            inner.zero_grad()
            loss.backward()
            inner.step()
            seen.append(outer.step())
            losses.append(loss.item())
        assert seen == [(step + 1) % every == 0 for step in range(60)]
        assert outer.steps == 60
        return losses, [p.detach().clone() for p in model.parameters()]

    results = [end.result() for end in in_threads(ranks, train, deadline=120.0)]
    for a, b in zip(results[0][1], results[1][1]):
        assert torch.equal(a, b)
    assert results[0][0][-1] < 0.8 * results[0][0][0]


@pytest.mark.parametrize("call, message", [
    (lambda: gradwire.DiLoCo([np.ones(2, np.float16)], [np.ones(2, np.float32)]), "float16"),
    (lambda: gradwire.DiLoCo([np.ones(2, np.float32)], [np.ones(2, np.float32)], preset="x"),
     "unknown name 'x', known: paper, sparseloco, local-sgd"),
])
def test_bad_requests_are_refused_by_name(call, message):
    with pytest.raises(gradwire.InvalidArgument, match=message):
        call()
