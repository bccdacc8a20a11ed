"""Models whose gradients are given to the bit, exchanged on every path from PyTorch, and their digests."""

import hashlib
import io

import numpy as np
import torch
import torch.distributed as dist
from exact_values import values
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch

PATHS = ("register", "attach", "fsdp", "local_steps")
SMALL, LARGE = ((9, 11), (40,)), ((64, 65), (4097,))


class Sum(torch.nn.Module):
    """Sums products of its parameters and what it is called with, which so is their gradient."""

    def __init__(self, shapes):
        super().__init__()
        for i, shape in enumerate(shapes):
            self.register_parameter(f"p{i}", torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, *values):
        return sum((p * v).sum() for p, v in zip(self.parameters(), values))


def of_step(shapes, rank, step):
    return [torch.from_numpy(values(shape, rank, step, i)) for i, shape in enumerate(shapes)]


class Path:
    """One way of exchanging gradients: step() returns what all ranks have, as arrays."""

    def __init__(self, path, spec, shapes):
        self.path, self.shapes, self.rank = path, shapes, dist.get_rank()
        self.model = Sum(shapes)
        options = {"timeout": 60.0, "seed": 3}
        if path == "register":
            self.model = DistributedDataParallel(self.model, bucket_cap_mb=0.002)
            self.exchange = gradwire.torch.register(self.model, spec, **options)
        elif path == "attach":
            self.exchange = gradwire.torch.attach(self.model, spec, **options)
        elif path == "fsdp":
            fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
            self.exchange = gradwire.torch.register_fsdp(self.model, spec, **options)
        else:
            named = [(name, tuple(p.shape)) for name, p in self.model.named_parameters()]
            plan = gradwire.make_plan(named, spec, seed=3)
            self.transport = gradwire.torch.transport()
            self.reducer = gradwire.Reducer(plan, self.transport)
            self.exchange = gradwire.torch.DiLoCo(
                self.model.parameters(), self.reducer, 2, lr=0.5, momentum=0.0, nesterov=False)

    def step(self, step):
        given = of_step(self.shapes, self.rank, step)
        if self.path == "local_steps":
            with torch.no_grad():
                for p, v in zip(self.model.parameters(), given):
                    p -= v
            self.exchange.step()
            return [p.detach().numpy() for p in self.model.parameters()] if step % 2 else []
        self.model.zero_grad()
        self.model(*given).backward()
        if self.path == "attach":
            self.exchange.wait()
        gradients = [p.grad for p in self.model.parameters()]
        if self.path == "fsdp":
            gradients = [g.full_tensor() for g in gradients]
        return [g.numpy() for g in gradients]

    def state(self):
        if self.path != "local_steps":
            return {"exchange": self.exchange.state_dict()}
        # Parameters and the reducer are the caller's own to save.
        saved = io.BytesIO()
        self.reducer.save(saved)
        return {"exchange": self.exchange.state_dict(),
                "reducer": torch.frombuffer(bytearray(saved.getvalue()), dtype=torch.uint8),
                "parameters": [p.detach().clone() for p in self.model.parameters()]}

    def load(self, state):
        if self.path == "local_steps":
            with torch.no_grad():
                for p, saved in zip(self.model.parameters(), state["parameters"]):
                    p.copy_(saved)
            own = state["reducer"].numpy().tobytes()
            self.reducer.load(lambda rank: io.BytesIO(own) if rank == self.rank else None)
        self.exchange.load_state_dict(state["exchange"])

    def close(self):
        if self.path == "local_steps":
            self.transport.close()
        elif self.path == "attach":
            self.exchange.detach()
        else:
            self.exchange.close()


def digest_of(path, begin, end):
    """Of the steps' results; every rank has the same."""
    digest = hashlib.sha256()
    for step in range(begin, end):
        for array in path.step(step):
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
