"""gradwire.torch's 'auto' where something is not as usual: gradients that are not finite, checkpoints that
do not fit or were made during a trial, traces and logs that are short, compressors without feedback."""

import logging
import math

import pytest
from rank_processes import HAS_TORCH, needs_torch

import gradwire

pytestmark = needs_torch
if not gradwire.build_info()["features"]["planner"]:
    pytest.skip("this build has no planner", allow_module_level=True)

if HAS_TORCH:
    import torch
    from auto_case import Scripted, check, scripted
    from ddp_case import Net, assert_ranks_agree, ddp, loss_of, parameters, sgd, train

    import gradwire.torch
    from gradwire.torch.measuring import MeasuredOnCpu
    from gradwire.torch.norms import StepNorms
    from gradwire.torch.window import Shared


def _left_out(world):
    scripted("none", "int8")
    for attached in (False, True):
        model = Net() if attached else ddp()
        begin = gradwire.torch.attach if attached else gradwire.torch.register
        exchange = begin(model, "auto", timeout=30.0)
        optimizer, raised = sgd(model), 0
        for step in range(11):
            optimizer.zero_grad()
            bad = step in (4, 5, 8) and world.rank == 1
            try:
                (loss_of(model, world.rank, step) * (math.inf if bad else 1.0)).backward()
                if attached:
                    exchange.wait()
            except gradwire.NonFiniteGradient:
                raised += 1
                continue
            optimizer.step()
        assert raised == 3
        # Steps 3 to 6, and 7 to 10: those that raised are among them.
        assert [rest["skipped"] for _, rest in exchange._auto._pilot.windows] == [2, 1]
        assert [len(rest["exchange_s"]) for _, rest in exchange._auto._pilot.windows] == [4, 4]
        assert_ranks_agree(parameters(model))
        exchange.close()


def test_steps_that_raise_are_steps_that_were_left_out(tmp_path):
    check(2, _left_out, tmp_path)


def _long_window(world):
    scripted("none", steps=40)
    model = ddp()
    exchange = gradwire.torch.register(model, "auto", timeout=30.0, trace_steps=16)
    train(model, sgd(model), 0, 43)
    ((_, rest),) = exchange._auto._pilot.windows
    exchange.close()
    assert len(rest["exchange_s"]) == 40 and all(s > 0 for s in rest["exchange_s"])


def test_a_window_may_be_longer_than_the_trace(tmp_path):
    check(2, _long_window, tmp_path)


def _loaded(world):
    scripted("none")
    model = ddp(bucket_cap_mb=25)  # one bucket, before and behind
    exchange = gradwire.torch.register(model, "topk:10%", timeout=30.0, exempt_1d="never")
    train(model, sgd(model), 0, 4)
    state = exchange.state_dict()
    exchange.close()
    model = ddp(bucket_cap_mb=25)
    exchange = gradwire.torch.register(model, "auto", timeout=30.0, exempt_1d="never")
    optimizer = sgd(model)
    train(model, optimizer, 0, 5)
    specs = ["topk:10%"] * 6
    state["auto"] = {"spec": "topk:10%", "buckets": state["buckets"], "exchanges": ["gather"],
                     "specs": specs, "age": -1}
    with pytest.raises(gradwire.InvalidArgument, match="'age' of 'auto' is -1, must be a number"):
        exchange.load_state_dict(state)
    state["auto"]["age"] = 7
    state["reducer"] = state["reducer"][:-8]
    plan, sent = str(exchange.plan), exchange.stats()["bytes_sent"]
    with pytest.raises(gradwire.InvalidArgument):
        exchange.load_state_dict(state)
    assert exchange.spec == "none" and str(exchange.plan) == plan
    assert not any(row["what"] == "resume" for row in exchange.decisions())
    train(model, optimizer, 5, 6)
    assert exchange.stats()["bytes_sent"] == sent and exchange.residual("first.weight") is None
    exchange.close()


def test_a_load_that_fails_leaves_the_plan_as_it_was(tmp_path):
    check(2, _loaded, tmp_path)


