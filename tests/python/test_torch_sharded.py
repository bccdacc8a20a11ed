"""gradwire.torch's optimizers on DTensors: what FSDP2 has made of parameters, on ranks that are processes."""

import functools

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    import torch.distributed as dist
    from sharded_case import (
        OPTIMIZERS,
        Formula,
        assert_near,
        fill,
        parts,
        sharded,
        steps_near_the_formula,
        whole_of,
        wholes,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    import gradwire
    import gradwire.torch as gt

RANKS = pytest.mark.parametrize("ranks", [2, 3])


def _beside_torch(world):
    pairs = [
        (lambda p: gt.SGD(p, lr=0.5), lambda p: torch.optim.SGD(p, lr=0.5)),
        (lambda p: gt.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.02),
         lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.02)),
        (lambda p: gt.AdamW(p, lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01)),
    ]
    for make_mine, make_theirs in pairs:
        mine, theirs = list(sharded().parameters()), list(sharded().parameters())
        before = wholes(mine)
        a, b = make_mine(mine), make_theirs(theirs)
        for step in range(4):
            fill(mine, step), fill(theirs, step)
            a.step(), b.step()
        for p, q, old in zip(mine, theirs, before):
            assert not torch.equal(whole_of(p), old)
            torch.testing.assert_close(whole_of(p), whole_of(q), rtol=3e-6, atol=1e-7)
            for key, value in b.state[q].items():
                if isinstance(value, DTensor):  # torch's SGD counts no steps
                    own = a.state[p][key]
                    assert isinstance(own, DTensor) and own.placements == value.placements, key
                    torch.testing.assert_close(whole_of(own), whole_of(value), rtol=3e-6, atol=1e-7)
                elif key == "step":
                    assert int(a.state[p]["step"]) == int(value) == 4


@RANKS
def test_sgd_and_adamw_step_and_keep_what_torchs_do(tmp_path, ranks):
    check(ranks, _beside_torch, tmp_path)


def _near_formulas(world):
    for name in OPTIMIZERS:
        optimizer, _ = steps_near_the_formula(name, list(sharded().parameters()))
        for state in optimizer.state.values():  # also of a part without elements
            assert int(state["step"]) == 4
        steps_near_the_formula(name, list(sharded().parameters()), max_grad_norm=0.5)


@RANKS
def test_every_optimizer_follows_norms_of_whole_parameters(tmp_path, ranks):
    check(ranks, _near_formulas, tmp_path)


def _near_formulas_with_replicas(world, shape):
    for name in OPTIMIZERS:
        for clip in (0.0, 0.5):
            parameters = list(sharded(shape).parameters())
            steps_near_the_formula(name, parameters, max_grad_norm=clip)
            told = [None] * dist.get_world_size()
            dist.all_gather_object(told, [p.numpy().tobytes() for p in parts(parameters)])
            same = [told[rank] for rank in range(shape[0] * shape[1]) if rank % shape[1] == dist.get_rank()
                    % shape[1]]
            assert all(each == same[0] for each in same)  # replicas, bit for bit


@pytest.mark.parametrize("shape", [(2, 1), (2, 2)])
def test_what_several_ranks_have_counts_once(tmp_path, shape):
    body = functools.partial(_near_formulas_with_replicas, shape=shape)
    check(shape[0] * shape[1], body, tmp_path)


def _on_several_meshes(world):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    for name in OPTIMIZERS:
        for clip in (0.0, 0.5):
            torch.manual_seed(3)
            values = [torch.randn(6, 4), torch.randn(5), torch.randn(4, 4), torch.randn(3)]
            places = [(mesh, [Shard(0), Shard(1)]), (mesh["data"], [Shard(0)]),
                      (mesh["tensor"], [Replicate()]), None]
            parameters = [torch.nn.Parameter(v if at is None else distribute_tensor(v, *at))
                          for v, at in zip(values, places)]
            steps_near_the_formula(name, parameters, max_grad_norm=clip)


def test_parameters_may_lie_on_parts_of_a_mesh_and_be_plain(tmp_path):
    check(4, _on_several_meshes, tmp_path)


