"""FSDP2's parameter groups, whose gradients travel as one slice for each rank."""

import logging
import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

from ..errors import InvalidArgument
from .checks import DTYPES

_log = logging.getLogger("gradwire")

__all__ = ["Group", "checked_mesh", "groups_of", "share_of", "viewed"]


class Parameter(NamedTuple):
    name: str
    slice_shape: List[int]  # padded: what a slice has of it, in this order
    shape: List[int]  # unsharded
    dim: int  # along which it is sharded

    @property
    def slice_numel(self) -> int:
        return math.prod(self.slice_shape)

    def whole(self, slices: Sequence[Any], begin: int) -> Optional[torch.Tensor]:
        """Of NumPy arrays of a group's slices, in which it begins there; None where one is None, or where
        there is none."""
        if not slices or any(each is None for each in slices):
            return None
        end = begin + self.slice_numel
        parts = [torch.tensor(each[begin:end]).view(self.slice_shape) for each in slices]
        return torch.cat(parts, dim=self.dim).narrow(self.dim, 0, self.shape[self.dim])


Reduce = Callable[["Group", torch.Tensor, torch.Tensor, Any], None]  # output, input, operation


class Group(ReduceScatter):
    """The reduce-scatter of one FSDP parameter group."""

    def __init__(self, reduce: Reduce, place: int, name: str, group: Any, names: Dict[int, str]):
        self.reduce, self.place, self.name, self.group = reduce, place, name, group
        policy = group.mp_policy
        trained = [p for p in group.fsdp_params if p.sharded_param.requires_grad]
        frozen = [p for p in group.fsdp_params if not p.sharded_param.requires_grad]
        self.left_out = [(names[id(p.sharded_param)], p.sharded_param) for p in frozen]
        own = trained[0].sharded_param.dtype if trained else torch.float32
        self.dtype: torch.dtype = policy.reduce_dtype or policy.param_dtype or own
        self.parameters = [
            Parameter(
                names[id(p.sharded_param)],
                list(p.padded_sharded_param_size),
                list(p._orig_size),
                p.fsdp_placement.dim,
            )
            for p in trained
        ]
        self.numel = sum(p.slice_numel for p in self.parameters)
        self.uncompressed = self.dtype not in DTYPES

    def allocate(self, size: Sequence[Any], *, dtype: Any, device: Any) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def say(self) -> None:
        """Once, that its gradients are not compressed."""
        _log.warning(
            f"gradwire: gradients of '{self.name}' travel dense in {self.dtype}, by the process group: "
            "compressors take float32, float16 and bfloat16"
        )

    def reduce_dense(self, output: torch.Tensor, input: torch.Tensor, op: Any) -> Tuple[bool, bool]:
        """As FSDP does it by itself. Whether the input was finite, and the output overflows all the same."""
        finite = bool(input.isfinite().all())
        group = self.group._reduce_scatter_process_group
        dist.reduce_scatter_tensor(output, input, op=op, group=group)
        return finite, finite and not bool(output.isfinite().all())

    def is_read_at_once(self, op: Any) -> bool:
        """Whether FSDP does more with the output than to make it .grad: it divides, casts or adds it, or
        hands it to a hook."""
        return (
            op != dist.ReduceOp.AVG
            or getattr(self.group, "_all_reduce_hook", None) is not None
            or any(
                p.sharded_param.dtype != self.dtype
                or p.sharded_param.grad is not None
                or getattr(p.sharded_param, "_post_accumulate_grad_hooks", None)
                for p in self.group.fsdp_params
            )
        )

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Called by FSDP, which waits for no Work on a CPU: what it reads has come when this returns."""
        self.reduce(self, output_tensor, input_tensor, op)


def groups_of(module: torch.nn.Module) -> Dict[str, Tuple[FSDPModule, Any]]:
    """FSDP's parameter groups that have something to train, by the name of their module."""
    found: Dict[int, Tuple[str, FSDPModule, Any]] = {}
    for name, part in module.named_modules():
        if isinstance(part, FSDPModule):
            groups = part._get_fsdp_state()._fsdp_param_groups
            if len(groups) > 1:
                raise InvalidArgument(
                    f"module '{name}': its parameters lie on {len(groups)} meshes, must be on one"
                )
            for group in groups:
                if any(p.sharded_param.requires_grad for p in group.fsdp_params):
                    found.setdefault(id(group), (name, part, group))
    if not found:
        raise InvalidArgument(
            f"module: is a {type(module).__name__} without parameters under fully_shard that train, "
            "must have some; for DistributedDataParallel there is gradwire.torch.register()"
        )
    for name, _, group in found.values():
        comm = group._reduce_scatter_comm
        if type(comm) is not DefaultReduceScatter:
            raise InvalidArgument(
                f"module '{name}': has a {type(comm).__name__} as its reduce-scatter already, must "
                "have none"
            )
    return {name: (part, group) for name, part, group in found.values()}


def checked_mesh(groups: Sequence[Group]) -> Any:
    """The process group over which all of them are sharded."""
    for each in groups:
        for parameter in each.group.fsdp_params:
            mesh, device = parameter.sharded_param.device_mesh, parameter.sharded_param.device
            if mesh.ndim != 1 or not hasattr(each.group.mesh_info, "shard_process_group"):
                raise InvalidArgument(
                    f"module '{each.name}': its mesh has {mesh.ndim} dimensions, must have one, of "
                    "sharding: with a second one (HSDP) FSDP all-reduces what slices became before "
                    "it calls set_all_reduce_hook(), so that it cannot be compressed"
                )
            if device.type != "cpu":
                raise InvalidArgument(
                    f"module '{each.name}': is on {device}, must be on the CPU: exchanges of GPU "
                    "memory from Python are not built yet"
                )
    found = {id(g): g for g in (each.group._reduce_scatter_process_group for each in groups)}
    if len(found) > 1:
        raise InvalidArgument(
            f"module: is sharded over {len(found)} process groups, must be over one"
        )
    return next(iter(found.values()))


def share_of(op: Any, world_size: int) -> float:
    """What the sum over ranks is multiplied by."""
    if op == dist.ReduceOp.AVG:
        return 1.0 / world_size
    if op == dist.ReduceOp.SUM:
        return 1.0
    raise InvalidArgument(
        f"op: is {op}, must be AVG or SUM: with set_gradient_divide_factor() also call "
        "set_force_sum_reduction_for_comms(True)"
    )


def viewed(tensor: torch.Tensor) -> Any:
    """As NumPy has it, without a copy; bfloat16 as its bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()
