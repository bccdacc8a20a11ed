"""What gradwire.torch.register() takes beside DDP: `python bench/torch_hook.py --memory`.

Every way runs in processes of its own: a model of matrices under DDP, alone and with the hook, trained for
some steps over loopback. Resident memory is read from /proc/self/status: before DDP is made, behind
register(), behind the last step (what stays) and at its highest (the peak). Columns are in copies of
the model's float32 gradients; "adds" is the peak less that of DDP alone.
"""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.nn.parallel import DistributedDataParallel
from torch_group import free_port, leave

import gradwire.torch

LAYERS, STEPS = 16, 5
WAYS = ("DDP", "none", "fp16", "int8", "int4", "int4,residual=bf16", "topk:1%,int4", "powersgd:4", "auto")


def status(field):
    """Bytes: VmRSS, VmHWM."""
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def rank_main(rank, ranks, way, width, port, pipe):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(1, width)
    copy = 4 * sum(p.numel() for p in model.parameters())
    forget_peak()
    begin = status("VmRSS")
    ddp = DistributedDataParallel(model)
    exchange = None if way == "DDP" else gradwire.torch.register(ddp, way)
    made = status("VmRSS")
    for _ in range(STEPS):
        optimizer.zero_grad()
        ddp(inputs).square().mean().backward()
        optimizer.step()
    if rank == 0:
        pipe.put([(each - begin) / copy for each in (made, status("VmRSS"), status("VmHWM"))])
    if exchange is not None:
        exchange.close()
    del ddp, exchange
    leave()


def measure(ranks, width):
    """A row for each way."""
    rows, ddp = [], None
    for way in WAYS:
        pipe = processes.get_context("spawn").SimpleQueue()
        context = processes.spawn(rank_main, (ranks, way, width, free_port(), pipe), nprocs=ranks, join=False)
        made, stays, peak = pipe.get()
        context.join()
        ddp = peak if way == "DDP" else ddp
        rows.append({"way": way, "made": made, "stays": stays, "peak": peak, "adds": peak - ddp})
        print(f"{way}: peak {peak:.2f}", flush=True)
    return rows
