"""1-bit Adam and 1-bit LAMB in a torch program: a Reducer whose plan changes when v freezes."""

from typing import Any, Callable, Dict, List, Optional, Tuple, Type

import torch

from .._core import Plan, check_optimizer_groups, optimizer_settings
from ..errors import InvalidArgument
from ..onebit import OneBitAdam as _AdamArrays
from ..onebit import OneBitLAMB as _LambArrays
from ..param_groups import checked_rate
from ..reducer import Reducer
from .devices import array_of, current_stream, gpu_of
from .exchanged import InCOrder, StreamOrder, check_left_out, check_parameters
from .group_rows import row_of_group
from .live import refuse_exchanged
from .over_arrays import OverArrays
from .plain_state import as_arrays
from .stepped import Params

__all__ = ["OneBitAdam", "OneBitLAMB"]


def _check_plans(reducer: Reducer, plan: Plan) -> None:
    """Before a step is made: what does not fit would be found in the middle of one, or at the freeze."""
    if not isinstance(plan, Plan):
        raise InvalidArgument(f"plan: is a {type(plan).__name__}, must be a Plan, from make_plan()")
    if plan.parameters != reducer.plan.parameters or _numel_of(plan) != _numel_of(reducer.plan):
        raise InvalidArgument("plan: is of other parameters than the reducer's, must be of the same")


def _numel_of(plan: Plan) -> int:
    return sum(group["numel"] for bucket in plan.layout for group in bucket["groups"])


class _OneBit(OverArrays):
    """What both share: gradients go to the reducer, momenta once the optimizer says so."""

    _kind: Type[Any]  # of arrays
    _settings: Tuple[str, ...] = ()  # that a group may have besides lr and weight_decay

    def __init__(
        self,
        parameters: Params,
        reducer: Reducer,
        plan: Plan,
        lr: float = 1e-3,
        **options: Any,
    ) -> None:
        defaults: Dict[str, Any] = {"lr": checked_rate(lr), "weight_decay": None}
        self._begin(parameters, reducer, {**defaults, **dict.fromkeys(self._settings, True)})
        values = self._values
        check_parameters(values, reducer)
        refuse_exchanged(values, "which the optimizer does by itself: expected no register() or attach()")
        check_left_out(reducer)
        _check_plans(reducer, plan)
        self._reducer = reducer
        self._plans = {"gradients": reducer.plan, "momentum": plan}
        self._exchanged = "gradients"
        # Not the reducer's own, whose memory ends when its plan changes.
        self._memory, self._gradients = _one_behind_another(values)
        gpu = gpu_of(values[0])
        if gpu is not None:
            options["stream"] = current_stream(gpu)
        self._stepped = InCOrder(values, reducer)
        self._arrays = self._kind(
            self._stepped.arrays,
            [array_of(g) for g in self._gradients],
            1.0,
            groups=self._groups(),
            **options,
        )
        decay = float(optimizer_settings(self._arrays.spec)["weight_decay"])
        for group in (self.defaults, *self.param_groups):
            group["weight_decay"] = decay if group["weight_decay"] is None else group["weight_decay"]
        check_optimizer_groups([row_of_group(group) for group in self.param_groups])
        self._order = StreamOrder(self._arrays, reducer, gpu)
        self._freeze_step = int(options["freeze_step"])
        self._most_steps = 0  # that may have been made; where some were left out it is too many

    @property
    def exchanges(self) -> str:
        """What the next step exchanges: "gradients", or "momentum" by the second plan. On a GPU it
        waits."""
        return self._arrays.exchanges

    @torch.no_grad()
    def step(
        self, closure: Optional[Callable[[], Any]] = None, *, gradient_scale: float = 1.0
    ) -> Any:
        """Exchanges with all ranks, and steps.

        On a GPU it is enqueued behind torch's current stream, which goes on behind it. Nothing waits
        but the step at which v may be frozen, the one behind freeze_step others, which asks the GPU and
        changes the plan; of steps that were left out before each makes one more ask.

        Args:
            closure: computes the loss again and returns it, as torch.optim's.
            gradient_scale: what gradients are multiplied by as they are read, in (0, 1], the same on
                all ranks: 1 over the scale of the loss.

        Returns:
            With a closure what it returned. Else False for a step that the reducer skipped; nothing
            was changed then. On a GPU nobody knows by then: True.

        Raises:
            NonFiniteGradient: on all ranks, where one's gradient is not finite; nothing was changed.
                On a GPU it is raised some steps later, by this or by synchronize(), and until
                synchronize() no step changes anything.
            InvalidArgument: a parameter has no gradient; gradient_scale is not in (0, 1]; a setting of
                a group is out of range; a GradScaler steps, whose ranks would leave out other steps.
            TransportError: a rank was lost.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        stepped = self._step(gradient_scale)
        return stepped if closure is None else loss

    def _step(self, gradient_scale: float) -> bool:
        self._set_groups()
        given = [_gradient_of(i, parameter) for i, parameter in enumerate(self._values)]
        torch._foreach_copy_(self._gradients, given)
        self._follow()
        self._stepped.read()
        self._arrays.prepare(gradient_scale, stream=self._order.current)
        ids, address = list(range(len(given))), self._memory.data_ptr()
        with self._order.exchanging() as stream:
            self._reducer.give_from(ids, address, "float32")
            if self._reducer.wait() is False:
                return False
            self._reducer.write_means(ids, address, "float32")
            on_cpu = stream is None  # where wait() has told all
            self._arrays.step(
                1.0,  # times the groups'
                gradient_scale=gradient_scale,
                known_finite=on_cpu,
                on_nonfinite="error" if on_cpu else self._reducer.on_nonfinite,
                stream=stream,
            )
        self._stepped.write()
        self._most_steps += 1
        return True

    def synchronize(self) -> None:
        """On a GPU blocks until the steps so far are over, behind the same step on all ranks; on the CPU
        step() has told all: does nothing.

        Raises:
            NonFiniteGradient: some rank's gradient was not finite; nothing was changed since, and the
                next step is made again.
            TransportError: a rank was lost.
        """
        self._order.synchronize()

    def _follow(self) -> None:
        # v stays frozen; and all ranks find it so behind the same step, since all have made the same.
        if self._exchanged == "gradients" and self._most_steps >= self._freeze_step:
            self._exchange(self._arrays.exchanges)

    def _exchange(self, exchanged: str) -> None:
        if exchanged != self._exchanged:
            self._reducer.set_plan(self._plans[exchanged])
            self._exchanged = exchanged

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes over what state_dict() returned, on a CPU or a GPU, and the plan that goes with it.
        Collective: call it before Reducer.load().

        Raises:
            InvalidArgument: the state is of something else; nothing was changed. On a GPU also where
                v is frozen here and not there, since what residuals hold cannot be given back.
        """
        if "scalars" in state_dict:  # as it was saved before there were groups
            self._take_over(as_arrays({**state_dict, "lr": 1.0}))
            self.lr = float(checked_rate(state_dict["lr"]))
        else:
            super().load_state_dict(state_dict)

    def _take_over(self, arrays: Dict[str, Any]) -> None:
        before = self._arrays.state_dict()
        self._arrays.load_state_dict(arrays)
        try:
            self._exchange(self._arrays.exchanges)
        except InvalidArgument:
            self._arrays.load_state_dict(before)
            raise
        self._most_steps = max((int(s["step"]) for s in arrays["scalars"].values()), default=0)


