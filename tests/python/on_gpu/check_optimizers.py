"""Optimizers on arrays of a GPU: the CPU's bits, faults kept there, states in CPU memory."""

import ctypes

import numpy as np
import pytest
from gpu_arrays import EMULATED, GpuArray

import gradwire

SHAPES = [(40, 30), (30,), (1,), (5000,), (6, 3, 5, 5)]
SPECS = ["sgd", "sgd:nesterov=1,weight_decay=0.01", "adamw", "lars", "larc", "lamb:preset=apex",
         "adamw:state=8bit", "lamb:max_grad_norm=0.5"]  # fmt: skip


def arrays(seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in SHAPES]


def pair(gpu, spec, dtype=np.float32, **options):
    """The same optimizer on the CPU and on the GPU, and their parameters."""
    here, there = arrays(1, dtype), [gpu.array(a) for a in arrays(1, dtype)]
    unread = arrays(2, dtype), [gpu.array(a) for a in arrays(2, dtype)]
    return (gradwire.Optimizer(spec, here, unread[0], 0.01, **options), here,
            gradwire.Optimizer(spec, there, unread[1], 0.01, stream=gpu.stream, **options), there)


def same(gpu, there, here):
    for a, b in zip(there, here):
        np.testing.assert_array_equal(gpu.host(a), b)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_steps_have_the_bits_of_the_cpu(gpu, spec, dtype):
    groups = [{"parameters": [1, 2], "weight_decay": 0.0, "learning_rate_scale": 0.5}]
    cpu, here, on_gpu, there = pair(gpu, spec, dtype, groups=groups)
    assert on_gpu.device == "cuda:0" and cpu.device == "cpu"
    for step in range(3):
        cpu.step(gradient_scale=0.5)
        on_gpu.step(gradient_scale=0.5, stream=gpu.stream)
        cpu.step_on(arrays(step + 3))
        on_gpu.step_on([gpu.array(a) for a in arrays(step + 3)], stream=gpu.stream)
    same(gpu, there, here)
    ours, theirs = on_gpu.state_dict(), cpu.state_dict()
    assert ours["scalars"] == theirs["scalars"] and on_gpu.state_bytes == cpu.state_bytes
    for name, state in theirs["tensors"].items():
        for key, tensor in state.items():
            np.testing.assert_array_equal(ours["tensors"][name][key], tensor)


def test_a_step_of_sgd_is_that_of_a_loop(gpu):
    value, gradient = np.float32([1, 2, -3, 0.5]), np.float32([0.5, -1, 2, 4])
    there = gpu.array(value)
    optimizer = gradwire.SGD([there], [gpu.array(gradient)], 0.25, momentum=0.5, stream=gpu.stream)
    velocity = np.zeros(4, np.float32)
    for _ in range(3):
        optimizer.step(stream=gpu.stream)
        velocity = np.float32(0.5) * velocity + gradient
        value = value - np.float32(0.25) * velocity
    np.testing.assert_array_equal(gpu.host(there), value)


def test_a_gradient_that_is_not_finite_is_kept_until_it_is_asked_for(gpu):
    cpu, here, on_gpu, there = pair(gpu, "adamw", names=["a", "b", "c", "d", "e"])
    bad = [gpu.array(a) for a in arrays(5)]
    wrong = arrays(5)[3]
    wrong[7] = np.nan
    bad[3] = gpu.array(wrong)
    on_gpu.step_on(bad, stream=gpu.stream)  # nothing is raised here
    on_gpu.step(stream=gpu.stream)
    same(gpu, there, here)
    with pytest.raises(gradwire.NonFiniteGradient, match="gradient of parameter 'd'"):
        on_gpu.check(gpu.stream)
    on_gpu.check(gpu.stream)
    on_gpu.step(stream=gpu.stream), cpu.step()
    same(gpu, there, here)
    on_gpu.step_on(bad, on_nonfinite="skip", stream=gpu.stream)
    on_gpu.check(gpu.stream)
    assert on_gpu.skipped_steps(gpu.stream) == 1
    same(gpu, there, here)


def test_a_loss_scaler_is_read_on_the_gpu(gpu):
    cpu, here, on_gpu, there = pair(gpu, "adamw")
    scale, found, none = (gpu.array(np.float32([x])) for x in (8, 1, 0))
    on_gpu.step(stream=gpu.stream, loss_scale=scale, found_inf=found)
    same(gpu, there, here)
    on_gpu.step(stream=gpu.stream, loss_scale=scale, found_inf=none)
    cpu.step(gradient_scale=1 / 8)
    same(gpu, there, here)
    on_gpu.step(stream=gpu.stream, loss_scale=none)
    with pytest.raises(gradwire.InvalidArgument, match="loss_scale in GPU memory is 0"):
        on_gpu.check(gpu.stream)
    same(gpu, there, here)
    assert on_gpu.skipped_steps(gpu.stream) == 1


