"""gradwire.torch's optimizers with parameters on a GPU. Where it is emulated tensors are the CPU's, and
three functions of gradwire.torch.devices are replaced: where a tensor is, torch's current stream, and
gradwire's memory as a tensor."""

import copy
import types

import pytest
from gpu_arrays import EMULATED, host_capsule, missing

torch = pytest.importorskip("torch", reason="torch is an optional extra")

from torch_optimizers import OPTIMIZERS, SHAPES  # noqa: E402

import gradwire  # noqa: E402
import gradwire.torch as gt  # noqa: E402
from gradwire.torch import devices, stepped  # noqa: E402

every = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


ON_GPU = set()  # addresses of the tensors that are on the emulated one


@pytest.fixture
def device(monkeypatch):
    """Where tests put what is to be on the GPU, and where the others are."""
    torch.manual_seed(20261123)
    if not EMULATED:
        if missing() or not torch.cuda.is_available():
            pytest.skip(missing() or "torch sees no GPU")
        return "cuda"
    ON_GPU.clear()

    def gpu_of(tensor):
        return 0 if tensor.data_ptr() in ON_GPU else None

    for module in (devices, stepped):
        monkeypatch.setattr(module, "gpu_of", gpu_of)
    monkeypatch.setattr(stepped, "current_stream", lambda gpu: 7)
    monkeypatch.setattr(stepped, "tensor_over", lambda a: torch.utils.dlpack.from_dlpack(host_capsule(a)))
    return "cpu"


def put(values, device):
    """New parameters on the GPU."""
    made = [torch.nn.Parameter(v.detach().clone().to(device)) for v in values]
    if EMULATED:
        ON_GPU.update(p.data_ptr() for p in made)
    return made


def parameters(dtype=torch.float32):
    return [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def fill(here, there, without=None):
    """The same new gradients for both, as new tensors."""
    for i, (a, b) in enumerate(zip(here, there)):
        gradient = torch.randn(a.shape).to(a.dtype)
        a.grad = None if i == without else gradient
        b.grad = None if i == without else gradient.clone().to(b.device)


def same(there, here):
    for a, b in zip(there, here):
        assert torch.equal(a.detach().cpu(), b.detach())


def same_states(ours, theirs):
    assert ours["state"].keys() == theirs["state"].keys()
    for place, state in theirs["state"].items():
        assert state.keys() == ours["state"][place].keys()
        for key, tensor in state.items():
            assert torch.equal(ours["state"][place][key].cpu(), tensor), (place, key)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_and_states_have_the_bits_of_the_cpu(device, make, dtype):
    here = parameters(dtype)
    there = put(here, device)
    ours, theirs = make(there), make(here)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (ours, theirs)]
    for step in range(6):
        fill(here, there, without=4 if step == 3 else None)
        ours.step(), theirs.step()
        for schedule in schedules:
            schedule.step()
    ours.check()
    same(there, here)
    same_states(ours.state_dict(), theirs.state_dict())
    assert all(s["step"] == (5 if place == 4 else 6) for place, s in ours.state_dict()["state"].items()
               if SHAPES[place] != (0,))  # fmt: skip


