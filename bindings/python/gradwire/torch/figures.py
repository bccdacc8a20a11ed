"""What an exchange says of its last step: bytes, times, norms."""

import math
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence, Union

import torch

from ..errors import InvalidArgument
from ..reducer import Reducer
from .writers import write_scalars

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["Shown"]


class Shown:
    """The part of a GradientExchange that shows it."""

    _reducer: Optional[Reducer]
    _closed: bool
    _spec: str
    _auto: Any
    _names: Dict[int, str]

    def stats(self, norms: bool = False) -> Dict[str, float]:
        """Of the last step: what it sent, and what it cost.

        Args:
            norms: adds norms over this rank's parameters, by passes over residuals and gradients.

        Returns:
            'step' (from 0: one less than the steps there have been, which decisions() count),
            'committed' (0 or 1), 'bytes_sent', 'bytes_received', 'dense_bytes' (of the
            gradients), 'exposed_us' (the end of backward waited so long), 'codec_us',
            'transfer_us', 'buckets', 'rounds' and 'round_bytes_sent' (of launch_order='agreed', else
            0), 'hook_us' (handing over and taking back, without waiting); on a GPU there is no
            'committed', and times are those of enqueueing; with norms 'residual_norm',
            'gradient_norm' (of the means in .grad) and 'compression_error', the first over the
            second. Empty before the first step.

        Raises:
            InvalidArgument: norms of another thread than that which runs backward and may change
                .grad meanwhile.
        """
        return _stats_of(self, norms)  # type: ignore[arg-type]

    def write_to(self, writer: Any, step: Optional[int] = None, norms: bool = False) -> None:
        """Hands stats() to TensorBoard (add_scalar) or wandb (log) as 'gradwire/bytes_sent' etc.

        Args:
            writer: a torch.utils.tensorboard.SummaryWriter, a wandb run or the module.
            step: the count the values belong to; by default that of the exchange.
        """
        write_scalars(writer, self.stats(norms), step)

    def save_trace(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the last steps as Chrome/Perfetto JSON, the rank as process."""
        if self._reducer is None:
            raise InvalidArgument("save_trace: the group has 1 rank, which exchanges nothing")
        Path(path).write_text(self._reducer.chrome_trace(), encoding="utf-8")

    def __repr__(self) -> str:
        ended = ", closed" if self._closed else ""
        kind, count = type(self).__name__, len(self._names)
        chosen = "" if self._auto is None else " by 'auto'"
        return f"<gradwire.torch.{kind} '{self._spec}'{chosen} of {count} parameters{ended}>"


def _stats_of(exchange: "GradientExchange", norms: bool) -> Dict[str, float]:
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
