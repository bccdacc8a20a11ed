"""Local steps in a torch program: any optimizer inside, one exchange in many of its steps."""

from typing import Any, Dict, List, Optional, Tuple

import torch

from .._core import check_optimizer_groups
from ..errors import InvalidArgument
from ..local_steps import DiLoCo as _Arrays
from ..param_groups import checked_rate
from ..reducer import Reducer
from .devices import current_stream, gpu_of
from .exchanged import InCOrder, StreamOrder, check_left_out, check_parameters
from .group_rows import row_of_group
from .live import refuse_exchanged
from .over_arrays import OverArrays
from .plain_state import as_arrays
from .stepped import Params

__all__ = ["DiLoCo"]

_STEPS = "local_steps"  # in checkpoints, with each parameter: what they are made of


class DiLoCo(OverArrays):
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
        parameters: those of the reducer's plan, in its order, or by their names: tensors, (name, tensor)
            pairs or param groups; float32, in CPU memory or on one GPU, with the same values on all ranks.
        reducer: of the exchange, over a transport of the same memory; its own gradients are what
            travels, the parameters' stay untouched. With on_nonfinite="skip" an exchange that is left
            out changes nothing where left_out is "nan", and where it is "zero" takes all ranks back to
            where they last agreed, moved by the momentum. On a GPU "error" wants left_out="nan".
        every: local steps from one exchange to the next.
        lr: of param groups that have none of their own; schedulers may change it.
        lr, momentum, nesterov, preset, max_grad_norm, threads: see gradwire.DiLoCo.

    Raises:
        InvalidArgument: for parameters that do not fit the plan or cannot be viewed in place, and those
            of which register() or attach() exchanges gradients. That DDP's own does is not seen.
        DeviceError: for parameters on a GPU that cannot be used, and why.
    """

    def __init__(
        self,
        parameters: Params,
        reducer: Reducer,
        every: int,
        lr: Optional[float] = None,
        **options: Any,
    ) -> None:
        if every < 1:
            raise InvalidArgument(f"every: is {every}, must be at least 1")
        self._begin(parameters, reducer, {"lr": None if lr is None else checked_rate(lr)})
        values = self._values
        check_parameters(values, reducer)
        refuse_exchanged(values, "which local steps do without: expected no register() or attach()")
        if reducer.on_nonfinite == "error":
            check_left_out(reducer)
        self._reducer = reducer
        self._every = every
        self._steps = 0
        self._parameters = InCOrder(values, reducer)
        gradients = [reducer.gradient(i) for i in range(len(values))]
        gpu = gpu_of(values[0])
        if gpu is not None:
            options["stream"] = current_stream(gpu)
        self._arrays = _Arrays(
            self._parameters.arrays, gradients, lr, groups=self._groups(), **options
        )
        for group in (self.defaults, *self.param_groups):
            group["lr"] = self._arrays.lr if group["lr"] is None else group["lr"]
        check_optimizer_groups([row_of_group(group) for group in self.param_groups])
        self._order = StreamOrder(self._arrays, reducer, gpu)

    @property
    def steps(self) -> int:
        """Local steps so far."""
        return self._steps

    @torch.no_grad()
    def step(self, closure: None = None) -> bool:  # type: ignore[override]
        """Counts a local step; with every `every`th all ranks exchange and step together.

        Returns:
            Whether they did: then all have the same parameters. On a GPU: whether it is enqueued.

        Raises:
            NonFiniteGradient: a parameter of some rank has become NaN or infinite: raised on all
                ranks, nothing was changed. On a GPU it is raised some exchanges later, by this or by
                synchronize(), and until synchronize() no exchange changes anything.
            InvalidArgument: a closure is given, which is the other optimizer's; a setting of a group is out
                of range.
            TransportError: a rank was lost.
        """
        if closure is not None:
            raise InvalidArgument("closure: is given, must be None: the optimizer of local steps takes it")
        self._set_groups()
        self._steps += 1
        if self._steps % self._every != 0:
            return False
        self._parameters.read()
        self._arrays.prepare(stream=self._order.current)
        with self._order.exchanging() as stream:
            for i in range(len(self._values)):
                self._reducer.grad_ready(i)
            self._reducer.wait()
            # As the reducer, of means that are not finite: of what was left out they may be NaN.
            self._arrays.step(1.0, on_nonfinite=self._reducer.on_nonfinite, stream=stream)
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

    def rewind(self) -> None:
        """Takes parameters back to where all ranks last agreed, and the count of local steps with them.

        For a job that goes on with another number of ranks: every new rank loads the state of any old
        one, rewinds, and takes over residuals with Reducer.load(). What old ranks had moved by since
        their last exchange, of which some would be left out or count twice, is given up. On a GPU it
        waits.
        """
        tensors = self._arrays.state_dict()["tensors"]
        with torch.no_grad():
            for i, parameter in enumerate(self._values):
                parameter.copy_(torch.from_numpy(tensors[str(i)]["anchor"]).view(parameter.shape))
        self._steps -= self._steps % self._every

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes over what state_dict() returned, on a CPU or a GPU: of this rank, or, with another number
        of ranks, of any (see rewind()).

        Raises:
            InvalidArgument: the state is of something else; nothing was changed.
        """
        if "outer" in state_dict:  # as it was saved before there were groups
            if "steps" not in state_dict:
                raise InvalidArgument("state['steps']: is missing, must be there")
            lr = checked_rate(state_dict["outer"].get("lr"))
            self._take_over(as_arrays({**state_dict["outer"], "lr": 1.0}))
            self._steps, self.lr = int(state_dict["steps"]), float(lr)
        else:
            super().load_state_dict(state_dict)

    def _own_state(self) -> Dict[str, torch.Tensor]:
        return {_STEPS: torch.tensor(self._steps, dtype=torch.int64)}

    def _load_arrays(self, saved: List[Tuple[int, Dict[str, Any]]], spec: str) -> None:
        for place, state in saved:
            if _STEPS not in state:
                raise InvalidArgument(f"state[{place}]['{_STEPS}']: is missing, must be there")
        super()._load_arrays(
            [(place, {k: v for k, v in state.items() if k != _STEPS}) for place, state in saved], spec
        )
        self._steps = int(saved[0][1][_STEPS])
