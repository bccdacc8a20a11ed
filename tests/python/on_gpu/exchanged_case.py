"""Ranks of gradwire.torch's DiLoCo and 1-bit optimizers, on the CPU and then on a GPU. That is emulated,
ranks are threads, tensors are the CPU's, and three functions of gradwire.torch.devices are replaced: where
a tensor is, torch's current stream, and a tensor as an array. On a GPU bench/gpu_hook.py does it with
processes."""

import io
import threading
import uuid

import numpy as np
import pytest
from check_reducer import RANKS, run_ranks
from gpu_arrays import EMULATED, GpuArray

torch = pytest.importorskip("torch", reason="torch is an optional extra")

import gradwire  # noqa: E402
from gradwire.torch import devices, exchanged, local_steps, onebit  # noqa: E402

emulated_ranks = pytest.mark.skipif(not EMULATED, reason="ranks that are threads are emulated")

SHAPES = [(40, 30), (30,), (64, 80), (1,)]
NAMED = [(f"p{i}", shape) for i, shape in enumerate(SHAPES)]
CURRENT, REDUCERS = 7, 9  # streams; no number means anything to the emulator
ON_GPU = set()  # threads whose tensors are on the emulated one


def replace_devices(monkeypatch):
    """What a tensor of a thread in ON_GPU is to gradwire.torch."""

    def gpu_of(_):
        return 0 if threading.get_ident() in ON_GPU else None

    def array_of(tensor):
        array = tensor.detach().numpy()
        return array if gpu_of(tensor) is None else GpuArray(array)

    ON_GPU.clear()
    for module in (devices, exchanged, local_steps, onebit):
        for name, stand_in in (("gpu_of", gpu_of), ("array_of", array_of),
                               ("current_stream", lambda gpu: CURRENT)):  # fmt: skip
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)


def both(body):
    """body(make, rank), make(plan) being its reducer, of all ranks on the CPU, then on the GPU."""
    seen = []
    for side in ("cpu", "gpu"):
        cpu, name = gradwire.make_in_process_group(RANKS), uuid.uuid4().hex

        def run(rank, side=side, cpu=cpu, name=name):
            def make(plan, **options):
                if side == "cpu":
                    return gradwire.Reducer(plan, cpu[rank], **options)
                ON_GPU.add(threading.get_ident())
                transport = gradwire.make_transport("nccl", rank=rank, world_size=RANKS, store=name)
                return gradwire.Reducer(plan, transport, stream=REDUCERS, **{"left_out": "nan", **options})

            make.side = side
            return body(make, rank)

        try:
            seen.append(run_ranks(run))
        finally:
            ON_GPU.clear()
    return seen


def start(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def give_gradients(parameters, rank, step, bad=False):
    generator = torch.Generator().manual_seed(1000 * rank + step + 1)
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator)
    if bad and rank == 1:
        parameters[2].grad[3, 4] = float("inf")


def raw(tensors):
    return [None if t is None else np.asarray(t.detach() if hasattr(t, "detach") else t).tobytes()
            for t in tensors]  # fmt: skip


def flat(state):
    """A state of tensors as what == compares."""
    if isinstance(state, dict):
        return {key: flat(value) for key, value in state.items()}
    assert not isinstance(state, np.ndarray)
    return raw([state])[0] if isinstance(state, torch.Tensor) else state


def residuals(reducer):
    return raw([reducer.residual(p) for p in range(len(SHAPES))])


def saved(reducer):
    file = io.BytesIO()
    reducer.save(file)
    return file.getvalue()
