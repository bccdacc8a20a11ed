"""Optimizers on arrays whose step is an exchange by a Reducer: what they step, and the order of their
work on a GPU."""

import contextlib
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from ..errors import InvalidArgument, NonFiniteGradient
from ..optim import Optimizer
from ..reducer import Reducer
from .devices import array_of, check_device, current_stream, gpu_of
from .memory_order import refuse_shared_elements
from .shards import check_plain

__all__ = ["InCOrder", "StreamOrder", "check_left_out", "check_parameters"]


def check_parameters(parameters: Sequence[torch.Tensor], reducer: Reducer) -> None:
    """Raises InvalidArgument unless all are plain, of torch.float32 and where the reducer's gradients are,
    DeviceError for a GPU that gradwire cannot use; and for a plan of other parameters."""
    _check_planned(parameters, reducer)
    for i, parameter in enumerate(parameters):
        check_plain(f"parameters[{i}]", parameter)
        if parameter.dtype != torch.float32:
            raise InvalidArgument(
                f"parameters[{i}]: is {parameter.dtype} on {parameter.device}, must be torch.float32"
            )
        check_device(f"parameters[{i}]", parameter, parameters[: min(i, 1)])
        gpu = gpu_of(parameter)
        if reducer.device != ("cpu" if gpu is None else f"cuda:{gpu}"):
            raise InvalidArgument(
                f"parameters[{i}]: is on {parameter.device}, must be on {reducer.device}, where the "
                "reducer has its gradients"
            )


def _check_planned(parameters: Sequence[torch.Tensor], reducer: Reducer) -> None:
    names = reducer.plan.parameters
    if len(parameters) != len(names):
        first = min(len(parameters), len(names))
        wrong = (
            f"parameters[{first}] of shape {tuple(parameters[first].shape)} is in no plan"
            if len(parameters) > first
            else f"'{names[first]}' is not among them"
        )
        raise InvalidArgument(
            f"parameters: are {len(parameters)}, must be the plan's {len(names)} in its order: {wrong}"
        )
    for i, (parameter, name) in enumerate(zip(parameters, names)):
        shape = tuple(reducer.gradient(i).shape)
        if tuple(parameter.shape) != shape:
            raise InvalidArgument(
                f"parameters[{i}]: has the shape {tuple(parameter.shape)}, must have {shape}, as the "
                f"plan's '{name}'"
            )


class InCOrder:
    """Parameters as the reducer has their gradients, in C order: their own memory where that is so, and
    stays so, else copies, which read() makes equal to the parameters and write() writes to them. Both on
    torch's current stream."""

    def __init__(self, parameters: Sequence[torch.Tensor], reducer: Reducer) -> None:
        for i, (parameter, name) in enumerate(zip(parameters, reducer.plan.parameters)):
            refuse_shared_elements(f"parameters[{i}]: '{name}'", parameter)
        self._parameters = parameters
        self._names = list(reducer.plan.parameters)
        # contiguous() is the tensor itself where there is nothing to do.
        self._stepped = [p.detach().contiguous() for p in parameters]
        self._by_storage: Dict[int, List[int]] = {}  # what is stepped, by the storage it lies in
        for i, t in enumerate(self._stepped):
            self._by_storage.setdefault(t.untyped_storage().data_ptr(), []).append(i)
        self.arrays: List[Any] = [array_of(t) for t in self._stepped]
        self._copied: List[int] = []

    def read(self) -> None:
        """Before the optimizer looks at them."""
        # Anew, since model.to(memory_format=...) gives parameters other memory.
        self._copied = [
            i
            for i, (p, mine) in enumerate(zip(self._parameters, self._stepped))
            if p.data_ptr() != mine.data_ptr() or not p.is_contiguous()
        ]
        if self._copied:
            self._part()
            torch._foreach_copy_(self._of(self._stepped), self._of(self._parameters))

    def write(self) -> None:
        """When it has stepped."""
        if self._copied:
            torch._foreach_copy_(self._of(self._parameters), self._of(self._stepped))

    def _part(self) -> None:
        """Gives parameters memory of their own that somebody has laid over what the optimizer steps, as
        p.data = p.data.t() does: to copy from there would read what it has written."""
        names, copied = self._names, set(self._copied)
        for i in self._copied:
            parameter = self._parameters[i]
            others = [
                j
                for j in self._by_storage.get(parameter.untyped_storage().data_ptr(), [])
                if _overlap(parameter, self._stepped[j])
            ]
            for j in others:
                if j not in copied:
                    raise InvalidArgument(
                        f"parameters[{i}]: '{names[i]}' lies in the memory of parameters[{j}], '{names[j]}', "
                        "must have its own; clone() gives it that"
                    )
            if others:
                parameter.data = parameter.detach().clone()

    def _of(self, tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return [tensors[i].detach() for i in self._copied]


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    (first, last), (begin, end) = _extent(one), _extent(other)
    return first < end and begin < last


def _extent(tensor: torch.Tensor) -> Tuple[int, int]:
    """The addresses between which its elements lie."""
    begin = tensor.data_ptr()
    if tensor.numel() == 0:
        return begin, begin
    last = sum(stride * (extent - 1) for stride, extent in zip(tensor.stride(), tensor.shape))
    return begin, begin + (last + 1) * tensor.element_size()


def check_left_out(reducer: Reducer) -> None:
    """Raises InvalidArgument where a step that is left out on a GPU would look like one of zeros."""
    if reducer.device != "cpu" and reducer.left_out != "nan":
        raise InvalidArgument(
            f"reducer: left_out is '{reducer.left_out}', must be 'nan' on {reducer.device}: no host "
            "knows which steps are left out there, and the optimizer tells by their means"
        )


class StreamOrder:
    """The work of an optimizer and of a Reducer, which are on torch's current stream and on the
    reducer's. On the CPU calls are over when they return."""

    def __init__(self, optimizer: Optimizer, reducer: Reducer, gpu: Optional[int]) -> None:
        self._optimizer = optimizer
        self._reducer = reducer
        self._gpu = gpu

    @property
    def current(self) -> Optional[int]:
        """The handle of torch's current stream; None on the CPU."""
        return None if self._gpu is None else current_stream(self._gpu)

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[Optional[int]]:
        """Inside, the reducer's stream, which is handed out, is behind what the optimizer has enqueued;
        afterwards torch's current one is behind all that. No host waits."""
        stream = self._reducer.stream
        if stream is None:
            yield None
            return
        self._optimizer.follow(stream)
        try:
            yield stream
        finally:  # also where wait() has raised: memory is read on that stream until then
            self._optimizer.follow(stream)
            self._optimizer.follow(self.current)

    def synchronize(self) -> None:
        """On a GPU waits, and raises what kept steps from being made; steps are made again then."""
        try:
            self._reducer.synchronize()
        except NonFiniteGradient:
            # Of the means that were left out. What raises is the reducer's, which is the cause.
            with contextlib.suppress(NonFiniteGradient):
                self._optimizer.check(self.current)
            raise
        self._optimizer.check(self.current)
