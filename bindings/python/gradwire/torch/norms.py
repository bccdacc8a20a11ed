"""What compression leaves out of one step, parameter by parameter."""

from typing import TYPE_CHECKING, Dict, List, Sequence

import torch

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["StepNorms", "square"]


def square(values: torch.Tensor) -> float:
    """Its norm's."""
    flat = values.detach().reshape(-1)
    return float(torch.dot(flat, flat) if flat.dtype == torch.float32 else flat.float().square().sum())


class StepNorms:
    """Made at the begin of a step; copies this rank's gradients as they leave."""

    def __init__(self, exchange: "GradientExchange") -> None:
        self._exchange = exchange
        self._scale = exchange._scale.value
        self._own: Dict[int, torch.Tensor] = {}
        self._before = [self._residual(i) for i in range(len(exchange._named))]

    def add(self, parameters: Sequence[int], values: torch.Tensor) -> None:
        """Those of these parameters, one after another."""
        flat, begin = values.detach().reshape(-1), 0
        for i in parameters:
            end = begin + self._exchange._named[i][1].numel()
            self._own[i] = flat[begin:end].float() / self._scale
            begin = end

    def found(self) -> List[float]:
        """Behind the step. For each parameter four squares: |a|^2 of gradient plus residual, |C(a)|^2 of
        what was sent, |a - C(a)|^2 and |g|^2 of the gradient."""
        squares: List[float] = []
        for i in range(len(self._exchange._named)):
            before, after = self._before[i], self._residual(i)
            own = self._own.get(i, torch.zeros(()))
            wanted = own + before
            squares += map(square, (wanted, wanted - after, after, own))
        return squares

    def _residual(self, i: int) -> torch.Tensor:
        assert self._exchange._reducer is not None
        kept = self._exchange._reducer.residual(i)
        return torch.zeros(()) if kept is None else torch.from_numpy(kept).reshape(-1)