def _all_or_none(world):
    for name in OPTIMIZERS:
        for clip in (0.0, 0.5):
            model = sharded()
            parameters = list(model.parameters())
            optimizer = OPTIMIZERS[name](parameters, max_grad_norm=clip)
            fill(parameters, 0)
            optimizer.step()
            before, state = parts(parameters), [
                {k: whole_of(v) for k, v in s.items()} for s in optimizer.state.values()]
            fill(parameters, 1)
            if dist.get_rank() == 1:
                parameters[0].grad.to_local()[0, 3] = float("nan")
            with pytest.raises(gradwire.NonFiniteGradient):
                optimizer.step()
            assert all(map(torch.equal, parts(parameters), before))
            after = [{k: whole_of(v) for k, v in s.items()} for s in optimizer.state.values()]
            for old, new in zip(state, after):
                assert old.keys() == new.keys() and all(torch.equal(old[k], new[k]) for k in old)
            fill(parameters, 1)
            optimizer.step()  # as if nothing had been
            assert not torch.equal(parts(parameters)[0], before[0])


@RANKS
def test_a_gradient_that_is_not_finite_on_one_rank_changes_nothing_on_any(tmp_path, ranks):
    check(ranks, _all_or_none, tmp_path)


def _skipped_by_all(world):
    parameters = list(sharded().parameters())
    # A GradScaler looks at gradients by type, and tells no other rank what it found of plain ones.
    plain = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    optimizer = gt.AdamW([*parameters, plain], lr=0.1)
    for step in range(5):
        fill([*parameters, plain], step)
        for p in [*parameters, plain]:
            p.grad.mul_(4.0)
        if step == 1 and dist.get_rank() == 1:
            plain.grad[0] = float("inf")
        if step == 3 and dist.get_rank() == 0:
            parameters[0].grad.to_local()[0, 0] = float("inf")
        before = parts(parameters)
        scaler.scale(torch.zeros(()))
        scaler.step(optimizer)
        scaler.update()
        left_out = all(map(torch.equal, parts(parameters), before))
        assert left_out == (step in (1, 3))
    assert all(int(state["step"]) == 3 for state in optimizer.state.values())


def test_what_one_ranks_grad_scaler_leaves_out_all_leave_out(tmp_path):
    check(2, _skipped_by_all, tmp_path)


def _rank_that_cannot(world):
    parameters = list(sharded().parameters())
    optimizer = gt.LAMB(parameters, lr=0.01)
    fill(parameters, 0)
    optimizer.step()
    before = parts(parameters)
    fill(parameters, 1)
    if dist.get_rank() == 1:
        optimizer.param_groups[0]["lr"] = -1.0
    wanted = gradwire.InvalidArgument if dist.get_rank() == 1 else gradwire.TransportError
    with pytest.raises(wanted, match="lr"):
        optimizer.step()
    assert all(map(torch.equal, parts(parameters), before))
    optimizer.param_groups[0]["lr"] = 0.01
    optimizer.step()
    assert not torch.equal(parts(parameters)[0], before[0])


def test_a_rank_that_cannot_step_does_not_keep_the_others_waiting(tmp_path):
    check(2, _rank_that_cannot, tmp_path)


def _messages(world):
    sent = []
    for count in (2, 60):
        mesh = init_device_mesh("cpu", (2,))
        parameters = [torch.nn.Parameter(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]))
                      for _ in range(count)]
        optimizer = gt.LAMB(parameters, lr=0.01)
        for step in range(2):
            fill(parameters, step)
            before = optimizer._ranks._transport and optimizer._ranks._transport.counters()
            optimizer.step()
        after = optimizer._ranks._transport.counters()
        sent.append(after["frames_sent"] - before["frames_sent"])
        assert after["bytes_sent"] - before["bytes_sent"] < 16 * count + 200
    assert sent[0] == sent[1] <= 2


def test_norms_of_all_parameters_travel_in_one_message(tmp_path):
    check(2, _messages, tmp_path)


def _partial_gradients(world):
    mesh = init_device_mesh("cpu", (2,))
    p = torch.nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Replicate()]))
    optimizer = gt.SGD([p], lr=1.0)
    own = torch.full((4,), float(dist.get_rank() + 1))
    p.grad = DTensor.from_local(own, mesh, [Partial()], run_check=False)
    optimizer.step()
    assert torch.equal(whole_of(p), torch.full((4,), -2.0))
    p.grad = None
    plain = torch.nn.Parameter(torch.ones(4))
    plain.grad = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    with pytest.raises(gradwire.InvalidArgument, match="is a DTensor, must be a Parameter"):
        gt.SGD([plain], lr=1.0).step()
    with pytest.raises(gradwire.InvalidArgument, match="must be Shard or Replicate"):
        gt.SGD([DTensor.from_local(own, mesh, [Partial()], run_check=False)], lr=1.0)


