"""What compression leaves out of one step, parameter by parameter."""

from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence, Tuple

import torch

from .._core import CompressorSpec, Plan, parse_spec
from ..feedback import Feedback

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["StepNorms", "specs_of", "square"]

_NONE = torch.zeros(())
_SEND_ALL = ("none", "fp16", "bf16")


def square(values: torch.Tensor) -> float:
    """Its norm's."""
    flat = values.detach().reshape(-1)
    return float(torch.dot(flat, flat) if flat.dtype == torch.float32 else flat.float().square().sum())


def specs_of(plan: Plan) -> Dict[int, str]:
    """By parameter."""
    return {
        p: group["spec"] for row in plan.layout for group in row["groups"] for p in group["parameters"]
    }


class StepNorms:
    """Made at the begin of a step; copies this rank's gradients as they leave."""

    def __init__(self, exchange: "GradientExchange") -> None:
        assert exchange._reducer is not None
        self._exchange = exchange
        self._scale = exchange._scale.value
        self._own: Dict[int, torch.Tensor] = {}
        texts = specs_of(exchange._reducer.plan)
        parsed = {text: parse_spec(text) for text in set(texts.values())}
        self._specs = [(texts[i], parsed[texts[i]]) for i in range(len(exchange._named))]
        self._before = [self._residual(i) for i in range(len(exchange._named))]

    def add(self, parameters: Sequence[int], values: torch.Tensor) -> None:
        """Those of these parameters, one after another."""
        flat, begin = values.detach().reshape(-1), 0
        for i in parameters:
            end = begin + self._exchange._named[i][1].numel()
            self._own[i] = flat[begin:end].float() / self._scale
            begin = end

    def found(self, gradients: Mapping[int, float]) -> List[float]:
        """Behind the step. For each parameter four squares: |a|^2 of gradient plus residual, |C(a)|^2 of
        what was sent, |a - C(a)|^2 and |g|^2, as it is given, of gradients. All 0 where a velocity or an
        estimate takes the gradient's place: what is compressed there is not a. Likewise of factors without
        feedback, which depend on those of the step before."""
        squares: List[float] = []
        for i, (text, spec) in enumerate(self._specs):
            if spec.keeps_velocity or spec.ef21 or (spec.rank > 0 and not spec.error_feedback):
                squares += [0.0] * 4
                continue
            wanted = self._own.get(i, _NONE) + spec.decay * self._before[i]
            sent, left = self._sent(wanted, text, spec, self._residual(i))
            squares += [*map(square, (wanted, sent, left)), gradients.get(i, 0.0)]
        return squares

    def _sent(
        self, wanted: torch.Tensor, text: str, spec: CompressorSpec, after: torch.Tensor
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        if spec.error_feedback:
            return wanted - after, after
        if spec.name in _SEND_ALL or wanted.ndim == 0:
            return wanted, _NONE
        # Nobody keeps what a spec without feedback leaves out: it is encoded once more.
        again = Feedback(text, wanted.numel(), threads=self._exchange._threads)
        decoded = torch.empty_like(wanted)
        again.decompress([again.compress(wanted.numpy())], 1.0, out=decoded.numpy())
        return decoded, wanted - decoded

    def _residual(self, i: int) -> torch.Tensor:
        if not self._specs[i][1].error_feedback:
            return _NONE
        assert self._exchange._reducer is not None
        kept = self._exchange._reducer.residual(i)
        return _NONE if kept is None else torch.from_numpy(kept).reshape(-1)
