"""Optimizers on arrays as torch.optim.Optimizer: param groups for schedulers, state in torch's form."""

from typing import Any, Dict, List, Optional, Tuple

import numpy as np
import torch

from .._core import check_optimizer_groups
from ..errors import InvalidArgument
from ..optim import Optimizer as Arrays
from ..param_groups import ParamGroup, row_of
from ..reducer import Reducer
from .exchanged import StreamOrder
from .group_rows import refuse_misspelt, row_of_group
from .plain_state import as_arrays, as_tensors
from .stepped import Params

__all__ = ["OverArrays"]

# What groups of some optimizer of gradwire's may have.
_SETTINGS = ("lr", "weight_decay", "adapt", "momentum", "betas", "eps", "full_state")


class OverArrays(torch.optim.Optimizer):
    """What OneBitAdam, OneBitLAMB and DiLoCo share. Their state is the arrays': state_dict() has it, and
    `state` has nothing of a parameter."""

    # GradScaler then leaves it to step(), which refuses: ranks would leave out other steps.
    _step_supports_amp_scaling = True

    _arrays: Arrays
    _order: StreamOrder
    _values: List[torch.Tensor]  # in the plan's order
    _places: Dict[int, int]  # in the plan, by id() of a parameter
    _rows: Optional[List[Tuple[Any, ...]]] = None  # groups as the arrays have them; None: not yet
    _whole = False  # no group can be added any more

    def _begin(self, params: Params, reducer: Reducer, defaults: Dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self._whole = True
        self._values = _in_order(self.param_groups, reducer.plan.parameters)
        self._places = {id(p): place for place, p in enumerate(self._values)}
        self._forget_state()

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Is refused behind the constructor: groups hold the plan's parameters.

        Raises:
            InvalidArgument: always, and in the constructor for settings that a group cannot have.
        """
        if self._whole:
            raise InvalidArgument(
                "add_param_group: the groups hold all parameters of the plan, expected them in the "
                "constructor"
            )
        if isinstance(param_group, dict):  # torch has the message for the other case
            known = [*self.defaults, "full_state"]
            for key in param_group:
                if key in _SETTINGS and key not in known:
                    raise InvalidArgument(
                        f"params: a group has '{key}', which is the same for all groups of "
                        f"{type(self).__name__}; a group may have {', '.join(known)}"
                    )
            refuse_misspelt(param_group, self.defaults)
        super().add_param_group(param_group)

    @property
    def lr(self) -> float:
        """Learning rate of the next step, of the first group; to set it sets that of all groups."""
        return float(self.param_groups[0]["lr"])

    @lr.setter
    def lr(self, lr: float) -> None:
        for group in self.param_groups:
            group["lr"] = lr

    def _groups(self) -> List[ParamGroup]:
        """As the arrays are told them when they are made."""
        return [
            ParamGroup(
                [self._places[id(p)] for p in group["params"]],
                full_state=bool(group.get("full_state", False)),
            )
            for group in self.param_groups
        ]

    def _set_groups(self) -> None:
        """Before a step: what schedulers have changed.

        Raises:
            InvalidArgument: a setting is out of range, a GradScaler steps, or somebody has written to
                `state`.
        """
        if getattr(self, "grad_scale", None) is not None or getattr(self, "found_inf", None) is not None:
            self.grad_scale = self.found_inf = None
            raise InvalidArgument(
                f"GradScaler.step(): steps {type(self).__name__}, whose ranks exchange in step() and must "
                "leave out the same steps; expected step(gradient_scale=) with a scale of all ranks"
            )
        if len(self.state) != len(self._values) or any(self.state.values()):
            self._forget_state()
            raise InvalidArgument(
                "state: was written to, must be taken over by load_state_dict(): the optimizer keeps it "
                "elsewhere"
            )
        rows = [row_of(ParamGroup(())), *(row_of_group(group) for group in self.param_groups)]
        if rows != self._rows:
            check_optimizer_groups(rows)
            self._arrays._core.set_groups(rows, self._order.current)
            self._rows = rows

    def state_dict(self) -> Dict[str, Any]:
        """As torch.optim's: "state" by parameter, in CPU memory, for weights_only loading, the same of a
        CPU and a GPU, and "param_groups"; a checkpoint needs parameters and the reducer's residuals
        besides. On a GPU it waits.

        Raises:
            NonFiniteGradient: on a GPU, where steps change nothing any more.
        """
        self._arrays.check(self._order.current)
        kept = as_tensors(self._arrays.state_dict())
        for place, parameter in enumerate(self._values):
            scalars, tensors = kept["scalars"][str(place)], kept["tensors"].get(str(place), {})
            own = {key: torch.tensor(value, dtype=torch.int64) for key, value in scalars.items()}
            own.update({key: _shaped(value, parameter) for key, value in tensors.items()})
            self.state[parameter] = {**own, **self._own_state()}
        try:
            return {**super().state_dict(), "spec": self._arrays.spec}
        finally:
            self._forget_state()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes over what state_dict() returned, on a CPU or a GPU.

        Raises:
            InvalidArgument: the state is of something else; nothing was changed.
        """
        final: Dict[str, Any] = {}

        # Behind others' hooks. torch would make floats of what is no float.
        def take(_: torch.optim.Optimizer, given: Dict[str, Any]) -> Dict[str, Any]:
            final.update(given)
            return {**given, "state": {}}

        handle = self.register_load_state_dict_pre_hook(take)
        before = self.param_groups
        try:
            super().load_state_dict(state_dict)
            names = [name for group in final["param_groups"] for name in group["params"]]
            order = [p for group in self.param_groups for p in group["params"]]
            saved = [
                (self._places[id(p)], final["state"].get(name, {})) for name, p in zip(names, order)
            ]
            check_optimizer_groups([row_of_group(group) for group in self.param_groups])
            self._load_arrays(saved, final.get("spec", self._arrays.spec))
        except BaseException:
            self.param_groups = before
            raise
        finally:
            handle.remove()
            self._forget_state()

    def _load_arrays(self, saved: List[Tuple[int, Dict[str, Any]]], spec: str) -> None:
        """State by place in the plan. Raises InvalidArgument, and has changed nothing then."""
        scalars: Dict[str, Dict[str, int]] = {}
        tensors: Dict[str, Dict[str, Any]] = {}
        counts = self._arrays.state_dict()["scalars"]
        for place, state in saved:
            name = str(place)
            scalars[name] = {k: int(v) for k, v in state.items() if k in counts[name]}
            tensors[name] = {
                key: np.ascontiguousarray(as_arrays(value)).reshape(-1)
                for key, value in state.items()
                if key not in counts[name]
            }
        self._take_over({"spec": spec, "lr": 1.0, "scalars": scalars, "tensors": tensors})

    def _take_over(self, arrays: Dict[str, Any]) -> None:
        """The state of the arrays. Raises InvalidArgument, and has changed nothing then."""
        self._arrays.load_state_dict(arrays)

    def _own_state(self) -> Dict[str, torch.Tensor]:
        """What is kept beside the arrays, with each parameter: checkpoints are made of these."""
        return {}

    def _forget_state(self) -> None:
        self.state.clear()
        # Not without parameters: of such an optimizer get_optimizer_state_dict() makes a step.
        self.state.update({parameter: {} for parameter in self._values})


def _shaped(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    return value.view(parameter.shape) if value.numel() == parameter.numel() else value


def _in_order(groups: List[Dict[str, Any]], names: List[str]) -> List[torch.Tensor]:
    """The plan's order: by name where all parameters have one of the plan's, else as they come."""
    named = {
        name: parameter
        for group in groups
        for name, parameter in zip(group.get("param_names", ()), group["params"])
    }
    values = [parameter for group in groups for parameter in group["params"]]
    if len(named) == len(values) and set(named) == set(names):
        return [named[name] for name in names]
    return values
