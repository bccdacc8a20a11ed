"""What 'auto' measures, where gradients lie. On the CPU numbers are there at once; on a GPU they stay
in its memory until a window ends, where it is waited for."""

import math
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import torch

from ..feedback import Feedback
from .ordering import OnCpu, OnGpu, Scale

if TYPE_CHECKING:
    from ..planning import Codec
    from .exchange import GradientExchange

__all__ = ["MeasuredOnCpu", "MeasuredOnGpu", "measured_by", "square"]

_UNKNOWN = math.nan, math.nan


def square(values: torch.Tensor) -> torch.Tensor:
    """Its norm's, a number where the values are."""
    flat = values.detach().reshape(-1)
    return torch.dot(flat, flat) if flat.dtype == torch.float32 else flat.float().square().sum()


class MeasuredOnCpu:
    """Of one window; beside it, what compressors cost."""

    device = "cpu"

    def __init__(self, exchange: "GradientExchange") -> None:
        self._exchange = exchange
        self._left_out = 0

    # Of steps.

    def begin(self) -> None:
        """Before the window's first step; waits for a GPU."""

    def begin_step(self, looks: bool) -> None:
        """looks: this step is one of those that are looked at for when gradients are there."""

    def sees(self, parameters: Sequence[int]) -> None:
        """Their gradients are there."""

    def end_step(self, committed: bool) -> None:
        self._left_out += int(not committed)

    def left_out(self, steps: int) -> int:
        """How many of the window's steps were not committed: the same on all ranks."""
        return self._left_out

    def exchange_s(self, steps: int) -> List[Tuple[float, float]]:
        """Of the last steps, seconds inside the transport, and those that the end of backward waited for
        it; NaN where that is not known."""
        reducer = self._exchange._reducer
        rows = reducer.trace()[-steps:] if reducer is not None and steps > 0 else []
        found = [(row["transfer_us"] * 1e-6, row["exposed_us"] * 1e-6) for row in rows]
        return found if len(found) == steps else [_UNKNOWN] * steps

    def ready_s(self) -> Dict[int, float]:
        """When gradients were there, by parameter, in seconds behind the first; without those that
        never were."""
        assert self._exchange._reducer is not None
        return {row["parameter"]: row["ready_s"] for row in self._exchange._reducer.gradient_timings()}

    # Of gradients.

    def kept(self, number: Any) -> Any:
        """A number that is wanted when the window ends."""
        return float(number)

    def read(self, numbers: Sequence[Any]) -> List[float]:
        """Of what kept() returned; waits for a GPU."""
        return list(numbers)

    def unscaled(self, values: torch.Tensor, scale: Scale, power: int = 1) -> Any:
        """Values, or a number, over a power of the loss scale."""
        return values / scale.value**power

    def residual(self, i: int) -> Optional[torch.Tensor]:
        """That of the steps so far, flat; None without feedback."""
        assert self._exchange._reducer is not None
        found = self._exchange._reducer.residual(i)
        return None if found is None else torch.from_numpy(found).reshape(-1)

    def encoded(self, spec: str, values: torch.Tensor) -> torch.Tensor:
        """What is left of them when a compressor without feedback has been there."""
        again = Feedback(spec, values.numel(), threads=self._exchange._threads)
        decoded = torch.empty_like(values)
        again.decompress([again.compress(values.numpy())], 1.0, out=decoded.numpy())
        return decoded

    # Of compressors.

    def codecs(self, specs: Sequence[str], budget_s: float) -> "Dict[str, Codec]":
        """What they cost here, by spec, without those that could not be timed within so many seconds."""
        from ..codec_cache import cached_codecs  # of the planner, which a build may be without

        return cached_codecs(specs, self._exchange._threads, budget_s=budget_s)


class MeasuredOnGpu(MeasuredOnCpu):
    """No call of a step waits: times are events, numbers stay where they are."""

    device = "cuda"

    def __init__(self, exchange: "GradientExchange", work: OnGpu) -> None:
        super().__init__(exchange)
        self._work = work
        self._committed: Optional[int] = None  # before the window
        self._ready: List[List[Tuple[List[int], Any]]] = []  # of each step that is looked at
        self._looks = False

    def begin(self) -> None:
        if self._exchange._reducer is not None:
            self._committed = self._exchange._reducer.committed_steps

    def begin_step(self, looks: bool) -> None:
        self._looks = looks
        if looks:
            self._ready.append([])

    def sees(self, parameters: Sequence[int]) -> None:
        if self._looks:
            self._ready[-1].append((list(parameters), self._work.mark()))

    def left_out(self, steps: int) -> int:
        # The host hears of it steps later, and not on all ranks at once: the GPU's count is the same.
        assert self._exchange._reducer is not None and self._committed is not None
        committed = self._exchange._reducer.committed_steps - self._committed
        return min(max(steps - committed, 0), steps)

    def exchange_s(self, steps: int) -> List[Tuple[float, float]]:
        return [_UNKNOWN] * steps  # the trace has when work was enqueued

    def ready_s(self) -> Dict[int, float]:
        found: Dict[int, List[float]] = {}
        for step in self._ready:
            for parameters, mark in step:
                behind = max(0.0, self._work.seconds(step[0][1], mark))
                for i in parameters:
                    found.setdefault(i, []).append(behind)
        return {i: sum(times) / len(times) for i, times in found.items()}

    def kept(self, number: Any) -> Any:
        if isinstance(number, torch.Tensor) and number.device == self._work.device:
            return number.detach().double().reshape(())
        return float(number)

    def read(self, numbers: Sequence[Any]) -> List[float]:
        there = [n for n in numbers if isinstance(n, torch.Tensor)]
        told = iter(torch.stack(there).tolist() if there else [])
        return [next(told) if isinstance(n, torch.Tensor) else n for n in numbers]

    def unscaled(self, values: torch.Tensor, scale: Scale, power: int = 1) -> Any:
        plain = values / scale.value**power
        return plain if scale.tensor is None else plain / scale.tensor.reshape(()) ** power

    def residual(self, i: int) -> Optional[torch.Tensor]:
        reducer, numel = self._exchange._reducer, self._exchange._named[i][1].numel()
        assert reducer is not None
        copy = torch.empty(numel, device=self._work.device)
        return copy if reducer.copy_residual(i, copy.data_ptr()) else None

    def encoded(self, spec: str, values: torch.Tensor) -> torch.Tensor:
        again = Feedback(spec, values.numel(), device=f"cuda:{self._work.gpu}")
        decoded, stream = torch.empty_like(values), self._work.handle()
        payload = again.compress(self._work.array(values), stream=stream)
        again.decompress([payload], 1.0, out=self._work.array(decoded), stream=stream)
        return decoded

    def codecs(self, specs: Sequence[str], budget_s: float) -> "Dict[str, Codec]":
        from .gpu_codecs import cached_gpu_codecs

        return cached_gpu_codecs(specs, self._work, budget_s=budget_s)


def measured_by(exchange: "GradientExchange", work: OnCpu) -> MeasuredOnCpu:
    """How that work is measured."""
    return MeasuredOnGpu(exchange, work) if isinstance(work, OnGpu) else MeasuredOnCpu(exchange)
