"""gradwire.torch's 'auto': what the hook measures, agrees on and changes (the pilot's own decisions
are tested in tests/planner)."""

import logging
import os

import pytest
from rank_processes import HAS_TORCH, needs_torch

import gradwire

pytestmark = needs_torch
if not gradwire.build_info()["features"]["planner"]:
    pytest.skip("this build has no planner", allow_module_level=True)

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    from auto_case import check, scripted
    from ddp_case import Net, assert_ranks_agree, ddp, flat, loss_of, parameters, registered, sgd, train

    import gradwire.torch
    from gradwire.torch.auto import AutoOptions, parse_auto


# What is asked for.


def test_options_are_read():
    assert parse_auto("int8") is None
    assert parse_auto("auto") == AutoOptions()
    assert parse_auto(" auto:budget=500ms,window=7") == AutoOptions(budget_s=0.5, window=7)
    assert parse_auto("auto:specs=int8|topk:1%,int4").specs == ("int8", "topk:1%,int4")
    assert parse_auto("auto:window=9,specs=int4") == AutoOptions(window=9, specs=("int4",))


@pytest.mark.parametrize(("spec", "said"), [
    ("auto:speed=9", "unknown option 'speed', known: budget, window, specs"),
    ("auto:budget", "'budget' has no value, expected e.g. budget=500ms"),
    ("auto:budget=", "'budget' has no value"),
    ("auto:budget=3", "auto: budget: .*'3'"), ("auto:budget=fast", "fast"),
    ("auto:window=1", "window is '1', must be a number of steps from 2 to 1000"),
    ("auto:window=-3", "window is '-3'"),
    ("auto:specs=zip", "zip"),
    ("auto:specs=int8,window=3", "window"),
])
def test_what_auto_cannot_mean_is_refused(spec, said):
    with pytest.raises(gradwire.InvalidArgument, match=said):
        parse_auto(spec)


def _refused(world):
    for spec, options, said in [
        ("auto:speed=9", {}, "unknown option"),
        ("auto", {"exchange": "gather"}, "exchange: is given together with the spec 'auto'"),
        ("auto:specs=powersgd:0", {}, "powersgd"),
    ]:
        model = ddp()
        with pytest.raises(gradwire.InvalidArgument, match=said):
            gradwire.torch.register(model, spec, timeout=30.0, **options)
    model, exchange = registered("int8")
    with pytest.raises(gradwire.InvalidArgument, match="unknown option"):
        exchange.set_spec("auto:speed=9")
    train(model, sgd(model), 0, 2)
    assert exchange.spec == "int8" and exchange.decisions() == []
    exchange.close()


def test_what_cannot_be_is_refused_at_the_call(tmp_path):
    check(2, _refused, tmp_path)


# What it changes.


def _switches(world):
    scripted("none", "int8", "topk:10%", "bf16", "none")
    model = ddp()
    exchange = gradwire.torch.register(model, "auto", timeout=30.0, exempt_1d="never")
    optimizer, seen = sgd(model), []
    for step in range(26):
        train(model, optimizer, step, step + 1)
        exchange.note_loss(1.0 + world.rank)
        seen.append(exchange.stats()["bytes_sent"])
        assert_ranks_agree(parameters(model), f"step {step}")
    # Three steps settle, then windows of four: what is sent falls and rises behind them.
    assert seen[8] < 0.5 * seen[6] and seen[12] < seen[8] < seen[16] < seen[20] == seen[6]
    assert exchange.spec == "none" and "'none' by 'auto' of 6" in repr(exchange)
    pilot = exchange._auto._pilot
    assert len(pilot.windows) == 5
    for step_s, rest in pilot.windows:
        assert len(step_s) == 4 and all(s > 0 for s in step_s)
        assert len(rest["exchange_s"]) == 4 and all(s > 0 for s in rest["exchange_s"])
        # The last bucket's exchange begins where backward ends.
        assert len(rest["exposed_s"]) == 4 and all(0 <= w < s for w, s in zip(rest["exposed_s"], step_s))
        assert rest["loss"] == 0.5 + 0.5 * world.world_size
        assert rest["skipped"] == 0 and len(rest["norms"]) == 6
    ready, link, codecs = pilot.costs
    assert len(ready) == 6 and min(ready) == 0 and max(ready) > 0
    assert link.alpha_s > 0 and {"bf16", "int8", "int4"} <= set(codecs)
    records = exchange.decisions()
    # The link is probed before the first step, and again where steps are long; what compressors cost
    # where it is asked for.
    probes = [r for r in records if r["what"] == "probe"]
    looks = [(r["step"], r["numbers"]["alpha_s"]) for r in probes if "alpha_s" in r["numbers"]]
    assert looks[0] == (0, pilot.first_link.alpha_s) and looks[1:] in ([], [(7, link.alpha_s)])
    assert looks[-1][1] == link.alpha_s
    assert [r["step"] for r in probes if "seconds" in r["numbers"]] == [7]
    exchange.close()
    return [pilot.windows, pilot.costs[0], codecs, records]


