"""What the steps of a window have shown, on this rank and on all together."""

import math
import struct
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import torch

from .. import _core
from .norms import StepNorms, square

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["Shared", "Window"]

_SAMPLES = 4  # steps of a window whose gradients' norms are taken: those of one are noisy
_TRACE_ROWS = 16  # that are read at once; a Reducer keeps 64 where nothing else was asked for


class Window:
    """This rank's."""

    def __init__(self, exchange: "GradientExchange") -> None:
        self._exchange = exchange
        self.step_s: List[float] = []
        self.skipped = 0
        self._transfer_s: List[float] = []
        self._losses, self._loss_sum = 0, 0.0
        self._samples = 0
        self._own: Dict[int, float] = {}  # squared norms by parameter, added up over samples
        self._means: Dict[int, float] = {}
        self._norms: List[float] = []  # of the last step
        # Of the step in progress.
        self._sampled = False
        self._step_own: Dict[int, float] = {}
        self._step_means: Dict[int, float] = {}
        self._step_norms: Optional[StepNorms] = None

    def note_loss(self, loss: float) -> None:
        self._losses += 1
        self._loss_sum += loss

    def begin_step(self, left: Optional[int]) -> None:
        """left: steps of the window behind this one; None: no norms are wanted."""
        every = max(1, (len(self.step_s) + 1 + (left or 0)) // _SAMPLES)
        self._sampled = left is not None and left % every == 0
        self._step_norms = StepNorms(self._exchange) if left == 0 else None
        self._step_own, self._step_means = {}, {}

    def sees(self, parameters: Sequence[int], values: torch.Tensor) -> None:
        """Gradients of this rank, one after another, before they leave."""
        if self._step_norms is not None:
            self._step_norms.add(parameters, values)
        if self._sampled:
            self._add(self._step_own, parameters, values)

    def sees_means(self, parameters: Sequence[int], values: torch.Tensor) -> None:
        """Means of all ranks, likewise."""
        if self._sampled:
            self._add(self._step_means, parameters, values)

    def end_step(self, seconds: float, committed: bool) -> None:
        self.step_s.append(max(seconds, 1e-9))
        self.skipped += int(not committed)
        if self._sampled and committed:
            self._samples += 1
            for kept, of_step in ((self._own, self._step_own), (self._means, self._step_means)):
                for i, value in of_step.items():
                    kept[i] = kept.get(i, 0.0) + value
        if self._step_norms is not None:
            # A step that was left out tells nothing of what compressors leave out.
            own = {i: value / self._samples for i, value in self._own.items()} if committed else {}
            self._norms = self._step_norms.found(own) if committed else []
            self._step_norms = None
        if len(self.step_s) % _TRACE_ROWS == 0:
            self._read_trace()

    def shared(self, transport: _core.Transport, fingerprint: int) -> "Shared":
        """Collective. fingerprint: of what was asked for, which must be the same on all ranks.

        Raises:
            TransportError: on all ranks, where it is another on some.
        """
        count = len(self.step_s)
        self._read_trace()
        norms = self._norms or [math.nan] * (4 * len(self._exchange._named))
        loss = self._loss_sum / self._losses if self._losses else math.nan
        values = [*self.step_s, *self._transfer_s, float(self._losses), loss, *norms]
        words = struct.pack(f"<{len(values)}d", *values)
        told = [
            struct.unpack(f"<{len(values)}d", bytes(each))
            for each in transport.all_gather(words, fingerprint=fingerprint, what="auto: a window")
        ]
        samples = max(1, self._samples)
        means = [self._means.get(i, 0.0) / samples for i in range(len(self._exchange._named))]
        return Shared(told, count, means)

    def _add(self, to: Dict[int, float], parameters: Sequence[int], values: torch.Tensor) -> None:
        flat, begin, scale = values.detach().reshape(-1), 0, self._exchange._scale.value
        for i in parameters:
            end = begin + self._exchange._named[i][1].numel()
            to[i] = square(flat[begin:end]) / scale**2
            begin = end

    def _read_trace(self) -> None:
        missing = len(self.step_s) - len(self._transfer_s)
        reducer = self._exchange._reducer
        rows = reducer.trace()[-missing:] if reducer is not None and missing > 0 else []
        found = [row["transfer_us"] * 1e-6 for row in rows]
        self._transfer_s += found if len(found) == missing else [math.nan] * missing


class Shared:
    """What all ranks' windows say together: the same on all of them."""

    def __init__(self, told: List[Tuple[float, ...]], steps: int, means: List[float]) -> None:
        columns = list(zip(*told))
        self.step_s = [max(each) for each in columns[:steps]]
        exchange_s = [min(each) for each in columns[steps : 2 * steps]]
        unknown = any(math.isnan(x) for rank in told for x in rank[steps : 2 * steps])
        self.exchange_s = [] if unknown else exchange_s
        counts, losses = columns[2 * steps], columns[2 * steps + 1]
        known = [loss for count, loss in zip(counts, losses) if count > 0]
        self.loss = sum(known) / len(known) if known else None  # of inf and -inf none, and bad
        flat = columns[2 * steps + 2 :]
        if any(not math.isfinite(x) for each in flat for x in each):
            flat = []
        sums = [math.fsum(column) for column in flat]
        self.norms: List[Any] = [
            (*sums[4 * i : 4 * i + 4], means[i] if math.isfinite(means[i]) else 0.0)
            for i in range(len(flat) // 4)
        ]
