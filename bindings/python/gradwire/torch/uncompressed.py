"""Gradients of a dtype that no compressor takes (float64, complex): they travel dense, as they are."""

import logging
from typing import Any, List, Sequence, Tuple

import torch
import torch.distributed as dist

from ..errors import InvalidArgument
from .checks import DTYPES, plain_name

__all__ = ["Uncompressed", "without_compressor"]

_log = logging.getLogger("gradwire")

_FLAG = "gradwire.finite"  # what the plan calls it

Named = List[Tuple[str, torch.Tensor]]


def without_compressor(named: Named) -> Named:
    """Of parameters those whose gradients travel so."""
    return [(name, p) for name, p in named if p.dtype not in DTYPES]


class Uncompressed:
    """Their means, by the process group, and the word of each rank whether its own were finite.

    That word is one more element of the Reducer's plan, zero or NaN, so that all ranks commit a step or
    none does, whichever gradient was not finite.
    """

    def __init__(self, named: Named, group: Any, world_size: int) -> None:
        self.named = named
        self._group, self._world_size = group, world_size
        #: The element, as a parameter of the plan: its first, which backward reaches last.
        self.flag: Tuple[str, torch.Tensor] = (_FLAG, torch.zeros(1, device=named[0][1].device))
        self._bad = torch.zeros_like(self.flag[1])

    def has(self, name: str) -> bool:
        """One of that name."""
        return any(name in (known, plain_name(known)) for known, _ in self.named)

    def say(self) -> None:
        """Once, that they are not compressed."""
        name, parameter = self.named[0]
        others = f" and those of {len(self.named) - 1} others" if len(self.named) > 1 else ""
        _log.warning(
            f"gradwire: gradients of '{name}' ({parameter.dtype}){others} travel dense in their own dtype, "
            "by the process group: compressors take float32, float16 and bfloat16"
        )

    def sees(self, gradient: torch.Tensor) -> None:
        """One of this step."""
        good = torch.zeros_like(self._bad)
        self._bad = self._bad + torch.where(gradient.isfinite().all(), good, float("nan"))

    def check_used(self, unused: str) -> None:
        """Raises InvalidArgument where this step has left one out, and `unused` is 'error'."""
        for name, parameter in self.named if unused == "error" else []:
            if parameter.grad is None:
                raise InvalidArgument(f"wait: '{name}' has no gradient, expected one of each parameter")

    def give_flag(self, reducer: Any, work: Any) -> None:
        """When this rank has seen all of a step."""
        told, self._bad = self._bad, torch.zeros_like(self._bad)
        work.use(told)
        reducer.give_from([0], told.data_ptr(), "float32")

    def forget(self) -> None:
        """The step in progress was none."""
        self._bad = torch.zeros_like(self._bad)

    def average(self, gradients: Sequence[torch.Tensor]) -> None:
        """In place, as DDP does it. Collective, on torch's current stream."""
        for gradient in gradients:
            gradient.div_(self._world_size)
            dist.all_reduce(gradient, group=self._group)

    def average_all(self) -> None:
        """.grad of all, behind backward, where some may have none. Collective. A parameter that no rank has
        a gradient of keeps none."""
        for dtype in sorted({p.dtype for _, p in self.named}, key=str):
            parameters = [p for _, p in self.named if p.dtype == dtype]
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            used = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
            together = torch.cat([*(g.reshape(-1) for g in gradients), used.to(dtype)])
            self.average([together])
            sizes = [*(p.numel() for p in parameters), len(parameters)]
            *means, used = torch.split(together, sizes)
            for parameter, mean, anywhere in zip(parameters, means, used.abs().tolist()):
                if parameter.grad is not None:
                    parameter.grad.copy_(mean.view_as(parameter))
                elif anywhere and parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter).copy_(mean.view_as(parameter))
