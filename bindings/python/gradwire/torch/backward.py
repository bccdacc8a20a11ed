"""Backward passes of torch: whether this thread is in one, and what comes at their end."""

from typing import Callable

import torch

__all__ = ["after_backward", "in_backward"]


def in_backward() -> bool:
    """Not where a rank that has joined (torch's Join) runs the hook of DDP."""
    return bool(torch._C._current_graph_task_id() != -1)


def after_backward(call: Callable[[], None]) -> None:
    """Queues a call behind what DDP and FSDP do at the end of backward. Inside a backward."""
    # Twice: DDP queues its own end once the hook has returned.
    queue = torch.autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(call))
