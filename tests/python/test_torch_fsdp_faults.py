"""gradwire.torch.register_fsdp(): what is refused, gradients that are not finite, ranks that end."""

import os
import re
import time
from functools import partial

import pytest
import rank_processes
from rank_processes import needs_torch, run_ranks
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    from ddp_case import Net, assert_ranks_agree, ddp, loss_of
    from fsdp_case import gradients, registered, sharded, step_on, train, weights
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.utils.checkpoint import checkpoint

    import gradwire
    import gradwire.torch

SPEC = "topk:10%,int4"


def _hsdp():
    return fully_shard(Net(), mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("all", "part")))


def _refuses(world):
    register = gradwire.torch.register_fsdp
    model, exchange = registered(SPEC)
    half = MixedPrecisionPolicy(reduce_dtype=torch.float16)
    scaler = torch.amp.GradScaler("cpu")
    refused = [
        (lambda: register(model, "none"), "as its reduce-scatter already"),
        (lambda: register(Net(), "none"), "module: is a Net without parameters under fully_shard"),
        (lambda: register(ddp(), "none"), "there is gradwire.torch.register()"),
        (lambda: register(_hsdp(), "none"), "its mesh has 2 dimensions"),
        (lambda: register(sharded(), "nonsense"), "nonsense"),
        (lambda: register(sharded(), "powersgd:4"), "not powersgd and not ef21"),
        (lambda: register(sharded(), "topk:1%,ef21"), "not powersgd and not ef21"),
        (lambda: register(sharded(mp_policy=half), "none", scaler=scaler), "cannot hold them unscaled"),
        (lambda: register(sharded(), "none", carrier="pigeon"), "carrier: is 'pigeon'"),
        (lambda: register(sharded(), "none", on_nonfinite="maybe"), "on_nonfinite: is 'maybe'"),
        (lambda: register(sharded(), "int8" if world.rank else "int4"), "differs from rank 0's"),
        (lambda: exchange.residual("nothing"), "'nothing' is no parameter"),
    ]
    for call, text in refused:
        with pytest.raises(gradwire.InvalidArgument, match=re.escape(text)):
            call()
    train(model, 0, 2)  # which is as it was
    exchange.close()
    with pytest.raises(gradwire.InvalidArgument, match="has been closed"):
        step_on(model, 2)


def test_what_cannot_be_is_refused(tmp_path):
    check(2, _refuses, tmp_path)


def _unreached(world):
    model, exchange = registered(SPEC, whole=True)
    with pytest.raises(gradwire.InvalidArgument, match="set_reduce_scatter_unused_params"):
        step_on(model, 0, use=False)


def test_parameters_without_gradient_are_refused(tmp_path):
    check(2, _unreached, tmp_path)


def _factor(world):
    model, exchange = registered(SPEC)
    for part in (model.first, model.maybe, model):
        part.set_gradient_divide_factor(8.0)
    with pytest.raises((gradwire.InvalidArgument, RuntimeError), match="must be AVG or SUM|PREMUL"):
        step_on(model, 0)


def test_a_factor_of_the_backend_is_refused(tmp_path):
    check(2, _factor, tmp_path)


def _nan_on_one(world):
    model, exchange = registered(SPEC)
    calm, other = registered(SPEC)
    for each in (model, calm):
        train(each, 0, 3)
    before = {name: exchange.residual(name) for name, _ in model.named_parameters()}
    loss = loss_of(model, world.rank, 3)
    model.zero_grad()
    with pytest.raises(gradwire.NonFiniteGradient, match="rank 1's gradients of '(maybe|first|)'"):
        (loss * (float("nan") if world.rank == 1 else 1.0)).backward()
    assert all(g.isnan().all() for g in gradients(model).values())
    assert exchange.step == 3 and exchange.stats()["committed"] == 0
    for name, residual in before.items():
        assert torch.equal(residual, exchange.residual(name))
    for each in (model, calm):
        train(each, 4, 8)  # as if that step had never been
    assert torch.equal(weights(model), weights(calm))
    assert exchange.step == 7


