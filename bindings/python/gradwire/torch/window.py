"""What the steps of a window have shown, on this rank and on all together."""

import math
import struct
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import torch

from .. import _core
from .measuring import measured_by, square
from .norms import StepNorms

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["Shared", "Window"]

_SAMPLES = 4  # steps of a window whose gradients are looked at: norms of one are noisy
_TRACE_ROWS = 16  # that are read at once; a Reducer keeps 64 where nothing else was asked for

Numbers = Dict[int, Any]  # by parameter, as the measurements' kept() has them


class Window:
    """This rank's."""

    def __init__(self, exchange: "GradientExchange") -> None:
        self._exchange = exchange
        self._work = exchange._work
        self.measured = measured_by(exchange, exchange._work)
        self._marks: List[Tuple[Any, Any]] = []  # of each step
        self._exchange_s: List[Tuple[float, float]] = []  # inside the transport, and waiting for it
        self._losses: List[Any] = []
        self._samples: List[Tuple[Numbers, Numbers]] = []  # squares of gradients and of means
        self._norms: List[Optional[Tuple[Any, Any, Any]]] = []  # of the last step
        # Of the step in progress.
        self._sampled = False
        self._step_own: Numbers = {}
        self._step_means: Numbers = {}
        self._step_norms: Optional[StepNorms] = None

    @property
    def steps(self) -> int:
        return len(self._marks)

    @property
    def skipped(self) -> int:
        """Steps that were not committed; waits for a GPU."""
        return self.measured.left_out(self.steps)

    def begin(self) -> None:
        """Before the first step; waits for a GPU."""
        self.measured.begin()

    def note_loss(self, loss: Any) -> None:
        self._losses.append(self.measured.kept(loss))

    def begin_step(self, left: int, norms: bool) -> None:
        """left: steps of the window behind this one."""
        every = max(1, (self.steps + 1 + left) // _SAMPLES)
        looks = left % every == 0
        self._sampled = norms and looks
        self.measured.begin_step(looks)
        self._step_own, self._step_means = {}, {}
        if norms and left == 0:
            with self._work.behind_backward():
                self._step_norms = StepNorms(self._exchange, self.measured)

    def sees(self, parameters: Sequence[int], values: torch.Tensor) -> None:
        """Gradients of this rank, one after another, before they leave."""
        self.measured.sees(parameters)
        if self._sampled:
            with self._work.behind_backward():
                if self._step_norms is not None:
                    self._step_norms.add(parameters, values)
                self._add(self._step_own, parameters, values)

    def sees_means(self, parameters: Sequence[int], values: torch.Tensor) -> None:
        """Means of all ranks, likewise."""
        if self._sampled:
            with self._work.behind_backward():
                self._add(self._step_means, parameters, values)

    def end_step(self, begin: Any, end: Any, committed: bool) -> None:
        """begin, end: marks of the work."""
        self._marks.append((begin, end))
        self.measured.end_step(committed)
        if self._sampled and committed:
            self._samples.append((self._step_own, self._step_means))
        if self._step_norms is not None:
            # A step that was left out tells nothing of what compressors leave out.
            with self._work.behind_backward():
                self._norms = self._step_norms.found() if committed else []
            self._step_norms = None
        if self.steps % _TRACE_ROWS == 0:
            self._read_trace()

    def shared(self, transport: _core.Transport, fingerprint: int) -> "Shared":
        """Collective. fingerprint: of what was asked for, which must be the same on all ranks.

        Raises:
            TransportError: on all ranks, where it is another on some.
        """
        count = self.steps
        self._read_trace()
        with self._work.behind_backward():
            norms, means = self._read_norms()
            losses = self.measured.read(self._losses)
        step_s = [max(self._work.seconds(begin, end), 1e-9) for begin, end in self._marks]
        loss = sum(losses) / len(losses) if losses else math.nan
        transfer_s, exposed_s = zip(*self._exchange_s)
        values = [*step_s, *transfer_s, *exposed_s, float(len(losses)), loss, *norms]
        words = struct.pack(f"<{len(values)}d", *values)
        told = [
            struct.unpack(f"<{len(values)}d", bytes(each))
            for each in transport.all_gather(words, fingerprint=fingerprint, what="auto: a window")
        ]
        return Shared(told, count, means)

    def _add(self, to: Numbers, parameters: Sequence[int], values: torch.Tensor) -> None:
        flat, begin, measured = values.detach().reshape(-1), 0, self.measured
        for i in parameters:
            end = begin + self._exchange._named[i][1].numel()
            number = measured.kept(square(flat[begin:end]))
            to[i] = measured.unscaled(number, self._exchange._scale, power=2)
            begin = end

    def _read_norms(self) -> Tuple[List[float], List[float]]:
        """Four squares of each parameter, NaN where they are not known, and those of means: of the
        samples that were committed, whose means are numbers."""
        parameters = range(len(self._exchange._named))
        flat = [n for sample in self._samples for part in sample for n in part.values()]
        flat += [n for norm in self._norms if norm is not None for n in norm]
        told = iter(self.measured.read(flat))
        samples = [tuple({i: next(told) for i in part} for part in sample) for sample in self._samples]
        last = [None if norm is None else tuple(next(told) for _ in norm) for norm in self._norms]
        good = [(own, means) for own, means in samples
                if means and all(map(math.isfinite, means.values()))]  # fmt: skip
        own, means = (
            [math.fsum(part.get(i, 0.0) for part in parts) / max(1, len(good)) for i in parameters]
            for parts in ([sample[0] for sample in good], [sample[1] for sample in good])
        )
        if not last or not good or samples[-1] != good[-1]:  # the last step is one of them
            return [math.nan] * (4 * len(parameters)), means
        squares = [[0.0] * 4 if norm is None else [*norm, own[i]] for i, norm in enumerate(last)]
        return [x for row in squares for x in row], means

    def _read_trace(self) -> None:
        missing = self.steps - len(self._exchange_s)
        self._exchange_s += self.measured.exchange_s(missing)


class Shared:
    """What all ranks' windows say together: the same on all of them."""

    def __init__(self, told: List[Tuple[float, ...]], steps: int, means: List[float]) -> None:
        columns = list(zip(*told))
        self.step_s = [max(each) for each in columns[:steps]]
        exchange_s = [min(each) for each in columns[steps : 3 * steps]]
        unknown = any(math.isnan(x) for rank in told for x in rank[steps : 3 * steps])
        self.exchange_s = [] if unknown else exchange_s[:steps]
        self.exposed_s = [] if unknown else exchange_s[steps:]
        counts, losses = columns[3 * steps], columns[3 * steps + 1]
        known = [loss for count, loss in zip(counts, losses) if count > 0]
        self.loss = sum(known) / len(known) if known else None  # of inf and -inf none, and bad
        flat = columns[3 * steps + 2 :]
        if any(not math.isfinite(x) for each in flat for x in each):
            flat = []
        sums = [math.fsum(column) for column in flat]
        self.norms: List[Any] = [
            (*sums[4 * i : 4 * i + 4], means[i] if math.isfinite(means[i]) else 0.0)
            for i in range(len(flat) // 4)
        ]