def _on_trial(world):
    scripted("none", "topk:10%", "none")
    model = ddp()
    exchange = gradwire.torch.register(model, "auto", timeout=30.0)
    exchange._auto._pilot.phase = "time"
    train(model, sgd(model), 0, 8)
    assert exchange.spec == "topk:10%"
    state = exchange.state_dict()
    exchange._auto._pilot.phase = "cruise"
    chosen = exchange.state_dict()
    exchange.close()
    for each, steps in ((state, 3), (chosen, 200)):
        model = ddp()
        exchange = gradwire.torch.register(model, "auto", timeout=30.0)
        exchange.load_state_dict(each)
        assert exchange.state_dict()["auto"]["chosen"] == (steps == 200)
        # The pilot that begins behind these steps knows how old the job is then.
        assert each["auto"]["age"] == 8 and exchange._auto._pilot._how["age"] == 8 + steps
        train(model, sgd(model), 0, 4)
        assert exchange.state_dict()["auto"]["age"] == 12
        assert exchange.spec == ("none" if steps == 3 else "topk:10%")
        assert any(f"kept for {steps} steps" in row["reason"] for row in exchange.decisions())
        exchange.close()


def test_a_trial_is_not_what_a_job_goes_on_with(tmp_path):
    check(2, _on_trial, tmp_path)


class _Forgetful(Scripted if HAS_TORCH else object):
    def log(self):
        return super().log()[-3:]


def _long_log(world):
    scripted("none", "int8", steps=2)
    from gradwire.torch import auto

    auto._core.Pilot = _Forgetful
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("gradwire")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    model = ddp()
    exchange = gradwire.torch.register(model, "auto", timeout=30.0)
    train(model, sgd(model), 0, 3 + 2 * 7)
    exchange.close()
    return [r.getMessage().rpartition(": ")[2] for r in records if "choose" in r.getMessage()]


def test_decisions_are_told_when_the_log_forgets_the_first(tmp_path):
    told, _ = check(2, _long_log, tmp_path)
    assert told == [f"window {i}" for i in range(7)]


def _in_place(world):
    scripted("none", "bf16")
    plans = []
    for spec in ("bf16", "auto"):
        model = ddp()
        exchange = gradwire.torch.register(model, spec, timeout=30.0)
        train(model, sgd(model), 0, 9)
        assert exchange.spec == "bf16"
        # No bucket of DDP's is copied.
        rows = [[part.bucket for part in row.slices] for row in exchange._mapped.values()]
        assert rows == [[b] for b in range(len(rows))]
        plans.append(str(exchange.plan))
        exchange.close()
    assert plans[0] == plans[1]


def test_bf16_travels_in_the_buckets_that_there_are(tmp_path):
    check(2, _in_place, tmp_path)


def _norms(world):
    for spec, decay, seen in [("topk:10%,noef", 1, True), ("bf16", 1, True), ("dgc:10%", 1, False),
                              ("topk:10%,ef21", 1, False), ("topk:10%,decay=0.5", 0.5, True),
                              ("powersgd:1", 1, True), ("powersgd:1,noef", 1, False)]:
        model = Net()
        exchange = gradwire.torch.attach(model, spec, timeout=30.0, exempt_1d="never",
                                         bucket_bytes=1)  # of each parameter alone
        names = [name for name, _ in model.named_parameters()]
        for step in range(2):
            loss_of(model, world.rank, step).backward()
            exchange.wait()
            model.zero_grad()
        owed = [exchange.residual(name) for name in names]
        norms = StepNorms(exchange, MeasuredOnCpu(exchange))
        loss_of(model, world.rank, 2).backward()
        own = [p.grad.reshape(-1).clone() for p in model.parameters()]
        for i, gradient in enumerate(own):
            norms.add([i], gradient)
        exchange.wait()
        found = norms.found()
        if not seen:
            assert found == [None] * 6, spec
            found = []
        for i, (gradient, row) in enumerate(zip(own, torch.tensor(found))):
            a = gradient if owed[i] is None else gradient + decay * owed[i].reshape(-1)
            torch.testing.assert_close(row[0], a.square().sum())
            if spec == "topk:10%,noef":
                kept = a.square().topk(math.ceil(0.1 * a.numel())).values.sum()
                torch.testing.assert_close(row[1], kept)
                torch.testing.assert_close(row[2], a.square().sum() - kept)
            elif spec == "bf16":
                assert row[1] == row[0] and row[2] == 0
            else:
                after = exchange.residual(names[i]).reshape(-1)
                torch.testing.assert_close(row[1], (a - after).square().sum())
                torch.testing.assert_close(row[2], after.square().sum())
        exchange.close()


