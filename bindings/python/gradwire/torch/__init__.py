"""gradwire for PyTorch: DDP's gradients, optimizers, a process group as carrier of a transport.

    exchange = gradwire.torch.register(ddp_model, "topk:1%,int4")   # all else stays as it is
    optimizer = gradwire.torch.LAMB(model.parameters(), lr=1e-3, weight_decay=0.01)
    transport = gradwire.torch.transport()          # a group of its own over all ranks
    reducer = gradwire.Reducer(plan, transport)

Needs torch, which nothing else in gradwire imports.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    from ..torch_missing import torch_missing

    raise ModuleNotFoundError(torch_missing("gradwire.torch"), name="torch") from error

from .attach import Attached, attach
from .carrier import transport
from .ddp import DDPHook, register
from .fsdp import FSDPExchange, register_fsdp
from .local_steps import DiLoCo
from .onebit import OneBitAdam, OneBitLAMB
from .optim import LAMB, LARC, LARS, SGD, AdamW, Optimizer, make_optimizer
from .profiling import StepProfile, profile

__all__ = [
    "LAMB",
    "LARC",
    "LARS",
    "SGD",
    "AdamW",
    "Attached",
    "DDPHook",
    "DiLoCo",
    "FSDPExchange",
    "OneBitAdam",
    "OneBitLAMB",
    "Optimizer",
    "StepProfile",
    "attach",
    "make_optimizer",
    "profile",
    "register",
    "register_fsdp",
    "transport",
]
