"""1-bit Adam and 1-bit LAMB in a torch program: a Reducer whose plan changes when v freezes."""

from typing import Any, Dict, Iterable, List, Type

import numpy as np
import torch

from .._core import Plan
from ..errors import InvalidArgument
from ..onebit import OneBitAdam as _AdamArrays
from ..onebit import OneBitLAMB as _LambArrays
from ..optim import Optimizer as _Arrays
from ..reducer import Reducer
from .local_steps import check_floats
from .plain_state import as_arrays, as_tensors

__all__ = ["OneBitAdam", "OneBitLAMB"]


def _check_plans(parameters: List[torch.Tensor], reducer: Reducer, plan: Plan) -> None:
    """Before a step is made: what does not fit would be found in the middle of one, or at the freeze."""
    if not isinstance(plan, Plan):
        raise InvalidArgument(f"plan: is a {type(plan).__name__}, must be a Plan, from make_plan()")
    names = reducer.plan.parameters
    if plan.parameters != names or _numel_of(plan) != _numel_of(reducer.plan):
        raise InvalidArgument("plan: is of other parameters than the reducer's, must be of the same")
    if len(parameters) != len(names):
        raise InvalidArgument(f"parameters: are {len(parameters)}, must be the plan's {len(names)}")
    for i, parameter in enumerate(parameters):
        shape = reducer.gradient(i).shape
        if tuple(parameter.shape) != shape:
            raise InvalidArgument(
                f"parameters[{i}]: has the shape {tuple(parameter.shape)}, must have {shape}, as the "
                f"plan's '{names[i]}'"
            )


def _numel_of(plan: Plan) -> int:
    return sum(group["numel"] for bucket in plan.layout for group in bucket["groups"])


class _OneBit:
    """What both share: gradients go to the reducer, momenta once the optimizer says so."""

    _kind: Type[Any]  # of arrays

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        reducer: Reducer,
        plan: Plan,
        lr: float = 1e-3,
        **options: Any,
    ) -> None:
        values = list(parameters)
        check_floats(values)
        _check_plans(values, reducer, plan)
        self._parameters = values
        self._reducer = reducer
        self._plans = {"gradients": reducer.plan, "momentum": plan}
        self._exchanged = "gradients"
        # Not the reducer's own, whose memory ends when its plan changes.
        self._gradients = [np.empty(tuple(p.shape), np.float32) for p in values]
        arrays = [p.detach().numpy() for p in values]
        self._optimizer: _Arrays = self._kind(arrays, self._gradients, lr, **options)

    @property
    def lr(self) -> float:
        """Learning rate of the next step; schedules set it."""
        return self._optimizer.lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._optimizer.lr = lr

    @property
    def exchanges(self) -> str:
        """What the next step exchanges: "gradients", or "momentum" by the second plan."""
        return self._optimizer.exchanges

    def step(self, *, gradient_scale: float = 1.0) -> bool:
        """Exchanges with all ranks, and steps.

        Args:
            gradient_scale: what gradients are multiplied by as they are read, in (0, 1], the same on
                all ranks: 1 over the scale of the loss.

        Returns:
            False for a step that the reducer skipped; nothing was changed then.

        Raises:
            NonFiniteGradient: on all ranks, where one's gradient is not finite; nothing was changed.
            InvalidArgument: a parameter has no gradient; gradient_scale is not in (0, 1].
            TransportError: a rank was lost.
        """
        for i, (parameter, gradient) in enumerate(zip(self._parameters, self._gradients)):
            if parameter.grad is None:
                raise InvalidArgument(
                    f"parameters[{i}]: has no gradient, must have one: zeros, where a step does not "
                    "reach it"
                )
            if parameter.grad.layout != torch.strided:
                raise InvalidArgument(f"parameters[{i}]: has a sparse gradient, must have a dense one")
            np.copyto(gradient, parameter.grad.detach().numpy())
        self._follow()
        self._optimizer.prepare(gradient_scale)
        for i, gradient in enumerate(self._gradients):
            np.copyto(self._reducer.gradient(i), gradient)
            self._reducer.grad_ready(i)
        if not self._reducer.wait():
            return False
        for i, gradient in enumerate(self._gradients):
            np.copyto(gradient, self._reducer.gradient(i))
        self._optimizer.step(gradient_scale=gradient_scale, known_finite=True)
        return True

    def _follow(self) -> None:
        exchanged = self._optimizer.exchanges
        if exchanged != self._exchanged:
            self._reducer.set_plan(self._plans[exchanged])
            self._exchanged = exchanged

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint needs besides parameters and the reducer's residuals: tensors and numbers,
        for weights_only loading."""
        state: Dict[str, Any] = as_tensors(self._optimizer.state_dict())
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what state_dict() returned, and the plan that goes with it. Collective: call it
        before Reducer.load().

        Raises:
            InvalidArgument: the state is of something else; nothing was changed.
        """
        self._optimizer.load_state_dict(as_arrays(state))
        self._follow()


class OneBitAdam(_OneBit):
    """1-bit Adam: one exchange of gradients a step until v freezes, of momenta in 1 bit from then on.

        shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
        reducer = gradwire.Reducer(gradwire.make_plan(shapes, "none"), transport)
        plan = gradwire.make_plan(shapes, "1bit", exchange="two_shot")
        optimizer = gradwire.torch.OneBitAdam(model.parameters(), reducer, plan, lr=1e-3,
                                              freeze_step=1000)
        for batch in batches:
            model.zero_grad()
            loss(model, batch).backward()
            optimizer.step()

    Args:
        parameters: those of the plans, in their order: float32, contiguous, in CPU memory, with the
            same values on all ranks.
        reducer: its plan is that of gradients; gradients are copied to it, the parameters' own stay
            as they are.
        plan: of momenta, with a compressor with error feedback.
        lr, freeze_step and others: see gradwire.OneBitAdam.

    Raises:
        InvalidArgument: for parameters that do not fit the plan or cannot be viewed in place.
    """

    _kind = _AdamArrays


class OneBitLAMB(_OneBit):
    """1-bit LAMB, exchanged as OneBitAdam; arguments as its, others see gradwire.OneBitLAMB."""

    _kind = _LambArrays