def test_nan_on_one_rank_commits_nothing_on_any(tmp_path):
    check(2, _nan_on_one, tmp_path)


def _one_slice(world):
    model, exchange = registered("topk:10%", on_nonfinite="skip")
    train(model, 0, 2)
    if world.rank == 0:  # only what goes to rank 1 holds infinity
        hook = model.first.register_forward_hook(_on_gradient(_last_row))
    model.zero_grad()
    step_on(model, 2)
    if world.rank == 0:
        hook.remove()
    assert all(g.isnan().all() for g in gradients(model).values())
    assert exchange.step == 2 and exchange.stats()["committed"] == 0
    train(model, 3, 5)
    assert exchange.step == 4
    assert_ranks_agree(weights(model))


def _on_gradient(change):
    def hook(module, inputs, output):
        output.register_hook(change)

    return hook


def _last_row(gradient):
    broken = gradient.clone()
    broken[:, -1] = float("inf")
    return broken


def test_infinity_in_one_slice_skips_the_step_everywhere(tmp_path):
    check(2, _one_slice, tmp_path)


def _scales(world):
    plain, _ = registered(SPEC, scaler=False)
    scaled = sharded(whole=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    exchange = gradwire.torch.register_fsdp(scaled, SPEC, scaler=scaler, timeout=30.0)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05) for each in (plain, scaled)]
    for step in range(6):
        for optimizer in optimizers:
            optimizer.zero_grad()
        overflows = step == 3
        if not overflows:
            step_on(plain, step)
            optimizers[0].step()
        loss = scaler.scale(loss_of(scaled, world.rank, step))
        (loss * float("inf") if overflows and world.rank == 0 else loss).backward()
        scaler.step(optimizers[1]), scaler.update()
    # The scale grew and fell; residuals know nothing of it.
    assert torch.equal(weights(plain), weights(scaled))
    assert exchange.step == 5


def _forgotten_scaler(world):
    model, exchange = registered(SPEC)
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(gradwire.InvalidArgument, match="a GradScaler is in use"):
        scaler.scale(loss_of(model, world.rank, 0)).backward()


def _with_scaler_false(world):
    other = torch.amp.GradScaler("cpu")
    other.scale(torch.ones(1))
    model, exchange = registered(SPEC, scaler=False)
    step_on(model, 0)
    assert exchange.step == 1


@pytest.mark.parametrize("body", [_scales, _forgotten_scaler, _with_scaler_false])
def test_scalers(tmp_path, body):
    check(2, body, tmp_path)


def _breaks(gradient):
    raise ValueError("of the script")


def _in_three():
    """Every layer a group of its own, so that two have been reduced when the first layer breaks."""
    model, mesh = Net(), init_device_mesh("cpu", (2,))
    for part in (model.first, model.maybe, model.last, model):
        fully_shard(part, mesh=mesh)
    return model, gradwire.torch.register_fsdp(model, SPEC, timeout=30.0)


def _goes_on_after(world, loads):
    (model, exchange), (calm, _) = _in_three(), _in_three()
    for each in (model, calm):
        train(each, 0, 2)
    state = exchange.state_dict()
    hook = model.first.register_forward_hook(_on_gradient(_breaks))
    with pytest.raises(ValueError, match="of the script"):
        step_on(model, 2)
    hook.remove()
    model.reset_iter_state()
    if loads:
        exchange.load_state_dict(state)
    for each in (model, calm):
        train(each, 3, 6)
    assert torch.equal(weights(model), weights(calm))
    assert exchange.step == 5


@pytest.mark.parametrize("loads", [False, True])
def test_a_backward_that_broke_off_leaves_nothing_behind(tmp_path, loads):
    check(2, partial(_goes_on_after, loads=loads), tmp_path)


