"""Where gradients lie, and how the work on them is ordered there: on the CPU a call is over when it
returns, on a GPU it is enqueued on a stream beside backward's."""

import contextlib
import time
from typing import Any, ContextManager, Dict, Iterator, NamedTuple, Optional

import torch

from ..errors import InvalidArgument
from .devices import current_stream

__all__ = ["OnCpu", "OnGpu", "Scale", "work_on"]


class Scale(NamedTuple):
    """By what gradients are too large: `value`, times the number in `tensor`, which lies on their GPU."""

    value: float
    tensor: Optional[torch.Tensor] = None

    @property
    def address(self) -> int:
        return 0 if self.tensor is None else self.tensor.data_ptr()


class OnCpu:
    """Nothing to order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    #: Whether the end of a step is known when it has been handed over.
    waits = True

    def reducer_options(self) -> Dict[str, Any]:
        return {}

    def future(self) -> "torch.futures.Future[torch.Tensor]":
        return torch.futures.Future()

    def behind_backward(self) -> ContextManager[None]:
        """Inside, work goes behind what the caller's stream has so far."""
        return contextlib.nullcontext()

    def before_caller(self) -> None:
        """The caller's stream goes on behind that work."""

    def use(self, tensor: torch.Tensor) -> None:
        """The tensor's memory is used by that work, and may be given back by others before."""

    def mark(self) -> Any:
        """Now, as seconds() takes it: on a GPU when the caller's stream comes here."""
        return time.perf_counter()

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks; on a GPU it waits for them."""
        return float(end - begin)

    def scale_of(self, scaler: Any) -> Scale:
        """What a GradScaler multiplies losses with now; None: nothing."""
        return Scale(1.0 if scaler is None else scaler.get_scale())


class OnGpu(OnCpu):
    """No call waits for the GPU: what is called is ordered on a stream of its own."""

    waits = False

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        stream: Any = torch.cuda.Stream  # which is not typed
        self._stream = stream(device)

    def reducer_options(self) -> Dict[str, Any]:
        # What is left out reaches GradScaler as NaN, since no host knows of it.
        return {"stream": self._stream.cuda_stream, "left_out": "nan"}

    def future(self) -> "torch.futures.Future[torch.Tensor]":
        # set_result() records an event on the stream that is current, which whoever waits waits for.
        return torch.futures.Future(devices=[self.device])

    def behind_backward(self) -> ContextManager[None]:
        return self._inside()

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield

    def before_caller(self) -> None:
        torch.cuda.current_stream(self.device).wait_stream(self._stream)

    def use(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self._stream)

    def mark(self) -> Any:
        event = self._timing_event()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        begin.synchronize()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    @property
    def gpu(self) -> int:
        """Its number."""
        return torch.cuda.current_device() if self.device.index is None else self.device.index

    def gpu_name(self) -> str:
        return str(torch.cuda.get_device_name(self.gpu))

    def handle(self) -> int:
        """Of the stream that is current."""
        return current_stream(self.gpu)

    def array(self, tensor: torch.Tensor) -> Any:
        """As gradwire's compressors take it."""
        return tensor

    def _timing_event(self) -> Any:
        event: Any = torch.cuda.Event  # which is not typed
        return event(enable_timing=True)

    def scale_of(self, scaler: Any) -> Scale:
        # get_scale() would wait for the GPU. Until the first loss there is no tensor.
        tensor = None if scaler is None else scaler._scale
        if tensor is None:
            return super().scale_of(scaler)
        if tensor.device != self.device or tensor.dtype != torch.float32:
            raise InvalidArgument(
                f"scaler: its scale is {tensor.dtype} on {tensor.device}, must be float32 on "
                f"{self.device} as gradients are"
            )
        return Scale(1.0, tensor)


def work_on(device: torch.device) -> OnCpu:
    """How work is ordered on that device."""
    return OnGpu(device) if device.type == "cuda" else OnCpu(device)
