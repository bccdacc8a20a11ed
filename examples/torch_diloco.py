"""Local steps: AdamW on every rank, one compressed exchange in 20 steps:
torchrun --nproc-per-node 4 examples/torch_diloco.py"""

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy

import gradwire
import gradwire.torch


@record  # what it raises is in torchrun's last words
def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # all ranks begin with the same parameters
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))

    # [setup]
    shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    plan = gradwire.make_plan(shapes, "chunktopk:64/4096,2bit,decay=0.95")
    reducer = gradwire.Reducer(plan, gradwire.torch.transport())
    inner = torch.optim.AdamW(model.parameters(), lr=2e-3)
    outer = gradwire.torch.DiLoCo(model.parameters(), reducer, every=20, preset="sparseloco")
    # [setup-end]

    teacher = torch.randn(64, 10, generator=torch.Generator().manual_seed(1))
    random = torch.Generator().manual_seed(2 + dist.get_rank())  # every rank has batches of its own

    def batch():
        inputs = torch.randn(64, 64, generator=random)
        return inputs, (inputs @ teacher).argmax(1)

    for step in range(600):
        inputs, targets = batch()
        inner.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        inner.step()
        outer.step()  # every 20th exchanges

    inputs, targets = batch()
    accuracy = (model(inputs).argmax(1) == targets).float().mean()
    dist.all_reduce(accuracy)
    accuracy /= dist.get_world_size()
    sent = reducer.trace()[-1]["bytes_sent"]
    if dist.get_rank() == 0:
        dense = sum(p.numel() for p in model.parameters()) * 4
        print(
            f"accuracy {accuracy:.3f}, {sent / 20:.0f} bytes sent by a rank in a local step, "
            f"gradients have {dense}"
        )
    assert accuracy > 0.75, "the model has learned"


main()
# Behind main(), where nothing holds the group any more: so this waits for its threads to end.
dist.destroy_process_group()