@pytest.mark.parametrize("world_size", [2, 3])
def test_plans_change_behind_the_same_step_on_all_ranks(tmp_path, world_size):
    # Floats that were agreed on are equal to the last bit.
    found = check(world_size, _switches, tmp_path)
    assert all(each == found[0] for each in found[1:])


def _norms(world):
    """Norms of a window's last step, and the same from what autograd and residual() give; of gradients
    and means those of four of its steps, here all."""
    scripted("none", "topk:10%")
    model = ddp()
    exchange = gradwire.torch.register(model, "auto", timeout=30.0, exempt_1d="never")
    optimizer, own = sgd(model), Net()
    names = [name for name, _ in own.named_parameters()]
    train(model, optimizer, 0, 7)
    squares, own_squares = 0, 0
    for step in range(7, 11):  # three have settled; the last one is that of the second window
        before = [exchange.residual(name).reshape(-1).double() for name in names] if step > 7 else []
        own.load_state_dict(model.module.state_dict())
        own.zero_grad()
        loss_of(own, world.rank, step).backward()
        own_squares += torch.stack([p.grad.double().square().sum() for p in own.parameters()])
        train(model, optimizer, step, step + 1)
        squares += torch.stack([p.grad.double().square().sum() for p in model.parameters()])
    _, (_, rest) = exchange._auto._pilot.windows
    after = [exchange.residual(name).reshape(-1).double() for name in names]
    gradients = [p.grad.reshape(-1).double() for p in own.parameters()]
    mine = []
    for g, e, kept, norm, mean in zip(gradients, before, after, own_squares / 4, squares / 4):
        mine += [(g + e).square().sum(), (g + e - kept).square().sum(), kept.square().sum(),
                 norm, mean / world.world_size]
    expected = torch.stack(mine)
    dist.all_reduce(expected)
    found = torch.tensor([x for row in rest["norms"] for x in row], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-12)
    assert (found.view(-1, 5)[:, 2] > 0).all()
    exchange.close()


def test_norms_are_of_what_is_sent_and_what_waits(tmp_path):
    check(2, _norms, tmp_path)


def _nothing_is_lost(world):
    """A residual goes along to a compressor that keeps none: its next mean has all of it."""
    scripted("none", "topk:10%", "none")
    model = ddp()
    exchange = gradwire.torch.register(model, "auto", timeout=30.0, exempt_1d="never")
    optimizer, own = sgd(model), Net()
    train(model, optimizer, 0, 11)
    names = [name for name, _ in own.named_parameters()]
    owed = flat([exchange.residual(name) for name in names])
    assert owed.norm() > 0
    own.load_state_dict(model.module.state_dict())
    loss_of(own, world.rank, 11).backward()
    expected = flat([p.grad for p in own.parameters()]) + owed
    dist.all_reduce(expected)
    train(model, optimizer, 11, 12)
    found = flat([p.grad for p in model.parameters()])
    torch.testing.assert_close(found, expected / world.world_size, rtol=1e-5, atol=1e-7)
    assert exchange.residual(names[0]) is None
    exchange.close()


def test_residuals_go_along_when_the_plan_changes(tmp_path):
    check(2, _nothing_is_lost, tmp_path)


def _off(world):
    scripted("none")
    models = []
    for spec in ("none", "auto"):
        model = ddp()
        exchange = gradwire.torch.register(model, spec, timeout=30.0)
        train(model, sgd(model), 0, 12)
        assert exchange.spec == "none" and str(exchange.plan)
        models.append((parameters(model), str(exchange.plan)))
        exchange.close()
    assert torch.equal(models[0][0], models[1][0])
    assert models[0][1] == models[1][1]  # in DDP's buckets: nothing is copied


def test_off_has_the_bits_and_the_plan_of_no_compression(tmp_path):
    check(2, _off, tmp_path)


