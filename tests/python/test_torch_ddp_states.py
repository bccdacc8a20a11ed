"""gradwire.torch.register(): scalers, changed compressors, checkpoints, what is reported."""

import copy
import io
import json

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    import torch.distributed as dist
    from ddp_case import Net, assert_ranks_agree, ddp, flat, loss_of, parameters, registered, sgd, train

    import gradwire
    import gradwire.torch


def _train_scaled(model, scaler, begin, end, *, poison=None):
    optimizer, lost = sgd(model), []
    for step in range(begin, end):
        optimizer.zero_grad()
        loss = loss_of(model, dist.get_rank(), step)
        if poison == (dist.get_rank(), step):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        before, scale = parameters(model), scaler.get_scale()
        scaler.step(optimizer), scaler.update()
        if torch.equal(before, parameters(model)):
            lost.append((step, scaler.get_scale() < scale))
    return lost


def _scales(world):
    plain, exchange = registered("tensortopk:10%")
    train(plain, sgd(plain), 0, 12)
    residual = exchange.residual("maybe.weight")
    exchange.close()
    model, scaler = ddp(), torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4)
    exchange = gradwire.torch.register(model, "tensortopk:10%", exempt_1d="never", scaler=scaler)
    assert _train_scaled(model, scaler, 0, 12) == []
    assert scaler.get_scale() == 2048.0
    # Powers of two: the same bits, although the scale has changed three times.
    assert torch.equal(parameters(model), parameters(plain))
    assert torch.equal(exchange.residual("maybe.weight"), residual)


def test_residuals_are_of_unscaled_gradients(tmp_path):
    check(2, _scales, tmp_path)


def _skips(world):
    model, scaler = ddp(), torch.amp.GradScaler("cpu", init_scale=256.0)
    exchange = gradwire.torch.register(model, "tensortopk:10%", exempt_1d="never", scaler=scaler)
    assert _train_scaled(model, scaler, 0, 2) == []
    residual = exchange.residual("maybe.weight")
    assert _train_scaled(model, scaler, 2, 3, poison=(1, 2)) == [(2, True)]
    assert exchange.stats()["committed"] == 0
    assert torch.equal(exchange.residual("maybe.weight"), residual)
    assert _train_scaled(model, scaler, 3, 6) == []
    assert_ranks_agree(parameters(model))


def test_a_gradient_that_overflows_on_one_rank_is_left_out_by_all(tmp_path):
    check(2, _skips, tmp_path)


def _refuses_scaler(world):
    model, exchange = registered()
    scaler = torch.amp.GradScaler("cpu")
    loss = scaler.scale(loss_of(model, world.rank, 0))
    with pytest.raises(gradwire.InvalidArgument, match="a GradScaler is in use, must be given"):
        loss.backward()
    exchange.close()
    model, exchange = registered(scaler=False)
    loss_of(model, world.rank, 0).backward()


def test_a_scaler_that_was_not_given_is_refused(tmp_path):
    check(2, _refuses_scaler, tmp_path)


def _raises_and_goes_on(world):
    model, exchange = registered("tensortopk:10%")
    train(model, sgd(model), 0, 3)
    residual, before = exchange.residual("maybe.weight"), parameters(model)
    loss = loss_of(model, world.rank, 3) * (float("nan") if world.rank == 1 else 1.0)
    with pytest.raises(gradwire.NonFiniteGradient, match="rank 1's gradient holds NaN"):
        loss.backward()
    assert torch.equal(exchange.residual("maybe.weight"), residual)
    assert all(p.grad.isnan().all() for p in model.parameters())
    assert torch.equal(parameters(model), before)
    train(model, sgd(model), 4, 8)
    assert_ranks_agree(parameters(model))
    assert parameters(model).isfinite().all()


def test_a_bad_gradient_is_an_error_on_all_ranks_and_training_goes_on(tmp_path):
    check(2, _raises_and_goes_on, tmp_path)


def _changes_compressor(world):
    model, exchange = registered("tensortopk:10%")
    optimizer = sgd(model)
    train(model, optimizer, 0, 4)
    kept = exchange.residual("maybe.weight")
    exchange.set_spec("int8")
    assert "int8" in str(exchange.plan)
    loss_of(model, world.rank, 4).backward()
    assert exchange.spec == "int8"
    # int8 has sent nearly all that top-k still owed.
    assert exchange.residual("maybe.weight").norm() < 0.1 * kept.norm()
    assert_ranks_agree(flat(p.grad for p in model.parameters()))
    with pytest.raises(gradwire.InvalidArgument, match="nonsense"):
        exchange.set_spec("nonsense")
    assert exchange.spec == "int8"
    exchange.set_spec("fp16" if world.rank == 0 else "bf16")
    with pytest.raises(gradwire.InvalidArgument, match="plan"):
        loss_of(model, world.rank, 5).backward()
    exchange.set_spec("bf16")
    train(model, optimizer, 6, 8)
    assert_ranks_agree(parameters(model))


def test_the_compressor_may_change_between_steps(tmp_path):
    check(2, _changes_compressor, tmp_path)


