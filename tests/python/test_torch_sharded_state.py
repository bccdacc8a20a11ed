"""State of gradwire.torch's optimizers on DTensors: state_dict(), and torch.distributed.checkpoint, which
reshards it."""

import functools

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    import torch.distributed.checkpoint as dcp
    from sharded_case import OPTIMIZERS, Formula, assert_near, fill, parts, sharded, whole_of, wholes
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        get_state_dict,
        set_optimizer_state_dict,
        set_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    import gradwire
    import gradwire.torch as gt


def _go_on_from_a_state_dict(world):
    for name in OPTIMIZERS:
        mine, other = list(sharded().parameters()), list(sharded().parameters())
        a, b = OPTIMIZERS[name](mine), OPTIMIZERS[name](other)
        for step in range(3):
            fill(mine, step)
            a.step()
        with torch.no_grad():
            for p, q in zip(mine, other):
                q.copy_(p)
        b.load_state_dict(a.state_dict())
        for value in (v for s in b.state.values() for k, v in s.items() if k != "step"):
            assert isinstance(value, DTensor)
        for step in range(3, 5):
            fill(mine, step), fill(other, step)
            a.step(), b.step()
        assert all(map(torch.equal, parts(mine), parts(other)))


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_loaded_state_dict_goes_on_bit_for_bit(tmp_path, ranks):
    check(ranks, _go_on_from_a_state_dict, tmp_path)


def _load_torchs(world):
    mine, theirs = list(sharded().parameters()), list(sharded().parameters())
    a, b = gt.AdamW(mine, lr=0.01), torch.optim.AdamW(theirs, lr=0.01)
    for step in range(3):
        fill(theirs, step)
        b.step()
    with torch.no_grad():
        for p, q in zip(mine, theirs):
            p.copy_(q)
    a.load_state_dict(b.state_dict())
    for step in range(3, 5):
        fill(mine, step), fill(theirs, step)
        a.step(), b.step()
    for p, q in zip(mine, theirs):
        torch.testing.assert_close(whole_of(p), whole_of(q), rtol=3e-6, atol=1e-7)


def test_a_state_dict_of_torchs_adamw_on_dtensors_is_taken(tmp_path):
    check(3, _load_torchs, tmp_path)


def _load_whole(world, state):
    """State of an optimizer on whole tensors, with codes or floats."""
    torch.manual_seed(5)
    value = torch.randn(90, 50)
    whole = torch.nn.Parameter(value.clone())
    plain = gt.AdamW([whole], lr=0.01, state=state)
    for step in range(3):
        fill([whole], step)
        plain.step()
    mesh = init_device_mesh("cpu", (3,))
    p = torch.nn.Parameter(distribute_tensor(whole.detach().clone(), mesh, [Shard(0)]))
    own = gt.AdamW([p], lr=0.01)
    saved = plain.state_dict()
    own.load_state_dict(saved)
    if state == "float32":
        assert torch.equal(whole_of(own.state[p]["exp_avg"]), saved["state"][0]["exp_avg"])
    floats = gt.AdamW([torch.nn.Parameter(value.clone())], lr=0.01)
    floats.load_state_dict(saved)  # codes as what they stand for
    for key in ("exp_avg", "exp_avg_sq"):
        (there,) = floats.state.values()
        assert torch.equal(whole_of(own.state[p][key]), there[key])
    bad = {**saved, "state": {0: {**saved["state"][0], "exp_avg": torch.ones(30, 50)}}}
    bad["state"][0].pop("exp_avg.scale", None)
    with pytest.raises(gradwire.InvalidArgument, match=r"is \(30, 50\), must have its parameter's shape"):
        own.load_state_dict(bad)


@pytest.mark.parametrize("state", ["float32", "8bit"])
def test_state_of_whole_parameters_is_taken_part_by_part(tmp_path, state):
    check(3, functools.partial(_load_whole, state=state), tmp_path)


def _saved(world, folder, name, dtype):
    model = sharded(dtype=dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    parameters = list(model.parameters())
    for step in range(3):
        fill(parameters, step)
        optimizer.step()
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.save(states, checkpoint_id=folder)
    return [whole_of(p).tolist() for p in parameters]


def _resharded(world, folder, name, dtype, near):
    model = sharded(dtype=dtype)
    optimizer = OPTIMIZERS[name](model.parameters())
    parameters = list(model.parameters())
    formula = Formula(name, wholes(parameters))
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=states["model"],
                   optim_state_dict=states["optimizer"])
    before = [whole_of(p).tolist() for p in parameters]
    assert all(int(s["step"]) == 3 for s in optimizer.state.values())
    fill(parameters, 3)
    optimizer.step()
    for step in range(4):
        formula.step([g.to(dtype) for g in fill(parameters, step)])
    if near:
        assert_near(parameters, formula)
    return before


