"""Local steps in a torch program: any optimizer inside, one exchange in many of its steps."""

from typing import Any, Dict, Iterable, Optional, Sequence

import torch

from ..errors import InvalidArgument
from ..local_steps import DiLoCo as _Arrays
from ..reducer import Reducer
from .plain_state import as_arrays, as_tensors

__all__ = ["DiLoCo"]


def check_floats(parameters: Sequence[torch.Tensor]) -> None:
    """Raises InvalidArgument unless all are of torch.float32 in CPU memory."""
    for i, parameter in enumerate(parameters):
        if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
            raise InvalidArgument(
                f"parameters[{i}]: is {parameter.dtype} on {parameter.device}, must be "
                "torch.float32 on the CPU"
            )


class DiLoCo:
    """Exchanges what `every` steps of another optimizer have moved the parameters by.

        shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
        plan = gradwire.make_plan(shapes, "chunktopk:64/4096,2bit,decay=0.95")
        outer = gradwire.torch.DiLoCo(model.parameters(), gradwire.Reducer(plan, transport), every=30)
        for batch in batches:
            loss(model, batch).backward()
            inner.step(), inner.zero_grad()
            outer.step()

    Args:
        parameters: those of the reducer's plan, in its order: float32, contiguous, in CPU memory, with
            the same values on all ranks.
        reducer: of the exchange; its own gradients are what travels, the parameters' stay untouched.
        every: local steps from one exchange to the next.
        lr, momentum, nesterov, preset, max_grad_norm, threads: see gradwire.DiLoCo.

    Raises:
        InvalidArgument: for parameters that do not fit the plan or cannot be viewed in place.
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
        check_floats(values)
        self._reducer = reducer
        self._count = len(values)
        self._every = every
        self._steps = 0
        gradients = [reducer.gradient(i) for i in range(self._count)]
        arrays = [p.detach().numpy() for p in values]
        self._outer = _Arrays(arrays, gradients, lr, **options)
        self.lr = self._outer.lr

    @property
    def steps(self) -> int:
        """Local steps so far."""
        return self._steps

    def step(self) -> bool:
        """Counts a local step; with every `every`th all ranks exchange and step together.

        Returns:
            Whether they did: then all have the same parameters.

        Raises:
            NonFiniteGradient: a parameter of some rank has become NaN or infinite: raised on all
                ranks, nothing was changed.
            TransportError: a rank was lost.
        """
        self._steps += 1
        if self._steps % self._every != 0:
            return False
        self._outer.prepare()
        for i in range(self._count):
            self._reducer.grad_ready(i)
        self._reducer.wait()
        self._outer.step(self.lr)
        return True

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint of this rank needs besides parameters and the reducer's residuals: tensors
        and numbers, for weights_only loading."""
        return {"steps": self._steps, "outer": as_tensors(self._outer.state_dict())}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what state_dict() returned.

        Raises:
            InvalidArgument: the state is of something else; nothing was changed.
        """
        for key in ("steps", "outer"):
            if key not in state:
                raise InvalidArgument(f"state['{key}']: is missing, must be there")
        self._outer.load_state_dict(as_arrays(state["outer"]))
        self._steps = int(state["steps"])
        self.lr = self._outer.lr