def _one_behind_another(
    like: List[torch.Tensor],
) -> Tuple[torch.Tensor, List[torch.Tensor]]:
    """New memory, and tensors of these shapes in it."""
    memory = torch.empty(sum(t.numel() for t in like), dtype=torch.float32, device=like[0].device)
    parts, at = [], 0
    for t in like:
        parts.append(memory[at : at + t.numel()].view(t.shape))
        at += t.numel()
    return memory, parts


def _gradient_of(i: int, parameter: torch.Tensor) -> torch.Tensor:
    if parameter.grad is None:
        raise InvalidArgument(
            f"parameters[{i}]: has no gradient, must have one: zeros, where a step does not reach it"
        )
    if parameter.grad.layout != torch.strided:
        raise InvalidArgument(f"parameters[{i}]: has a sparse gradient, must have a dense one")
    return parameter.grad.detach()


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
        parameters: those of the plans, in their order, or by their names: tensors, (name, tensor) pairs or
            param groups; float32, in CPU memory or on one GPU, with the same values on all ranks.
        reducer: its plan is that of gradients; gradients are copied to it, the parameters' own stay
            as they are. Over a transport of the same memory; on a GPU made with left_out="nan".
        plan: of momenta, with a compressor with error feedback.
        lr, weight_decay: of param groups that have none of their own; schedulers may change them.
        freeze_step and others: see gradwire.OneBitAdam.

    Raises:
        InvalidArgument: for parameters that do not fit the plan or cannot be viewed in place.
        DeviceError: for parameters on a GPU that cannot be used, and why.
    """

    _kind = _AdamArrays


class OneBitLAMB(_OneBit):
    """1-bit LAMB, exchanged as OneBitAdam; arguments as its, others see gradwire.OneBitLAMB. Param groups
    may have `adapt`: False leaves layer-wise adaptation out."""

    _kind = _LambArrays
    _settings = ("adapt",)