def test_norms_are_of_what_each_spec_leaves_out(tmp_path):
    check(2, _norms, tmp_path)


class _Asking(Scripted if HAS_TORCH else object):
    def end_window(self, step_s, **rest):
        changed = super().end_window(step_s, **rest)
        self.wants_costs = True
        return changed


def _late(world):
    scripted("none")
    from gradwire import codec_cache
    from gradwire.torch import auto

    auto._core.Pilot = _Asking
    known, asked = {"bf16": (0.0, 1e9, 0.0, 1e9)}, []

    def cached(specs, threads, budget_s):
        asked.append(list(specs))
        found = dict(known)
        known.update(dict.fromkeys(specs, (0.0, 2e9, 0.0, 2e9)))
        return found

    codec_cache.cached_codecs = cached
    model = ddp()
    exchange = gradwire.torch.register(model, "auto:specs=int8", timeout=30.0)
    prices = []
    for end in (7, 11, 15):
        train(model, sgd(model), end - (7 if end == 7 else 4), end)
        prices.append(exchange._auto._pilot.costs[2]["int8"])
    exchange.close()
    return prices, len(asked)


def test_a_compressor_there_was_no_time_for_is_timed_when_costs_are_wanted_anew(tmp_path):
    (prices, asked), (others, none) = check(2, _late, tmp_path)
    assert prices == others and prices[0][0] > 100  # not worth a trial
    assert prices[1:] == [[0.0, 2e9, 0.0, 2e9]] * 2
    assert (asked, none) == (2, 0)  # on rank 0 alone, and no more when all are known


def _asked_otherwise(world):
    model = ddp()
    spec = "auto:specs=int8|int4" if world.rank == 0 else "auto:specs=int8"
    with pytest.raises(gradwire.TransportError, match="auto: what it may choose"):
        gradwire.torch.register(model, spec, timeout=30.0)


def test_ranks_that_ask_for_different_things_are_told(tmp_path):
    check(2, _asked_otherwise, tmp_path)


def test_losses_of_both_infinities_are_a_loss():
    shared = Shared([(1.0, 0.1, 0.03, 1.0, math.inf), (1.0, 0.2, 0.02, 1.0, -math.inf)], 1, [])
    assert shared.loss is not None and math.isnan(shared.loss)
    assert (shared.step_s, shared.exchange_s, shared.exposed_s, shared.norms) == ([1.0], [0.1], [0.02], [])


def _fails_to_start(world):
    model = ddp()
    probe = gradwire.torch.auto.probe_link
    if world.rank == 1:

        def lost(*_, **__):
            raise OSError("the probe was lost")

        gradwire.torch.auto.probe_link = lost
    error = OSError if world.rank == 1 else gradwire.TransportError
    with pytest.raises(error, match="the probe was lost") as kept:  # and with it the frames there were
        gradwire.torch.register(model, "auto", timeout=30.0)
    gradwire.torch.auto.probe_link = probe
    exchange = gradwire.torch.register(model, "none", timeout=30.0)
    train(model, sgd(model), 0, 2)
    assert_ranks_agree(parameters(model))
    exchange.close()
    del kept


def test_an_exchange_that_cannot_begin_leaves_the_model_to_another(tmp_path):
    check(2, _fails_to_start, tmp_path)
