"""NumPy parameters of 16 bits that others write between steps: steps go on from what was written, as those of
float32 parameters do."""

import numpy as np
import pytest

import gradwire

SHAPES = [(70, 60), (9,), (1,)]
OPTIMIZERS = {
    "sgd": "sgd:momentum=0",
    "nesterov": "sgd:nesterov=1",
    "adamw": "adamw",
    "adamw that clips": "adamw:max_grad_norm=0.5",
    "adamw of 8 bits": "adamw:state=8bit",
    "lars": "lars",
    "larc": "larc",
    "lamb": "lamb",
    "onebit-adam": "onebit-adam",
    "onebit-lamb": "onebit-lamb",
}
WAYS = {
    "zeros": lambda p: p.fill(0.0),
    "clip": lambda p: np.clip(p, -0.25, 0.25, out=p),
    "one element": lambda p: p.reshape(-1)[:1].fill(7.25),
    "other values": lambda p: np.copyto(p, np.linspace(-3, 3, p.size).reshape(p.shape).astype(p.dtype)),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("spec", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_masters_of_float16_are_what_float32_parameters_are(spec, way):
    random = np.random.default_rng(5)
    half = [random.normal(size=shape).astype(np.float16) for shape in SHAPES]
    exact = [p.astype(np.float32) for p in half]
    gradients = [np.zeros(shape, np.float32) for shape in SHAPES]
    mine = gradwire.optim.Optimizer(spec, half, gradients, 0.05)
    twin = gradwire.optim.Optimizer(spec, exact, gradients, 0.05)
    for step in range(6):
        if step == 3:
            for p, q in zip(half, exact):
                before = p.copy()
                way(p)
                q[...] = np.where(p == before, q, p)
        for g in gradients:
            g[...] = random.normal(size=g.shape) * 0.1
        mine.step(), twin.step()
        masters = mine.state_dict()["tensors"]
        for i, (p, q) in enumerate(zip(half, exact)):
            assert np.array_equal(masters[str(i)]["master"].reshape(q.shape), q), step
            assert np.array_equal(p, q.astype(np.float16)), step


@pytest.mark.parametrize("written", [0.0, -0.0])
def test_zeros_written_beside_any_remainder_stay_zeros(written):
    random = np.random.default_rng(5)
    bits = (random.normal(size=4000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    gradient = np.zeros(4000, np.float32)
    optimizer = gradwire.SGD([bits], [gradient], lr=0.01, momentum=0.0)
    gradient[...] = random.normal(size=4000)
    optimizer.step()
    assert (optimizer.state_dict()["tensors"]["0"]["remainder"] >= 0x8000).sum() > 1000
    bits[...] = np.uint16(0x8000 if np.signbit(written) else 0)
    gradient[...] = 0.5
    optimizer.step(0.0)
    assert ((bits & 0x7FFF) == 0).all()
    optimizer.step(1.0)
    assert (bits == 0xBF00).all()  # -0.5