@pytest.mark.parametrize("spec", ["adamw", "sgd:state=8bit"])
def test_a_checkpoint_moves_between_cpu_and_gpu(gpu, spec):
    cpu, here, on_gpu, there = pair(gpu, spec)
    for _ in range(2):
        cpu.step()
    state = cpu.state_dict()
    values = [gpu.array(a) for a in here]
    gradients = [gpu.array(a) for a in arrays(2)]
    moved = gradwire.Optimizer(spec, values, gradients, 0.5, stream=gpu.stream)
    moved.load_state_dict(state)
    moved.step(stream=gpu.stream), cpu.step()
    same(gpu, values, here)
    back = gradwire.Optimizer(spec, [gpu.host(v).reshape(v.shape) for v in values], arrays(2), 0.5)
    back.load_state_dict(moved.state_dict())
    back.step(), cpu.step()
    assert back.state_dict()["scalars"] == cpu.state_dict()["scalars"]


def test_local_steps_write_their_moves_there(gpu):
    values = [gpu.array(a) for a in arrays(1)]
    moves = [gpu.array(a) for a in arrays(2)]
    outer = gradwire.DiLoCo(values, moves, 0.7, stream=gpu.stream)
    inner = gradwire.SGD(values, [gpu.array(a) for a in arrays(3)], 0.5, momentum=0.0, stream=gpu.stream)
    inner.step(stream=gpu.stream)
    assert outer.exchanges == "moves"
    outer.prepare(stream=gpu.stream)
    for move, before, after in zip(moves, arrays(1), values):
        np.testing.assert_array_equal(gpu.host(move), before - gpu.host(after))


@pytest.mark.parametrize("kind", [gradwire.OneBitAdam, gradwire.OneBitLAMB])
def test_1bit_optimizers_change_what_they_exchange_as_on_the_cpu(gpu, kind):
    here, there = arrays(1), [gpu.array(a) for a in arrays(1)]
    sent = arrays(2), [gpu.array(a) for a in arrays(2)]
    cpu = kind(here, sent[0], 0.01, freeze_step=2)
    on_gpu = kind(there, sent[1], 0.01, freeze_step=2, stream=gpu.stream)
    seen = []
    for _ in range(4):
        assert on_gpu.exchanges == cpu.exchanges
        seen.append(cpu.exchanges)
        cpu.prepare(), on_gpu.prepare(stream=gpu.stream)
        same(gpu, sent[1], sent[0])
        cpu.step(), on_gpu.step(stream=gpu.stream)
        on_gpu.check(gpu.stream)
        same(gpu, there, here)
    assert seen == ["gradients"] * 2 + ["momentum"] * 2


def test_new_values_are_handed_out_as_copies(gpu):
    here = gradwire.FunctionalOptimizer("lamb", arrays(1), 0.1)
    there = gradwire.FunctionalOptimizer("lamb", [gpu.array(a) for a in arrays(1)], 0.1, stream=gpu.stream)
    for step in range(3):
        wanted = here.update(arrays(step))
        got = there.update([gpu.array(a) for a in arrays(step)], stream=gpu.stream)
        for a, b in zip(got, wanted):
            assert a.shape == b.shape
            np.testing.assert_array_equal(a.to_numpy(), b)
    there.check()
    state = there.state_dict()
    fresh = gradwire.FunctionalOptimizer("lamb", [gpu.array(a) for a in arrays(9)], 0.1, stream=gpu.stream)
    fresh.load_state_dict(state)
    got = fresh.update([gpu.array(a) for a in arrays(4)], stream=gpu.stream)
    for a, b in zip(got, here.update(arrays(4))):
        np.testing.assert_array_equal(a.to_numpy(), b)


def test_copies_of_parameters_are_waited_for_by_steps_on_other_streams(emulated):
    optimizer = gradwire.FunctionalOptimizer("sgd", [GpuArray(a) for a in arrays(1)], 0.1, stream=7)
    unmarked = ctypes.c_int.in_dll(ctypes.CDLL(EMULATED), "gradwire_copies_unmarked")
    for copy in (lambda: optimizer.update([GpuArray(a) for a in arrays(2)], stream=8),
                 optimizer.parameters):
        unmarked.value = -1
        copy()
        assert unmarked.value == 0  # an event behind the last copy, for which the next call waits


def test_copies_go_through_convert(gpu):
    optimizer = gradwire.FunctionalOptimizer(
        "sgd", [gpu.array(a) for a in arrays(1)], 0.1, stream=gpu.stream, convert=lambda a: a.nbytes)
    assert optimizer.parameters() == [a.nbytes for a in arrays(1)]