def _changes_layout(world):
    # 1-D parameters go into a group of their own, and back: buckets are laid out anew.
    model, exchange = registered("none", exempt_1d="auto")
    plain = ddp()
    for step, spec in enumerate(["none"] * 3 + ["topk:5%"] * 2 + ["none"] * 2):
        exchange.set_spec(spec)
        for one in (model, plain):
            one.zero_grad()
            loss_of(one, world.rank, step).backward()
        for found, expected in zip(model.parameters(), plain.parameters()):
            if found.ndim == 1:  # always in bf16 at least, wherever it lies
                torch.testing.assert_close(found.grad, expected.grad, rtol=5e-3, atol=1e-4)


def test_buckets_may_be_laid_out_anew(tmp_path):
    check(2, _changes_layout, tmp_path)


def _resumes(world):
    model, exchange = registered("tensortopk:10%,int4")
    train(model, torch.optim.SGD(model.parameters(), 0.05), 0, 5)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "exchange": exchange.state_dict()}, file)
    train(model, torch.optim.SGD(model.parameters(), 0.05), 5, 9)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, other = registered("tensortopk:10%,int4")
    again.load_state_dict(saved["model"])
    other.load_state_dict(saved["exchange"])
    train(again, torch.optim.SGD(again.parameters(), 0.05), 5, 9)
    assert torch.equal(parameters(model), parameters(again))
    assert torch.equal(exchange.residual("last.weight"), other.residual("last.weight"))
    wrong = dict(saved["exchange"], rank=1 - world.rank)
    for state, text in ((wrong, "was written by rank"), ({"reducer": 1}, "'format' is missing"),
                        ({"a": 1}, "a dict with the keys 'a' is no state of an exchange, must be"),
                        (dict(saved["exchange"], buckets=[[0, 1]]), "not of the 6 parameters")):
        with pytest.raises(gradwire.InvalidArgument, match=text):
            other.load_state_dict(state)
    assert torch.equal(exchange.residual("last.weight"), other.residual("last.weight"))


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path):
    check(2, _resumes, tmp_path)


def _resumes_elsewhere(world):
    model, exchange = registered("tensortopk:10%")
    train(model, sgd(model), 0, 5)
    states = [None] * world.world_size
    dist.all_gather_object(states, exchange.state_dict())
    owed = exchange.residual("maybe.weight").clone()
    dist.all_reduce(owed)
    two = dist.new_group([0, 1])
    if world.rank >= 2:
        return
    small = torch.nn.parallel.DistributedDataParallel(Net(), process_group=two)
    other = gradwire.torch.register(small, "tensortopk:10%", exempt_1d="never")
    with pytest.raises(gradwire.InvalidArgument, match="is that of one of 4 ranks"):
        other.load_state_dict(states[world.rank])
    other.load_state_dict(states if world.rank == 0 else lambda rank: states[rank])
    mine = other.residual("maybe.weight").clone()
    dist.all_reduce(mine, group=two)
    # The mean update that waits is what it was.
    torch.testing.assert_close(mine / 2, owed / 4)
    loss_of(small, world.rank, 5).backward()


def test_a_checkpoint_of_four_ranks_goes_on_with_two(tmp_path):
    check(4, _resumes_elsewhere, tmp_path)


class _Board:
    def __init__(self):
        self.seen = {}

    def add_scalar(self, key, value, step):
        self.seen[key] = (value, step)


class _Run:
    def log(self, values, step):
        self.seen = (values, step)


def _reports(world, folder):
    model, exchange = registered("tensortopk:10%")
    assert exchange.stats() == {}
    train(model, sgd(model), 0, 3)
    stats = exchange.stats(norms=True)
    count = sum(p.numel() for p in model.parameters())
    assert stats["dense_bytes"] == 4 * count
    assert 0 < stats["bytes_sent"] < 4 * count
    assert stats["step"] == 2 and stats["committed"] == 1 and stats["hook_us"] > 0
    gradient = flat(p.grad for p in model.parameters()).double().norm().item()
    residual = sum(exchange.residual(name).double().square().sum().item()
                   for name, _ in model.module.named_parameters()) ** 0.5
    assert stats["gradient_norm"] == pytest.approx(gradient)
    assert stats["residual_norm"] == pytest.approx(residual)
    assert stats["compression_error"] == pytest.approx(residual / gradient)
    board, run = _Board(), _Run()
    exchange.write_to(board), exchange.write_to(run, step=40)
    assert board.seen["gradwire/bytes_sent"] == (stats["bytes_sent"], 2)
    assert run.seen[0]["gradwire/bytes_sent"] == stats["bytes_sent"] and run.seen[1] == 40
    with pytest.raises(gradwire.InvalidArgument, match="add_scalar"):
        exchange.write_to(object())
    path = f"{folder}/{world.rank}.json"
    exchange.save_trace(path)
    with open(path) as file:
        assert any("bucket" in str(event.get("name")) for event in json.load(file)["traceEvents"])
    with pytest.raises(gradwire.InvalidArgument, match="'nobody' is no parameter"):
        exchange.residual("nobody")