CASES = [
    (2, 3, "SGD", "float32"), (2, 3, "SGD with momentum", "float32"), (2, 3, "AdamW", "float32"),
    (2, 3, "LARS", "float32"), (2, 3, "LARC", "float32"), (2, 3, "LAMB", "float32"),
    (2, 3, "LAMB", "float16"), (2, 3, "AdamW", "bfloat16"), (3, 2, "AdamW", "float32"),
    (3, 2, "LAMB", "float16"),
]


@pytest.mark.parametrize("ranks, later, name, dtype", CASES)
def test_a_distributed_checkpoint_goes_on_at_another_number_of_ranks(tmp_path, ranks, later, name, dtype):
    how = {"folder": str(tmp_path / "saved"), "name": name, "dtype": getattr(torch, dtype)}
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    saved = check(ranks, functools.partial(_saved, **how), tmp_path / "a")
    loaded = check(later, functools.partial(_resharded, near=dtype == "float32", **how), tmp_path / "b")
    assert saved[0] == loaded[0]


def _whole_state(world):
    """Three ranks, of which the last has nothing of the last bias."""
    for dtype in (torch.float16, torch.bfloat16):
        model = sharded(dtype=dtype)
        whole = [torch.nn.Parameter(whole_of(p)) for p in model.parameters()]
        mine, alone = (gt.SGD(ps, lr=0.1, momentum=0.9) for ps in (model.parameters(), whole))
        for step in range(3):
            fill(list(model.parameters()), step), fill(whole, step)
            mine.step(), alone.step()
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        saved = get_optimizer_state_dict(model, mine, options=options)
        if world.rank == 0:
            names = [name for name, _ in model.named_parameters()]
            for name, p in zip(names, whole):
                assert set(saved["state"][name]) == set(alone.state[p])
                for key, exact in alone.state[p].items():
                    assert torch.equal(saved["state"][name][key].to(exact.dtype), exact), (dtype, name, key)
        other = sharded(dtype=dtype)
        with torch.no_grad():
            for p, q in zip(model.parameters(), other.parameters()):
                q.copy_(p)
        again = gt.SGD(other.parameters(), lr=0.1, momentum=0.9)
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_optimizer_state_dict(other, again, saved, options=options)
        for step in range(3, 5):
            fill(list(other.parameters()), step), fill(whole, step)
            again.step(), alone.step()
        assert all(map(torch.equal, wholes(other.parameters()), whole))


def test_masters_are_gathered_whole_where_a_rank_has_no_element(tmp_path):
    check(3, _whole_state, tmp_path)


def _codes(world):
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(5)
    value = torch.randn(200, 60)  # 6000 elements a rank: codes
    p, q = (torch.nn.Parameter(distribute_tensor(value.clone(), mesh, [Shard(0)])) for _ in range(2))
    a, b = gt.AdamW([p], lr=0.01, state="8bit"), gt.AdamW([q], lr=0.01, state="8bit")
    for step in range(3):
        fill([p], step)
        a.step()
    assert a.state[p]["exp_avg"].dtype == torch.uint8
    saved = a.state_dict()["state"][0]
    assert set(saved) == {"step", "exp_avg", "exp_avg_sq"}
    assert saved["exp_avg"].dtype == torch.float32 and saved["exp_avg"].shape == (200, 60)
    with torch.no_grad():
        q.copy_(p)
    b.load_state_dict(a.state_dict())
    again = b.state_dict()["state"][0]
    for key in ("exp_avg", "exp_avg_sq"):
        assert b.state[q][key].dtype == torch.uint8
        assert torch.equal(whole_of(again[key]), whole_of(saved[key]))
    fill([p], 3), fill([q], 3)
    a.step(), b.step()
    assert torch.equal(p.to_local(), q.to_local())


def test_codes_of_8_bits_are_saved_as_floats_and_stand_for_the_same_again(tmp_path):
    check(2, _codes, tmp_path)
