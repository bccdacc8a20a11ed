"""Parameters under fully_shard and as plain DTensors, with gradients that all ranks know, and the formulas of
LAMB, LARS, LARC, SGD and AdamW in double precision on whole tensors."""

import math

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import gradwire.torch as gt

OPTIMIZERS = {
    "SGD": lambda p, **k: gt.SGD(p, lr=0.05, **k),
    "SGD with momentum": lambda p, **k: gt.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, **k),
    "AdamW": lambda p, **k: gt.AdamW(p, lr=0.01, **k),
    "LARS": lambda p, **k: gt.LARS(p, lr=0.5, momentum=0.9, weight_decay=0.01, **k),
    "LARC": lambda p, **k: gt.LARC(p, lr=0.05, momentum=0.9, weight_decay=0.01, **k),
    "LAMB": lambda p, **k: gt.LAMB(p, lr=0.01, weight_decay=0.01, **k),
}


class Uneven(torch.nn.Module):
    """Rows that neither 2 nor 3 ranks share evenly; of the last layer rank 2 of 3 has none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(11)
        self.first = torch.nn.Linear(16, 7)
        self.last = torch.nn.Linear(7, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def sharded(shape=None, dtype=torch.float32):
    """An Uneven under fully_shard, over one mesh dimension or, with a shape, over two."""
    model = Uneven().to(dtype)
    names = None if shape is None else ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape or (dist.get_world_size(),), mesh_dim_names=names)
    return fully_shard(model, mesh=mesh)


def whole_of(tensor):
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def wholes(parameters):
    return [whole_of(p) for p in parameters]


def gradient(i, shape, step):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 * step + i + 1)) * 0.3


def fill(parameters, step):
    """The same gradients on all ranks, each of which keeps its part. Returns them whole."""
    given = [gradient(i, p.shape, step) for i, p in enumerate(parameters)]
    for p, g in zip(parameters, given):
        g = g.to(p.dtype)
        if isinstance(p, DTensor):
            p.grad = distribute_tensor(g, p.device_mesh, p.placements)
        else:
            p.grad = g
    return given


class Formula:
    """An optimizer of OPTIMIZERS by its paper, in double precision."""

    def __init__(self, name, values, max_grad_norm=0.0):
        self.name, self.max_grad_norm, self.t = name, max_grad_norm, 0
        self.values = [v.double() for v in values]
        self.first = [torch.zeros_like(v) for v in self.values]
        self.second = [torch.zeros_like(v) for v in self.values]

    def step(self, gradients):
        self.t += 1
        gradients = [g.double() for g in gradients]
        if self.max_grad_norm:
            norm = math.sqrt(sum(float((g * g).sum()) for g in gradients))
            gradients = [g / max(1.0, norm / self.max_grad_norm) for g in gradients]
        for w, m, v, g in zip(self.values, self.first, self.second, gradients):
            getattr(self, "_" + self.name.split()[0].lower())(w, m, v, g)

    def _sgd(self, w, m, v, g):
        if self.name == "SGD":
            w -= 0.05 * g
        else:
            m.mul_(0.9).add_(g + 0.01 * w)
            w -= 0.05 * m

    def _direction(self, w, m, v, g, eps, decay):
        m.mul_(0.9).add_(0.1 * g)
        v.mul_(0.999).add_(0.001 * g * g)
        scaled = (m / (1 - 0.9**self.t)) / ((v / (1 - 0.999**self.t)).sqrt() + eps)
        return scaled + decay * w

    def _adamw(self, w, m, v, g):
        w -= 0.01 * self._direction(w, m, v, g, 1e-8, 0.01)

    def _lamb(self, w, m, v, g):
        u = self._direction(w, m, v, g, 1e-6, 0.01)
        norms = float(w.norm()), float(u.norm())
        w -= 0.01 * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * u

    def _lars(self, w, m, v, g):
        rate = 0.001 * float(w.norm()) / (float(g.norm()) + 0.01 * float(w.norm()) + 1e-6)
        m.mul_(0.9).add_(0.5 * rate * (g + 0.01 * w))
        w -= m

    def _larc(self, w, m, v, g):
        rate = 0.02 * float(w.norm()) / (float(g.norm()) + 0.01 * float(w.norm()) + 1e-8)
        m.mul_(0.9).add_(min(rate / 0.05, 1.0) * (g + 0.01 * w))
        w -= 0.05 * m


def assert_near(parameters, formula):
    for i, (found, wanted) in enumerate(zip(wholes(parameters), formula.values)):
        torch.testing.assert_close(found.double(), wanted, rtol=3e-6, atol=1e-7, msg=f"parameter {i}")


def steps_near_the_formula(name, parameters, steps=4, **options):
    """Of an optimizer and its formula, from the same values and gradients."""
    optimizer = OPTIMIZERS[name](parameters, **options)
    formula = Formula(name, wholes(parameters), options.get("max_grad_norm", 0.0))
    for step in range(steps):
        formula.step(fill(parameters, step))
        optimizer.step()
        assert_near(parameters, formula)
    return optimizer, formula


def parts(parameters):
    """This rank's bits."""
    return [p.detach().to_local().clone() if isinstance(p, DTensor) else p.detach().clone()
            for p in parameters]
