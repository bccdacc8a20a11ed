"""What an exchange says of its last step: bytes, times, norms."""

import math
import threading
from typing import TYPE_CHECKING, Dict, Sequence

import torch

from ..errors import InvalidArgument

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["stats_of"]


def stats_of(exchange: "GradientExchange", norms: bool) -> Dict[str, float]:
    """GradientExchange.stats()."""
    # On a GPU backward runs in threads of torch's own.
    if norms and exchange._work.waits and exchange._thread not in (None, threading.get_ident()):
        raise InvalidArgument(
            f"stats: norms are asked for in thread {threading.current_thread().name!r}, expected "
            "the thread that runs backward: gradients change under any other"
        )
    steps = [] if exchange._reducer is None else exchange._reducer.trace()
    if not steps:
        return {}
    named = exchange._named
    found = {key: float(value) for key, value in steps[-1].items()}
    found["dense_bytes"] = float(sum(p.numel() * p.element_size() for _, p in named))
    found["hook_us"] = exchange.seconds * 1e6
    if not exchange._work.waits:
        del found["committed"]  # the host does not know
    if norms:
        found.update(_norms_of(exchange))
    return found


def _norms_of(exchange: "GradientExchange") -> Dict[str, float]:
    named = exchange._named
    residuals = [r for name, _ in named if (r := exchange.residual(name)) is not None]
    if exchange._scaler is not None:  # which may have unscaled .grad by now, or not
        gradients = [exchange._mean(i) for i in range(len(named))]
    else:
        gradients = [p.grad for _, p in named if p.grad is not None]
    residual, gradient = _norm(residuals), _norm(gradients)
    error = residual / gradient if gradient > 0 else float("inf" if residual > 0 else "nan")
    return {
        "residual_norm": residual,
        "gradient_norm": gradient,
        "compression_error": error if residual > 0 else 0.0,
    }


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    squares = sum(float(t.double().square().sum()) for t in tensors)
    return math.sqrt(squares)
