"""A small model under DistributedDataParallel, its batches, and steps of it, for the tests of
gradwire.torch.register()."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

WIDTH = 24


class Net(torch.nn.Module):
    """Two layers that every batch uses, and a third that a batch may leave out."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(7)
        self.first = torch.nn.Linear(16, WIDTH, dtype=dtype)
        self.maybe = torch.nn.Linear(WIDTH, WIDTH, dtype=dtype)
        self.last = torch.nn.Linear(WIDTH, 5, dtype=dtype)

    def forward(self, x, use=True):
        h = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.maybe(h)) if use else h)


def batch(rank, step, dtype=torch.float32):
    """The same whenever it is asked for."""
    generator = torch.Generator().manual_seed(100_000 * rank + step + 1)
    x = torch.randn(8, 16, generator=generator)
    return x.to(dtype), x[:, :5].argmax(1)


def loss_of(model, rank, step, **how):
    x, y = batch(rank, step, next(model.parameters()).dtype)
    return torch.nn.functional.cross_entropy(model(x, **how).float(), y)


def ddp(model=None, **options):
    """Several buckets from the second step on: 500 elements each."""
    return DistributedDataParallel(Net() if model is None else model,
                                   **{"bucket_cap_mb": 0.002, **options})


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def train(model, optimizer, begin, end, **how):
    for step in range(begin, end):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step, **how).backward()
        optimizer.step()


def flat(tensors):
    return torch.cat([t.detach().float().reshape(-1) for t in tensors])


def parameters(model):
    return flat(model.parameters())


def on_all(value):
    """What each rank has."""
    everyone = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, value)
    return everyone


def assert_ranks_agree(value, what=""):
    for rank, other in enumerate(on_all(value)):
        assert torch.equal(value, other), f"{what}: differs from rank {rank}'s"


def registered(spec="tensortopk:10%", **options):
    model = ddp()
    options.setdefault("exempt_1d", "never")
    return model, gradwire.torch.register(model, spec, timeout=30.0, **options)
