"""A DDP script with one line added: torchrun --nproc-per-node 4 examples/torch_ddp.py [SPEC]."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

spec = sys.argv[1] if len(sys.argv) > 1 else "topk:10%,int8"


@record  # what it raises is in torchrun's last words
def main():
    # [setup]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    exchange = gradwire.torch.register(model, spec)  # the line that is new
    # [setup-end]

    teacher = torch.randn(64, 10, generator=torch.Generator().manual_seed(1))
    random = torch.Generator().manual_seed(2 + dist.get_rank())  # every rank has batches of its own

    def batch():
        inputs = torch.randn(64, 64, generator=random)
        return inputs, (inputs @ teacher).argmax(1)

    for step in range(300):
        inputs, targets = batch()
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    inputs, targets = batch()
    accuracy = (model(inputs).argmax(1) == targets).float().mean()
    dist.all_reduce(accuracy)
    accuracy /= dist.get_world_size()
    stats = exchange.stats()
    if dist.get_rank() == 0:
        print(
            f"{spec}: accuracy {accuracy:.3f}, {stats['bytes_sent']:.0f} bytes sent by a rank in a "
            f"step, gradients have {stats['dense_bytes']:.0f}"
        )
    assert accuracy > 0.6, "the model has learned"  # chance: 0.1
    exchange.close()


main()
# Behind main(), where nothing holds the group any more: so this waits for its threads to end.
dist.destroy_process_group()