def _with_scaler(world):
    scripted("none", "int8", "topk:10%", "int4")
    model = ddp(find_unused_parameters=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    exchange = gradwire.torch.register(model, "auto", timeout=30.0, scaler=scaler)
    optimizer = sgd(model)
    for step in range(20):
        optimizer.zero_grad()
        with model.no_sync():
            scaler.scale(loss_of(model, world.rank, step)).backward()
        loss = scaler.scale(loss_of(model, world.rank, 100 + step, use=step % 3 != 1))
        if step in (9, 10) and world.rank == 0:
            loss = loss * float("inf")
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
        assert_ranks_agree(parameters(model), f"step {step}")
    windows = exchange._auto._pilot.windows
    assert len(windows) == 4  # passes in no_sync() are no steps
    assert [rest["skipped"] for _, rest in windows] == [0, 2, 0, 0]
    # The last step of the second window was left out: what its norms would be is not known.
    assert [len(rest["norms"]) for _, rest in windows] == [6, 0, 6, 6]
    exchange.close()


def test_scalers_accumulation_and_unused_parameters_go_on(tmp_path):
    check(2, _with_scaler, tmp_path)


def _attached(world):
    scripted("none", "int8", "topk:10%", "none")
    model = Net()
    exchange = gradwire.torch.attach(
        model, "auto", timeout=30.0, exempt_1d="never", bucket_bytes=2000)
    optimizer, sent = sgd(model), []
    for step in range(21):
        optimizer.zero_grad()
        loss_of(model, world.rank, step).backward()
        exchange.wait()
        optimizer.step()
        sent.append(exchange.stats()["bytes_sent"])
        assert_ranks_agree(parameters(model), f"step {step}")
    assert sent[12] < sent[8] < 0.5 * sent[6] and sent[16] == sent[6]
    exchange.set_spec("int8")
    assert exchange.decisions() == [] and exchange.spec == "int8"
    loss_of(Net(), world.rank, 0)
    exchange.close()


def test_attach_takes_it_too(tmp_path):
    check(2, _attached, tmp_path)


# What it keeps.


def _goes_on(world):
    scripted("none", "topk:10%")
    model = ddp()
    exchange = gradwire.torch.register(model, "auto", timeout=30.0, exempt_1d="never")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(model, optimizer, 0, 9)
    file = f"{os.environ['XDG_CACHE_HOME']}-{world.rank}"
    torch.save([model.state_dict(), exchange.state_dict()], file)
    plan = str(exchange.plan)
    train(model, optimizer, 9, 14)
    straight = parameters(model)
    exchange.close()

    again = ddp()
    saved, state = torch.load(file, weights_only=True)
    again.load_state_dict(saved)
    exchange = gradwire.torch.register(again, "auto", timeout=30.0, exempt_1d="never")
    with pytest.raises(gradwire.InvalidArgument, match="must have spec, buckets"):
        exchange.load_state_dict({**state, "auto": {"spec": "int8"}})
    assert exchange.spec == "none"
    exchange.load_state_dict(state)
    assert exchange.spec == "topk:10%" and str(exchange.plan) == plan
    assert exchange.decisions()[-1]["what"] == "resume"
    train(again, torch.optim.SGD(again.parameters(), lr=0.05), 9, 14)
    assert torch.equal(parameters(again), straight)
    assert str(exchange.plan) == plan
    # A state of a run without it is taken as well, and one of it by a run without.
    del state["auto"]
    exchange.load_state_dict(state)
    exchange.close()


def test_a_checkpoint_keeps_the_choice_and_goes_on_bit_for_bit(tmp_path):
    check(2, _goes_on, tmp_path)


# What it says.


def _told(world):
    scripted("none", "int8")
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("gradwire")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    model = ddp()
    exchange = gradwire.torch.register(model, "auto", timeout=30.0)
    train(model, sgd(model), 0, 12)
    lines = [r.getMessage() for r in records if "auto, step" in r.getMessage()]
    exchange.close()
    return lines


def test_each_decision_is_a_line_of_rank_0(tmp_path):
    first, second = check(2, _told, tmp_path)
    assert second == [] and all(line.startswith("auto, step ") for line in first)  # the logger has the name
    assert "step 0, probe: none: a message takes" in first[0]
    assert any("step 7, probe: none: bf16, int8, int4, topk:1%,int4 can be priced" in x for x in first)
    chosen = [line for line in first if "probe" not in line]
    assert len(chosen) == 2 and chosen[0].endswith("choose: a -> b: window 0")
