"""What benchmarks of PyTorch ranks on one machine share: where they meet, and how they leave."""

import gc
import socket

import torch.distributed as dist


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def leave():
    """Ends the process group, behind the models under DDP, to which the caller has no reference any more.

    Else DDP's reducer ends the group, and holds the lock of Python that the group's own thread may wait for
    (torch 2.13): neither ends.
    """
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
