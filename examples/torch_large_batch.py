"""From a small batch that works to a large one with LAMB, without tuning:
torchrun --nproc-per-node 4 examples/torch_large_batch.py"""

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch

EXAMPLES, EPOCHS, SMALL, LARGE = 16_384, 8, 64, 1024


@record  # what it raises is in torchrun's last words
def main():
    dist.init_process_group("gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(0)
    inputs = torch.randn(EXAMPLES, 64)
    targets = (inputs @ torch.randn(64, 10)).argmax(1)

    # [setup]
    # What worked at a batch of 64, over the same epochs, and what that becomes at 1024.
    large = gradwire.large_batch(
        "lamb:weight_decay=0.01", 0.005, SMALL, LARGE, examples=EXAMPLES, epochs=EPOCHS
    )
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    model = DistributedDataParallel(model)
    gradwire.torch.register(model, "int8")
    layers = {"params": [p for p in model.parameters() if p.ndim > 1]}
    rest = {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0, "adapt": False}
    optimizer = gradwire.torch.make_optimizer(large.optimizer, [layers, rest], lr=1.0)
    # lr is 1, so that the factor is the rate.
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, large.schedule.at)
    # [setup-end]

    for epoch in range(EPOCHS):
        order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(epoch))
        for picked in order.split(LARGE):
            mine = picked[rank::ranks]
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs[mine]), targets[mine])
            loss.backward()
            optimizer.step(), rates.step()

    accuracy = (model(inputs).argmax(1) == targets).float().mean()
    if rank == 0:
        print(f"batch {LARGE}, {EPOCHS} epochs, rate {large.schedule.base:.4f}: accuracy {accuracy:.3f}")
    assert accuracy > 0.8, "the model has learned"


main()
# Behind main(), where nothing holds the group any more: so this waits for its threads to end.
dist.destroy_process_group()
