"""A small model under fully_shard, and steps of it, for the tests of gradwire.torch.register_fsdp()."""

import torch
import torch.distributed as dist
from ddp_case import Net, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gradwire.torch


def sharded(model=None, whole=True, **options):
    """Two parameter groups of their own and one of the root, whose rows the ranks cannot share evenly;
    or one group of all."""
    model = Net() if model is None else model
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if not whole:
        for part in (model.first, model.maybe):
            fully_shard(part, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def registered(spec, whole=False, fsdp=None, **options):
    model = sharded(whole=whole, **(fsdp or {}))
    return model, gradwire.torch.register_fsdp(model, spec, timeout=30.0, **options)


def step_on(model, step, **how):
    loss = loss_of(model, dist.get_rank(), step, **how)
    loss.backward()
    return loss


def train(model, begin, end, lr=0.05):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for step in range(begin, end):
        optimizer.zero_grad()
        step_on(model, step)
        optimizer.step()


def loss_far_ahead(model):
    """Of batches that no training has seen, the mean over them."""
    with torch.no_grad():
        loss = sum(float(loss_of(model, dist.get_rank(), 1000 + i)) for i in range(20)) / 20
    model.reshard()  # which FSDP leaves to backward
    return loss


def gradients(model):
    """Whole ones, by name."""
    return {name: p.grad.full_tensor().clone() for name, p in model.named_parameters()}


def weights(model):
    return torch.cat([p.detach().full_tensor().reshape(-1) for p in model.parameters()])


def local_gradients(rank, step, model=None):
    """Those of a rank's batch, by a model that no one has sharded."""
    model = Net() if model is None else model
    model.zero_grad()
    loss_of(model, rank, step).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}