def test_gradients_of_partial_sums_are_added_up_and_partial_parameters_refused(tmp_path):
    check(2, _partial_gradients, tmp_path)


def _written_and_halves(world):
    for dtype in (torch.float16, torch.bfloat16):
        for name in OPTIMIZERS:
            parameters = list(sharded(dtype=dtype).parameters())
            optimizer = OPTIMIZERS[name](parameters)
            formula = Formula(name, wholes(parameters))
            for step in range(3):
                given = [g.to(dtype) for g in fill(parameters, step)]
                formula.step(given)
                optimizer.step()
            for p, wanted in zip(parameters, formula.values):
                near = torch.finfo(dtype).eps
                torch.testing.assert_close(whole_of(p).double(), wanted, rtol=near, atol=1e-6)
                kept = "master" if dtype == torch.float16 else "remainder"
                assert isinstance(optimizer.state[p][kept], DTensor)


def test_parameters_of_16_bits_keep_sharded_masters(tmp_path):
    check(2, _written_and_halves, tmp_path)


def _in_fsdp(world):
    """Gradients of a backward, beside torch's optimizer; and the loss falls."""
    losses = []
    mine, theirs = sharded(), sharded()
    a, b = gt.AdamW(mine.parameters(), lr=0.01), torch.optim.AdamW(theirs.parameters(), lr=0.01)
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(dist.get_rank()))
    for _ in range(10):
        for model, optimizer in ((mine, a), (theirs, b)):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(float(loss))
    for p, q in zip(mine.parameters(), theirs.parameters()):
        torch.testing.assert_close(whole_of(p), whole_of(q), rtol=1e-4, atol=1e-6)
    assert losses[-1] < losses[0]
    formula = Formula("SGD", wholes(mine.parameters()))
    assert_near(list(mine.parameters()), formula)


@RANKS
def test_training_under_fully_shard_is_as_with_torchs_adamw(tmp_path, ranks):
    check(ranks, _in_fsdp, tmp_path)


def _refused_elsewhere(world):
    model = sharded()
    with gt.transport() as transport:
        shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
        plan = gradwire.make_plan(shapes, "none")
        reducer = gradwire.Reducer(plan, transport)
        for refused in (
            lambda: gt.DiLoCo(model.parameters(), reducer, every=2),
            lambda: gt.OneBitAdam(model.parameters(), reducer, plan, freeze_step=2),
            lambda: gt.attach(model, "none"),
        ):
            with pytest.raises(gradwire.InvalidArgument, match="is a DTensor, of which a rank holds a part"):
                refused()


def test_what_steps_or_exchanges_whole_parameters_refuses_dtensors_by_name(tmp_path):
    check(2, _refused_elsewhere, tmp_path)


def test_other_tensors_without_memory_of_their_own_are_refused_by_name():
    from torch.testing._internal.two_tensor import TwoTensor

    wrapped = torch.nn.Parameter(TwoTensor(torch.ones(3), torch.ones(3)))
    plain = torch.nn.Parameter(torch.ones(3))
    for make in OPTIMIZERS.values():
        with pytest.raises(gradwire.InvalidArgument, match=r"is a torch\..*\.TwoTensor, which has no memory"):
            make([plain, wrapped])
    optimizer = gt.SGD([plain], lr=1.0)
    plain.grad = TwoTensor(torch.ones(3), torch.ones(3))
    with pytest.raises(gradwire.InvalidArgument, match="gradient of .*TwoTensor"):
        optimizer.step()
    assert torch.equal(plain, torch.ones(3))

    class Named(torch.Tensor):
        """A tensor with memory of its own."""

    own = torch.nn.Parameter(torch.ones(3).as_subclass(Named))
    optimizer = gt.SGD([own], lr=0.5)
    own.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(own.detach().as_subclass(torch.Tensor), torch.full((3,), 0.5))
