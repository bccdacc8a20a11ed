"""A rank that joins torch's ranks as its first argument says, exchanges the gradients of a few steps by
gradwire, and compares the parameters with those of all ranks' batches computed here alone.

Arguments: 'env' or an init_method; the carrier; interfaces that torch alone shall hear of, or ''.
"""

import os
import sys

import torch
import torch.distributed as dist
from ddp_case import Net, ddp, loss_of, parameters, sgd, train

import gradwire.torch

STEPS = 3


def alone(world_size):
    """Parameters behind the same steps, with the mean of all ranks' gradients made by a loop."""
    model = Net()
    optimizer = sgd(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(world_size):
            (loss_of(model, rank, step) / world_size).backward()
        optimizer.step()
    return parameters(model)


def main():
    how, carrier, interfaces_of_torch = sys.argv[1:]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if interfaces_of_torch:
        os.environ["GLOO_SOCKET_IFNAME"] = interfaces_of_torch
    torch.set_num_threads(1)
    method = "env://" if how == "env" else how
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world_size)
    model = ddp()
    if interfaces_of_torch:
        del os.environ["GLOO_SOCKET_IFNAME"]
    exchange = gradwire.torch.register(model, "none", carrier=carrier, timeout=20.0)
    train(model, sgd(model), 0, STEPS)
    difference = float((parameters(model) - alone(world_size)).abs().max())
    assert difference < 1e-5, difference
    assert exchange.stats()["bytes_sent"] > 0
    # One write: torchrun's workers share the pipe, and print() writes the end of the line behind it.
    os.write(sys.stdout.fileno(), f"rank {rank} of {world_size} has trained\n".encode())
    exchange.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
