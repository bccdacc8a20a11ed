"""gradwire.torch.OneBitAdam and OneBitLAMB with parameters on a GPU, beside the same on the CPU:
parameters, plans, residuals and states bit for bit, and how often the GPU is asked for the freeze."""

import threading

import pytest
from exchanged_case import (
    NAMED,
    RANKS,
    both,
    emulated_ranks,
    flat,
    give_gradients,
    raw,
    replace_devices,
    residuals,
    saved,
    start,
    torch,
)

import gradwire
import gradwire.torch as gt

pytestmark = emulated_ranks


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    replace_devices(monkeypatch)


def specs_of(plan):
    return {group["spec"] for bucket in plan.layout for group in bucket["groups"]}


def count_asks(monkeypatch):
    asked = {}
    found = gradwire.Optimizer.exchanges

    def exchanges(self):
        asked[threading.get_ident()] = asked.get(threading.get_ident(), 0) + 1
        return found.fget(self)

    monkeypatch.setattr(gradwire.Optimizer, "exchanges", property(exchanges))
    return asked


@pytest.mark.parametrize("kind", [gt.OneBitAdam, gt.OneBitLAMB])
@pytest.mark.parametrize("bad", [(), (1,), (0, 3, 6)])
def test_1bit_optimizers_have_the_bits_of_the_cpu_and_change_the_plan_with_it(monkeypatch, kind, bad):
    asked = count_asks(monkeypatch)
    gradients = gradwire.make_plan(NAMED, "none", seed=3)
    momenta = gradwire.make_plan(NAMED, "1bit", exchange="two_shot", seed=3)
    steps, freeze = 10, 3

    def body(make, rank):
        parameters = start()
        reducer = make(gradients, on_nonfinite="skip")
        optimizer = kind(parameters, reducer, momenta, lr=0.01, freeze_step=freeze)
        asked.pop(threading.get_ident(), None)
        seen, exchanged = [], []
        for step in range(steps):
            give_gradients(parameters, rank, step, bad=step in bad)
            optimizer.lr = 0.01 / (1 + step // 2)  # as of a schedule
            made = optimizer.step(gradient_scale=0.5)
            assert made is (make.side == "gpu" or step not in bad)
            seen.append(raw(parameters))
            exchanged.append("momentum" if "1bit" in specs_of(reducer.plan) else "gradients")
        asks = asked[threading.get_ident()]
        optimizer.synchronize()
        state = flat(optimizer.state_dict())
        return [seen, exchanged, residuals(reducer), state, reducer.skipped_steps], asks

    wanted, got = both(body)
    assert [g[0] for g in got] == [w[0] for w in wanted]
    seen, exchanged, _, _, skipped = wanted[0][0]
    early = sum(step < freeze for step in bad) + sum(step == freeze for step in bad if bad[:1] == (0,))
    assert exchanged == ["gradients"] * (freeze + early) + ["momentum"] * (steps - freeze - early)
    assert skipped == len(bad) and all(seen[s] == seen[s - 1] for s in bad if s > 0)
    # The GPU is asked once, and once more for each step that was left out before.
    assert [g[1] for g in got] == [1 + early] * RANKS


@pytest.mark.parametrize("kind", [gt.OneBitAdam, gt.OneBitLAMB])
@pytest.mark.parametrize("at", [2, 5])
def test_a_checkpoint_of_1bit_optimizers_goes_to_the_gpu_and_back(kind, at):
    gradients = gradwire.make_plan(NAMED, "none", seed=3)
    momenta = gradwire.make_plan(NAMED, "1bit", exchange="two_shot", seed=3)
    left = {}

    def run(optimizer, parameters, rank, steps):
        for step in steps:
            give_gradients(parameters, rank, step)
            assert optimizer.step()
        return raw(parameters)

    def body(make, rank):
        parameters = start()
        reducer = make(gradients)
        optimizer = kind(parameters, reducer, momenta, freeze_step=3)
        run(optimizer, parameters, rank, range(at))
        left[make.side, rank] = (saved(reducer), optimizer.state_dict(),
                                 [p.detach().clone() for p in parameters])  # fmt: skip
        return run(optimizer, parameters, rank, range(at, 8))

    def go_on(make, rank):
        other = {"cpu": "gpu", "gpu": "cpu"}[make.side]
        parameters = start(seed=5)
        reducer = make(gradients)
        optimizer = kind(parameters, reducer, momenta, lr=0.5, freeze_step=3)
        run(optimizer, parameters, rank, range(50, 52))
        _, state, values = left[other, rank]
        with torch.no_grad():
            for p, q in zip(parameters, values):
                p.copy_(q)
        optimizer.load_state_dict(state)
        reducer.load(lambda of: left[other, of][0] if of < RANKS else None)
        assert optimizer.exchanges == ("momentum" if at > 3 else "gradients")
        return run(optimizer, parameters, rank, range(at, 8))

    wanted, got = both(body)
    assert got == wanted
    assert both(go_on) == [wanted, wanted]


def test_a_state_from_before_the_freeze_is_taken_behind_it():
    gradients = gradwire.make_plan(NAMED, "none")
    momenta = gradwire.make_plan(NAMED, "1bit", exchange="two_shot")

    def body(make, rank):
        parameters = start()
        optimizer = gt.OneBitAdam(parameters, make(gradients), momenta, freeze_step=1)
        early = optimizer.state_dict()
        for step in range(3):
            give_gradients(parameters, rank, step)
            optimizer.step()
        assert optimizer.exchanges == "momentum"
        optimizer.load_state_dict(early)
        assert optimizer.exchanges == "gradients" and flat(optimizer.state_dict()) == flat(early)
        for step in range(3, 6):
            give_gradients(parameters, rank, step)
            optimizer.step()
        return raw(parameters)

    wanted, got = both(body)
    assert got == wanted  # with what ranks still owed to momenta


def test_gradients_that_are_not_finite_stop_1bit_steps_until_all_have_synchronized():
    gradients = gradwire.make_plan(NAMED, "none", seed=3)
    momenta = gradwire.make_plan(NAMED, "1bit", exchange="two_shot", seed=3)

    def body(make, rank):
        parameters = start()
        reducer = make(gradients)
        optimizer = gt.OneBitAdam(parameters, reducer, momenta, freeze_step=2)
        for step in range(6):
            give_gradients(parameters, rank, step, bad=step in (1, 4))
            before = raw(parameters)
            if step not in (1, 4):
                assert optimizer.step()
                continue
            with pytest.raises(gradwire.NonFiniteGradient):
                optimizer.step()  # here all has run by then
            assert raw(parameters) == before
            if make.side == "gpu":
                with pytest.raises(gradwire.NonFiniteGradient):
                    optimizer.synchronize()
        return raw(parameters), residuals(reducer), flat(optimizer.state_dict())

    wanted, got = both(body)
    assert got == wanted
