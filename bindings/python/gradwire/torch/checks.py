"""What can be exchanged: arguments of register() and attach(), and parameters."""

from typing import Any, Dict, Sequence, Tuple

import torch

from ..errors import InvalidArgument
from .memory_order import refuse_shared_elements
from .shards import check_plain

__all__ = [
    "DTYPES",
    "HOW_TO_BE_DENSE",
    "check_options",
    "common_device",
    "common_dtype",
    "plain_name",
    "refuse_sparse_layers",
    "refuse_steps_in_backward",
    "refuse_unfrozen",
]

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
HOW_TO_BE_DENSE = (
    "must be dense, which sparse=False makes them (set before DistributedDataParallel is made)"
)
_PLAN_OPTIONS = ("rules", "exempt_1d", "exchange", "seed", "ranks_per_node")


def check_options(spec: Any, plan: Dict[str, Any]) -> None:
    """Raises InvalidArgument for what gradwire.make_plan() would not take."""
    if not isinstance(spec, str):
        raise InvalidArgument(f"spec: is a {type(spec).__name__}, must be a text such as 'topk:1%'")
    unknown = sorted(set(plan) - set(_PLAN_OPTIONS))
    if unknown:
        raise InvalidArgument(
            f"{unknown[0]}: is no argument here; of plans there are {', '.join(_PLAN_OPTIONS)}"
        )


def common_device(named: Sequence[Tuple[str, torch.Tensor]]) -> torch.device:
    """Of the gradients of a plan. Raises InvalidArgument for parameters that cannot be exchanged."""
    if not named:
        raise InvalidArgument("parameters: none requires a gradient, at least one must")
    for name, p in named:
        refuse_shared_elements(f"parameter '{name}'", p)
        check_plain(f"parameter '{name}'", p)
    devices = sorted({str(p.device) for _, p in named})
    if len(devices) > 1:
        raise InvalidArgument(
            f"parameters: lie on {' and '.join(devices)}, must be on one device"
        )
    name, first = named[0]
    if first.device.type not in ("cpu", "cuda"):
        raise InvalidArgument(
            f"parameter '{name}': is on {first.device}, must be on the CPU or a CUDA GPU"
        )
    return first.device


def common_dtype(named: Sequence[Tuple[str, torch.Tensor]]) -> str:
    """Of a plan's gradients."""
    dtypes = {DTYPES[p.dtype] for _, p in named}
    return dtypes.pop() if len(dtypes) == 1 else "float32"


def refuse_sparse_layers(
    module: torch.nn.Module, named: Sequence[Tuple[str, torch.Tensor]], frozen_too: bool = False
) -> None:
    """Raises InvalidArgument for parameters that train and whose layer gives sparse gradients."""
    names = {id(p): name for name, p in named if p.requires_grad or frozen_too}
    for part in module.modules():
        if isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse:
            name = names.get(id(part.weight))
            if name is not None:
                raise InvalidArgument(
                    f"parameter '{name}': its {type(part).__name__} has sparse=True, so that its gradients "
                    f"are torch.sparse_coo, {HOW_TO_BE_DENSE}"
                )


def refuse_unfrozen(left_out: Sequence[Tuple[str, torch.Tensor]], call: str) -> None:
    """Raises InvalidArgument for a parameter that did not train when the exchange was made, and does now."""
    for name, p in left_out:
        if p.requires_grad:
            raise InvalidArgument(
                f"parameter '{name}': requires a gradient now, and did not when {call}, so that nothing "
                "exchanges it; expected requires_grad=True by then (it may be frozen again behind it)"
            )


def refuse_steps_in_backward(named: Sequence[Tuple[str, torch.Tensor]]) -> None:
    """Raises InvalidArgument for parameters that torch's own hook steps as soon as they have a gradient."""
    for name, p in named:
        if getattr(p, "_in_backward_optimizers", None):
            raise InvalidArgument(
                f"parameter '{name}': _apply_optimizer_in_backward() steps it during backward, before its "
                "gradient is the mean of all ranks; expected an optimizer whose step() comes behind backward"
            )


def plain_name(name: str) -> str:
    """A parameter's as the model was written: torch.compile puts a module of its own around it."""
    return name.replace("_orig_mod.", "")