def _backward_again(world):
    model, exchange = _in_three()
    hook = model.first.register_forward_hook(_on_gradient(_breaks))
    broken = loss_of(model, world.rank, 0)
    hook.remove()
    other = loss_of(model, world.rank, 1)
    with pytest.raises(ValueError, match="of the script"):
        broken.backward()
    with pytest.raises(gradwire.InvalidArgument, match="a forward pass must come first"):
        other.backward()


def test_a_group_is_reduced_once_in_a_backward(tmp_path):
    check(2, _backward_again, tmp_path)


def _checkpointed(world):
    for reentrant in (True, False):
        (model, exchange), (plain, _) = registered(SPEC), registered(SPEC)
        own = model.maybe.forward
        model.maybe.forward = lambda x, own=own, reentrant=reentrant: checkpoint(
            own, x, use_reentrant=reentrant)
        for each in (model, plain):
            train(each, 0, 4)
        assert torch.equal(weights(model), weights(plain))
        assert exchange.step == 4


def test_activation_checkpointing(tmp_path):
    check(2, _checkpointed, tmp_path)


def _dies(world):
    model, exchange = registered(SPEC, whole=True)
    train(model, 0, 2)
    loss = loss_of(model, world.rank, 2)
    if world.rank == 1:
        os._exit(3)
    started = time.monotonic()
    with pytest.raises(gradwire.TransportError, match="rank 1"):
        loss.backward()
    return time.monotonic() - started


def test_a_rank_that_is_gone_ends_the_backward_of_the_others(tmp_path):
    ends = run_ranks("torch_world", 2, _dies, folder=tmp_path, deadline=60.0, killed=(1,))
    assert ends[0].value < 10, ends[0].trace


def _fails_under_way(world):
    """Rank 1 ends the group in the middle of backward, when groups are under way."""
    model, exchange = registered(SPEC)
    if world.rank == 1:
        model.first.register_full_backward_pre_hook(lambda *_: exchange.transport.abort("enough"))
    loss = loss_of(model, world.rank, 2)
    # Rank 0 hears the word, or sees the connection end if that is there first.
    with pytest.raises(gradwire.TransportError, match="enough" if world.rank == 1 else "enough|rank 1"):
        loss.backward()
    parameters = [p.sharded_param for g in exchange._groups for p in g.group.fsdp_params]
    made = [p.grad.to_local() for p in parameters if p.grad is not None]
    assert all(bool(each.isnan().all()) for each in made), made
    return len(made)


def test_what_nobody_has_written_is_no_gradient(tmp_path):
    assert any(check(2, _fails_under_way, tmp_path))


def _alone(world):
    plain, (model, exchange) = sharded(), registered(SPEC)
    train(plain, 0, 3), train(model, 0, 3)
    assert torch.equal(weights(plain), weights(model))
    assert exchange.stats() == {} and exchange.transport is None and exchange.step == 0
    state = exchange.state_dict()
    exchange.load_state_dict(state)
    with pytest.raises(gradwire.InvalidArgument, match=r"state\['world_size'\]: is 2, must be 1"):
        exchange.load_state_dict(dict(state, world_size=2))
    emptied = dict(state, slices=dict.fromkeys(state["slices"]))
    for wrong, said in ((None, "state: is a NoneType"), (emptied, "a list of 0")):
        with pytest.raises(gradwire.InvalidArgument, match=said):
            exchange.load_state_dict(wrong)
    with pytest.raises(gradwire.InvalidArgument, match="one of auto, gloo, torch, nccl"):
        gradwire.torch.register_fsdp(sharded(), SPEC, carrier="tcp")


def test_one_rank_has_nothing_to_exchange(tmp_path):
    check(1, _alone, tmp_path)


def _disabled_scaler(world):
    model, _ = registered(SPEC, scaler=torch.amp.GradScaler("cpu", enabled=False))
    with pytest.raises(gradwire.NonFiniteGradient):
        (loss_of(model, world.rank, 0) * float("nan")).backward()


def test_a_disabled_scaler_is_none(tmp_path):
    check(2, _disabled_scaler, tmp_path)
