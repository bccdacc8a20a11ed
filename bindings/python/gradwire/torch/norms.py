"""What compression leaves out of one step, parameter by parameter."""

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import torch

from .._core import CompressorSpec, Plan, parse_spec
from .measuring import MeasuredOnCpu, square

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["StepNorms", "specs_of"]

_NONE = torch.zeros(())
_SEND_ALL = ("none", "fp16", "bf16")


def specs_of(plan: Plan) -> Dict[int, str]:
    """By parameter."""
    return {
        p: group["spec"] for row in plan.layout for group in row["groups"] for p in group["parameters"]
    }


class StepNorms:
    """Made at the begin of a step; adds this rank's gradients, as they leave, to what they go with."""

    def __init__(self, exchange: "GradientExchange", measured: MeasuredOnCpu) -> None:
        assert exchange._reducer is not None
        self._exchange, self._measured = exchange, measured
        self._scale = exchange._scale
        texts = specs_of(exchange._reducer.plan)
        parsed = {text: parse_spec(text) for text in set(texts.values())}
        self._specs = [(texts[i], parsed[texts[i]]) for i in range(len(exchange._named))]
        self._wanted = [self._owed(i) for i in range(len(exchange._named))]

    def add(self, parameters: Sequence[int], values: torch.Tensor) -> None:
        """Those of these parameters, one after another."""
        flat, begin = values.detach().reshape(-1), 0
        for i in parameters:
            end = begin + self._exchange._named[i][1].numel()
            own = self._measured.unscaled(flat[begin:end].float(), self._scale)
            self._wanted[i] = own + self._wanted[i]
            begin = end

    def found(self) -> List[Optional[Tuple[Any, Any, Any]]]:
        """Behind the step. For each parameter three squares, as kept() has them: |a|^2 of gradient plus
        residual, |C(a)|^2 of what was sent, |a - C(a)|^2. None where a velocity or an estimate takes
        the gradient's place: what is compressed there is not a. Likewise of factors without feedback,
        which depend on those of the step before."""
        squares: List[Optional[Tuple[Any, Any, Any]]] = []
        for i, (text, spec) in enumerate(self._specs):
            if not _tells(spec):
                squares.append(None)
                continue
            wanted = self._wanted[i]
            sent, left = self._sent(wanted, text, spec, i)
            a, b, c = (self._measured.kept(square(each)) for each in (wanted, sent, left))
            squares.append((a, b, c))
        return squares

    def _sent(
        self, wanted: torch.Tensor, text: str, spec: CompressorSpec, i: int
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        if spec.error_feedback:
            after = self._residual(i)
            return wanted - after, after
        if spec.name in _SEND_ALL or wanted.ndim == 0:
            return wanted, _NONE
        # Nobody keeps what a spec without feedback leaves out: it is encoded once more.
        decoded = self._measured.encoded(text, wanted)
        return decoded, wanted - decoded

    def _owed(self, i: int) -> torch.Tensor:
        spec = self._specs[i][1]
        return spec.decay * self._residual(i) if spec.error_feedback and _tells(spec) else _NONE

    def _residual(self, i: int) -> torch.Tensor:
        kept = self._measured.residual(i)
        return _NONE if kept is None else kept


def _tells(spec: CompressorSpec) -> bool:
    """Whether what is compressed is gradient plus residual, and can be told again."""
    return not (spec.keeps_velocity or spec.ef21 or (spec.rank > 0 and not spec.error_feedback))