class _ReportsIn:
    def __init__(self, folder):
        self.folder = folder

    def __call__(self, world):
        _reports(world, self.folder)


def test_a_step_is_reported(tmp_path):
    check(2, _ReportsIn(str(tmp_path)), tmp_path)


def _writes_events(world, folder):
    from torch.utils.tensorboard import SummaryWriter

    model, exchange = registered()
    with SummaryWriter(f"{folder}/{world.rank}") as writer:
        for step in range(2):
            train(model, sgd(model), step, step + 1)
            exchange.write_to(writer)


class _WritesEvents(_ReportsIn):
    def __call__(self, world):
        _writes_events(world, self.folder)


def test_tensorboard_shows_what_was_sent(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    check(2, _WritesEvents(str(tmp_path)), tmp_path)
    events = EventAccumulator(str(tmp_path / "0")).Reload().Scalars("gradwire/bytes_sent")
    assert [event.step for event in events] == [0, 1]
    assert all(0 < event.value < 8000 for event in events)


def _disabled_scaler(world):
    model = ddp()
    gradwire.torch.register(model, "topk:10%", scaler=torch.amp.GradScaler("cpu", enabled=False))
    with pytest.raises(gradwire.NonFiniteGradient):
        (loss_of(model, world.rank, 0) * float("nan")).backward()


def test_a_disabled_scaler_is_none(tmp_path):
    check(2, _disabled_scaler, tmp_path)


def _norms_under_scaler(world):
    model, scaler = ddp(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    exchange = gradwire.torch.register(model, "none", scaler=scaler)
    optimizer = sgd(model)
    scaler.scale(loss_of(model, world.rank, 0)).backward()
    before = exchange.stats(norms=True)["gradient_norm"]
    scaler.unscale_(optimizer)
    norm = flat(p.grad for p in model.parameters()).norm().item()
    assert before == pytest.approx(norm, rel=1e-5)
    assert exchange.stats(norms=True)["gradient_norm"] == pytest.approx(norm, rel=1e-5)


def test_norms_are_of_unscaled_gradients(tmp_path):
    check(2, _norms_under_scaler, tmp_path)


def _freezes(world):
    model = ddp(find_unused_parameters=True)
    exchange = gradwire.torch.register(model, "tensortopk:10%", exempt_1d="never")
    train(model, sgd(model), 0, 3)
    model.module.maybe.weight.requires_grad_(False)
    model.zero_grad()
    loss_of(model, world.rank, 3, use=False).backward()
    assert model.module.maybe.weight.grad is None
    assert model.module.maybe.bias.grad is not None  # what ranks owe to it
    assert exchange.stats()["committed"] == 1


def test_a_parameter_that_was_frozen_stays(tmp_path):
    check(2, _freezes, tmp_path)


def _refused_states(world):
    model, exchange = registered("tensortopk:10%,int4")
    train(model, sgd(model), 0, 4)
    state, plan = exchange.state_dict(), str(exchange.plan)
    cut = dict(state, reducer=state["reducer"][:100], buckets=[[0, 1, 2, 3, 4, 5]])
    for bad in (None, 5, [5, 5], dict(state, buckets=5), dict(state, buckets=[["x"]]), cut):
        with pytest.raises(gradwire.InvalidArgument):
            exchange.load_state_dict(bad if world.rank == 0 or bad is cut else state)
        assert str(exchange.plan) == plan
    alone = dict(state, rank=0, world_size=1, reducer=state["reducer"][:0])
    with pytest.raises(gradwire.InvalidArgument, match="is of a group of one rank, which keeps nothing"):
        exchange.load_state_dict([alone])
    exchange.load_state_dict(state)
    train(model, sgd(model), 4, 6)
    assert_ranks_agree(parameters(model))


def test_states_refused_on_one_rank_change_nothing_on_any(tmp_path):
    check(2, _refused_states, tmp_path)


def _refused_specs(world):
    model, exchange = registered("tensortopk:10%")
    train(model, sgd(model), 0, 4)
    plan = str(exchange.plan)
    exchange.set_spec("int8" if world.rank == 0 else "int4")
    with pytest.raises(gradwire.InvalidArgument):
        loss_of(model, world.rank, 4).backward()
    assert exchange.spec == "tensortopk:10%" and str(exchange.plan) == plan
    train(model, sgd(model), 5, 8)
    assert exchange.state_dict()["buckets"] == [[p for group in row["groups"]
                                                 for p in group["parameters"]]
                                                for row in exchange.plan.layout]


def test_ranks_that_disagree_keep_their_compressor(tmp_path):
    check(2, _refused_specs, tmp_path)


def _copies(world):
    model, exchange = registered()
    average = torch.optim.swa_utils.AveragedModel(model)
    train(model, sgd(model), 0, 3)
    average.update_parameters(model)
    copied = copy.deepcopy(model)
    assert torch.equal(parameters(copied), parameters(model))
    train(model, sgd(model), 3, 5)
    assert_ranks_agree(parameters(model))


def test_a_model_with_a_hook_can_be_copied(tmp_path):
    check(2, _copies, tmp_path)
