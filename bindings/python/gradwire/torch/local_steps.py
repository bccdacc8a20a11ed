"""Local steps in a torch program: any optimizer inside, one exchange in many of its steps."""

from typing import Any, Dict, Iterable, Optional

import torch

from ..errors import InvalidArgument
from ..local_steps import DiLoCo as _Arrays
from ..reducer import Reducer
from .devices import current_stream, gpu_of
from .exchanged import InCOrder, StreamOrder, check_left_out, check_parameters
from .live import refuse_exchanged
from .plain_state import as_arrays, as_tensors

__all__ = ["DiLoCo"]


class DiLoCo:
    """Exchanges what `every` steps of another optimizer have moved the parameters by.

        shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
        plan = gradwire.make_plan(shapes, "chunktopk:64/4096,2bit,decay=0.95")
        outer = gradwire.torch.DiLoCo(model.parameters(), gradwire.Reducer(plan, transport), every=30)
        for batch in batches:
            loss(model, batch).backward()
            inner.step(), inner.zero_grad()
            outer.step()

    On a GPU nothing waits but the constructor, state_dict(), load_state_dict() and synchronize(): an
    exchange and its step are enqueued behind torch's current stream, which goes on behind them.

    Args:
        parameters: those of the reducer's plan, in its order: float32, in CPU memory or on one GPU, with
            the same values on all ranks.
        reducer: of the exchange, over a transport of the same memory; its own gradients are what
            travels, the parameters' stay untouched. With on_nonfinite="skip" an exchange that is left
            out changes nothing where left_out is "nan", and where it is "zero" takes all ranks back to
            where they last agreed, moved by the momentum. On a GPU "error" wants left_out="nan".
        every: local steps from one exchange to the next.
        lr, momentum, nesterov, preset, max_grad_norm, threads: see gradwire.DiLoCo.

    Raises:
        InvalidArgument: for parameters that do not fit the plan or cannot be viewed in place, and those
            of which register() or attach() exchanges gradients. That DDP's own does is not seen.
        DeviceError: for parameters on a GPU that cannot be used, and why.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        reducer: Reducer,
        every: int,
        lr: Optional[float] = None,
        **options: Any,
    ) -> None:
        values = list(parameters)
        if every < 1:
            raise InvalidArgument(f"every: is {every}, must be at least 1")
        check_parameters(values, reducer)
        refuse_exchanged(values, "which local steps do without: expected no register() or attach()")
        if reducer.on_nonfinite == "error":
            check_left_out(reducer)
        self._reducer = reducer
        self._count = len(values)
        self._every = every
        self._steps = 0
        self._parameters = InCOrder(values, reducer)
        gradients = [reducer.gradient(i) for i in range(self._count)]
        gpu = gpu_of(values[0]) if values else None
        if gpu is not None:
            options["stream"] = current_stream(gpu)
        self._outer = _Arrays(self._parameters.arrays, gradients, lr, **options)
        self._order = StreamOrder(self._outer, reducer, gpu)
        self.lr = self._outer.lr

    @property
    def steps(self) -> int:
        """Local steps so far."""
        return self._steps

    def step(self) -> bool:
        """Counts a local step; with every `every`th all ranks exchange and step together.

        Returns:
            Whether they did: then all have the same parameters. On a GPU: whether it is enqueued.

        Raises:
            NonFiniteGradient: a parameter of some rank has become NaN or infinite: raised on all
                ranks, nothing was changed. On a GPU it is raised some exchanges later, by this or by
                synchronize(), and until synchronize() no exchange changes anything.
            TransportError: a rank was lost.
        """
        self._steps += 1
        if self._steps % self._every != 0:
            return False
        self._parameters.read()
        self._outer.prepare(stream=self._order.current)
        with self._order.exchanging() as stream:
            for i in range(self._count):
                self._reducer.grad_ready(i)
            self._reducer.wait()
            # As the reducer, of means that are not finite: of what was left out they may be NaN.
            self._outer.step(self.lr, on_nonfinite=self._reducer.on_nonfinite, stream=stream)
        self._parameters.write()
        return True

    def synchronize(self) -> None:
        """On a GPU blocks until the steps so far are over, behind the same step on all ranks; on the CPU
        step() has told all: does nothing.

        Raises:
            NonFiniteGradient: a parameter of some rank had become NaN or infinite; nothing was changed
                since, and the next exchange is made again.
            TransportError: a rank was lost.
        """
        self._order.synchronize()

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint of this rank needs besides parameters and the reducer's residuals: tensors
        in CPU memory and numbers, for weights_only loading, the same of a CPU and a GPU. On a GPU it
        waits.

        Raises:
            NonFiniteGradient: on a GPU, where exchanges change nothing any more.
        """
        self._outer.check(self._order.current)
        return {"steps": self._steps, "outer": as_tensors(self._outer.state_dict())}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what state_dict() returned, on a CPU or a GPU.

        Raises:
            InvalidArgument: the state is of something else; nothing was changed.
        """
        for key in ("steps", "outer"):
            if key not in state:
                raise InvalidArgument(f"state['{key}']: is missing, must be there")
        self._outer.load_state_dict(as_arrays(state["outer"]))
        self._steps = int(state["steps"])
        self.lr = self._outer.lr