def test_nothing_is_read_by_the_host_in_a_step(device, monkeypatch):
    here = parameters()
    there = put(here, device)
    optimizer = gt.AdamW(there)
    fill(here, there)
    optimizer.step()
    optimizer.grad_scale = torch.tensor(4.0, device=device)
    optimizer.found_inf = torch.tensor(0.0, device=device)
    for name in ("item", "cpu", "tolist", "__float__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("a step read a tensor"))
    fill_like = [torch.ones_like(p) for p in there]
    for p, g in zip(there, fill_like):
        p.grad = g
    optimizer.step()


def test_a_grad_scaler_skips_what_overflows_and_nothing_else(device):
    here = parameters()
    there = put(here, device)
    pairs = []
    for values, kind in ((here, "cpu"), (there, device)):
        optimizer = gt.AdamW(values, lr=0.01)
        scaler = torch.amp.GradScaler(kind, init_scale=1024.0, growth_interval=2)
        pairs.append((values, optimizer, scaler))
    for step in range(6):
        gradients = [torch.randn(shape) for shape in SHAPES]
        for values, optimizer, scaler in pairs:
            scale = float(scaler.scale(torch.ones((), device=values[0].device)))
            for p, g in zip(values, gradients):
                p.grad = (g * scale).to(p.device)
            if step in (0, 3):
                values[4].grad[7] = torch.inf
            scaler.step(optimizer)
            scaler.update()
    assert pairs[0][2].get_scale() == pairs[1][2].get_scale()
    pairs[1][1].check()
    same(there, here)
    same_states(pairs[1][1].state_dict(), pairs[0][1].state_dict())


def test_gradients_that_are_not_finite_stop_steps_until_they_are_asked_for(device):
    here = parameters()
    there = put(here, device)
    names = [f"layer{i}" for i in range(len(there))]
    optimizer = gt.SGD(list(zip(names, there)), lr=0.1)
    fill(here, there)
    there[4].grad[3] = torch.nan
    optimizer.step()
    fill(here, there)
    optimizer.step()
    same(there, here)
    with pytest.raises(gradwire.NonFiniteGradient, match="gradient of parameter 'layer4'"):
        optimizer.state_dict()
    fill(here, there)
    optimizer.step()
    gt.SGD(here, lr=0.1).step()
    same(there, here)
    optimizer.check()


def test_a_fault_is_told_before_the_steps_begin_anew(device):
    here = parameters()
    there = put(here, device)
    optimizer = gt.SGD(there[:4], lr=0.1)
    fill(here, there)
    there[0].grad[3] = torch.nan
    optimizer.step()
    with pytest.raises(gradwire.NonFiniteGradient, match="gradient of parameter '0'"):
        optimizer.add_param_group({"params": there[4:]})
    assert len(optimizer.param_groups) == 1
    optimizer.step()
    optimizer.param_groups[0]["momentum"] = 0.9  # which it has kept no memory for
    with pytest.raises(gradwire.NonFiniteGradient, match="gradient of parameter '0'"):
        optimizer.step()
    same(there, here)


def test_parameters_may_leave_the_gpu(device):
    here = parameters()
    there = put(here, device)
    ours, theirs = gt.AdamW(there), gt.AdamW(here)
    for step in range(4):
        if step == 2:
            ON_GPU.clear()
            for p in there:
                p.grad, p.data = None, p.data.to("cpu", copy=True)
            ours._layouts = []  # where it is emulated no tensor changes its device
        fill(here, there)
        ours.step(), theirs.step()
    same(there, here)
    same_states(ours.state_dict(), theirs.state_dict())


@every
def test_a_state_moves_between_cpu_and_gpu(device, make):
    here = parameters()
    there = put(here, device)
    ours, theirs = make(there), make(here)
    for _ in range(2):
        fill(here, there)
        ours.step(), theirs.step()
    state = copy.deepcopy(ours.state_dict())
    from_gpu = [torch.nn.Parameter(p.detach().cpu().clone()) for p in there]
    to_gpu = put(here, device)
    back, forth = make(from_gpu), make(to_gpu)
    back.load_state_dict(state)
    forth.load_state_dict(theirs.state_dict())
    fill(here, there)
    for group in (from_gpu, to_gpu):
        for p, q in zip(group, here):
            p.grad = q.grad.clone().to(p.device)
    for optimizer in (ours, theirs, back, forth):
        optimizer.step()
    for group in (there, from_gpu, to_gpu):
        same(group, here)
    same_states(forth.state_dict(), theirs.state_dict())


def test_a_group_that_joins_leaves_the_counts_of_others(device):
    here = parameters()
    there = put(here, device)
    ours, theirs = gt.AdamW(there[:4]), gt.AdamW(here[:4])
    fill(here, there)
    ours.step(), theirs.step()
    for optimizer, values in ((ours, there), (theirs, here)):
        optimizer.add_param_group({"params": values[4:], "lr": 0.1})
    fill(here, there)
    ours.step(), theirs.step()
    same(there, here)
    same_states(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("change", [
    lambda state: state.update(exp_avg=torch.full_like(state["exp_avg"], 0.25)),
    lambda state: state.update(step=torch.tensor(40)),
    lambda state: state["step"].fill_(40),
    lambda state: state.clear(),
], ids=["a moment", "a count", "a count in place", "nothing is left"])  # fmt: skip
def test_state_that_somebody_replaces_is_stepped_from(device, change):
    here = parameters()
    there = put(here, device)
    ours, theirs = gt.AdamW(there, lr=0.01), gt.AdamW(here, lr=0.01)
    for step in range(4):
        if step == 2:
            change(ours.state[there[0]]), change(theirs.state[here[0]])
        fill(here, there)
        ours.step(), theirs.step()
        same(there, here)
    same_states(ours.state_dict(), theirs.state_dict())


def test_a_look_at_the_state_before_the_first_step_is_not_counted(device):
    here = parameters()
    there = put(here, device)
    ours, theirs = gt.AdamW(there, lr=0.0), gt.AdamW(here, lr=0.01)
    for p in there:
        p.grad = torch.zeros_like(p)
    ours.step()  # as torch.distributed.checkpoint makes it
    assert int(ours.state[there[0]]["step"]) == 0
    ours.param_groups[0]["lr"] = 0.01
    for _ in range(2):
        fill(here, there)
        ours.step(), theirs.step()
        same(there, here)
    same_states(ours.state_dict(), theirs.state_dict())


def test_gradients_in_another_order_of_elements_are_followed(device):
    here = [torch.nn.Parameter(torch.randn(6, 3, 5, 5).to(memory_format=torch.channels_last))]
    there = put(here, device)
    ours, theirs = gt.LAMB(there), gt.LAMB(here)
    for _ in range(2):
        gradient = torch.randn(6, 3, 5, 5)
        here[0].grad, there[0].grad = gradient, gradient.clone().to(there[0].device)
        ours.step(), theirs.step()
    same(there, here)


def test_tensors_elsewhere_are_refused_when_the_optimizer_is_made(device):
    with pytest.raises(gradwire.InvalidArgument, match="is on meta, must be in memory of the CPU or of"):
        gt.SGD([torch.nn.Parameter(torch.empty(3, device="meta"))], lr=0.1)
    far = types.SimpleNamespace(device=torch.device("cuda:1"), get_device=lambda: 1, data_ptr=lambda: 0)
    ON_GPU.add(0)
    with pytest.raises(gradwire.InvalidArgument, match="p: is on cuda:1, must be on cpu, where the first"):
        devices.check_device("p", far, [torch.zeros(1)])
