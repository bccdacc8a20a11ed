"""What gradwire's optimizers for torch share: a core of C++ behind a torch.optim.Optimizer."""

from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Type, TypeVar, Union

import torch

from .._core import Optimizer as _Core
from .._core import canonical_optimizer, check_optimizer_groups
from ..errors import InvalidArgument
from .devices import current_stream, gpu_of, number_at, tensor_over
from .group_rows import refuse_misspelt, refuse_unknown_keywords, row_of_group
from .kept_state import KeptState, others_keys
from .mesh_ranks import MeshRanks
from .saved_state import DTYPES, check_dtype, check_order, masters_of_nothing, with_full_state
from .shards import EMPTY, loaded_states, local_gradient, local_of, place_of, shared, unsharded_state
from .stepped_tensors import check_parameter, gradient_like, is_zero, momentum_free

__all__ = ["Optimizer", "Params"]

Params = Union[Iterable[torch.Tensor], Iterable[Dict[str, Any]], Iterable[Tuple[str, torch.Tensor]]]

# What torch.optim calls the state that gradwire calls so: checkpoints of torch's own load.
_TORCH_NAMES = {"momentum": "momentum_buffer", "momentum.scale": "momentum_buffer.scale"}


_Kind = TypeVar("_Kind", bound="Optimizer")


class Optimizer(torch.optim.Optimizer):
    """What SGD, AdamW, LARS, LARC and LAMB share.

    Args:
        params: as torch.optim's: tensors, (name, tensor) pairs or param groups; float32, float16 or
            bfloat16, of dense layout (channels_last, for example, is fine), all in memory of the CPU
            or of one GPU. DTensors too, as of fully_shard: each rank steps its part, norms are those of
            whole parameters, and step() is collective among the ranks of their meshes.
        spec: of the optimizer, with what all groups share.
        defaults: what a param group may have of its own, and change between steps: "lr",
            "weight_decay", "adapt", and "momentum", or "betas" and "eps".
        threads: of the loops; torch.get_num_threads() by default. Results do not depend on it.

    On a GPU state is there, steps are enqueued on torch's current stream and nothing waits but the
    first one; gradients that are not finite are found there, see check().

    Raises:
        InvalidArgument: for a bad spec or setting, and for parameters as above.
        DeviceError: for parameters on a GPU that cannot be used, and why.
    """

    # GradScaler hands over its scale and what it found instead of passing over gradients itself.
    _step_supports_amp_scaling = True

    # Made from the groups and the state at the first step, and again where these have changed.
    _core: Optional[_Core]
    _rows: List[Tuple[Any, ...]]  # the groups as the core has them
    _layouts: List[Tuple[Any, ...]]  # the parameters as the core has them
    _names: List[str]  # of the parameters, in the core
    _places: Any  # where the core takes parameters and gradients to be
    _summed_by: Any  # the transport over which the core adds up
    _kept: KeptState  # what the state holds that this has put there

    def __new__(cls: Type[_Kind], *args: Any, **keywords: Any) -> _Kind:
        refuse_unknown_keywords(cls, keywords)
        return super().__new__(cls)

    def __init__(
        self, params: Params, spec: str, defaults: Dict[str, Any], threads: Optional[int] = None
    ) -> None:
        self._spec = canonical_optimizer(spec)
        self._threads = torch.get_num_threads() if threads is None else threads
        self._ranks = MeshRanks()
        self._kept = KeptState()
        check_optimizer_groups([row_of_group(defaults)])  # though every group may have its own
        self._forget()
        super().__init__(params, defaults)

    @property
    def spec(self) -> str:
        """The canonical text of what all groups share."""
        return self._spec

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As torch.optim's; state of the parameters there were stays. On a GPU it waits, and raises as
        check() does.

        Raises:
            InvalidArgument: for a parameter or a setting that cannot be stepped; nothing is added.
        """
        if isinstance(param_group, dict):  # torch has the message for the other case
            refuse_misspelt(param_group, self.defaults)
        self._take_counts()
        super().add_param_group(param_group)
        try:
            group = self.param_groups[-1]
            names = group.get("param_names", [None] * len(group["params"]))
            for name, parameter in zip(names, group["params"]):
                check_parameter(parameter, self._all(), name)
            check_optimizer_groups([row_of_group(group) for group in self.param_groups])
        except InvalidArgument:
            del self.param_groups[-1]
            raise
        self._forget()

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Updates all parameters that have a gradient.

        Args:
            closure: computes the loss again and returns it, as torch.optim's.

        Returns:
            What the closure returned, else None.

        Raises:
            NonFiniteGradient: a gradient holds NaN or infinity, and no GradScaler found it before. On
                a GPU check() raises it, and no step changes anything until then.
            InvalidArgument: a setting of a group is out of range, a gradient is sparse or elsewhere
                than its parameter. Nothing was changed in either case.
            TransportError: of DTensors, where another rank could not step; nothing was changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._ranks.together():
            self._step()
        return loss

    def _step(self) -> None:
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        rows = [row_of_group(group) for group in self.param_groups]
        if self._only_makes_state(rows):
            return
        if self._gpu is not None:
            self._step_on_gpu(self._gpu, rows, scale, found)
            return
        left_out = found is not None and found.item() > 0
        if left_out and all(place_of(p) is None for p in self._all()):
            return
        core, kept = self._ready(rows)
        if found is not None and self._ranks.any(left_out, "steps left out by a GradScaler"):
            return
        factor = 1.0 if scale is None else 1.0 / float(scale.item())
        if factor > 1.0:  # a scale below 1 could make finite gradients infinite as they are read
            torch._foreach_mul_([g for g in kept if g is not None], factor)
            factor = 1.0
        if rows != self._rows:
            core.set_groups(rows)
            self._rows = rows
        core.step(1.0, factor)

    def _only_makes_state(self, rows: List[Tuple[Any, ...]]) -> bool:
        """Whether this is the step of rate 0, with gradients of zeros, by which get_optimizer_state_dict() of
        torch.distributed.checkpoint has state made. Counted, it would change later bias corrections."""
        if self.state or any(float(group["lr"]) != 0.0 for group in self.param_groups):
            return False
        _, gradients = self._ready(rows)
        moves = not is_zero(gradients)
        return not self._ranks.any(moves, "first gradients")

    def check(self) -> None:
        """On a GPU waits, and raises what has kept steps from being made; steps are made again then.

        Call it once in a while: a gradient that is not finite is found on the GPU, where no step
        changes anything from then on. Under a GradScaler such steps are left out one by one, and
        nothing is raised. On the CPU step() raises for itself. state_dict() calls it.

        Raises:
            NonFiniteGradient: naming the first parameter whose gradient held NaN or infinity.
            InvalidArgument: the scale of a GradScaler is not finite and above 0.
        """
        gpu = self._core_gpu
        if self._core is not None and gpu is not None:
            self._core.check(current_stream(gpu))

    def state_dict(self) -> Dict[str, Any]:
        """As torch.optim's: tensors are the state itself. On a GPU it waits, to count steps, and
        raises as check() does. Tensors that others have put there are checked first.

        Raises:
            InvalidArgument: such a tensor does not fit its parameter.
        """
        self._take_replaced()
        self._take_counts()
        return unsharded_state(super().state_dict(), self._all())

    def values_changed(self) -> None:
        """Takes parameters of 16 bits as they are for their masters, exactly.

        Steps go on from what others write to parameters by themselves; but of bfloat16 with
        `master="remainder"` the other 16 bits stay what they were until this is called.
        """
        if self._core is not None:
            core, _ = self._ready(self._rows)
            core.values_changed(self._stream())

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes over what state_dict() returned, of this class or of torch.optim's SGD or AdamW.

        State keeps its own dtype, whatever the parameter's: float32, or codes of 8 bits where this
        optimizer keeps them. State of the other form becomes this one: codes exactly what they stand
        for, floats the nearest codes. A group of which the checkpoint does not say whether it is
        "full_state" stays what it is.

        Raises:
            InvalidArgument: state is missing, of another shape or dtype, or none that an optimizer
                writes; nothing was changed.
        """
        states: Dict[torch.Tensor, Dict[str, Any]] = {}

        # Behind others' hooks.
        def take(_: torch.optim.Optimizer, final: Dict[str, Any]) -> Dict[str, Any]:
            groups = with_full_state(final["param_groups"], self.param_groups)
            states.update(loaded_states(self._spec, final["state"], groups, self._all()))
            return {**final, "param_groups": groups}

        handle = self.register_load_state_dict_pre_hook(take)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        self._put(states)
        self._forget()

    def _put(self, states: Dict[torch.Tensor, Dict[str, Any]]) -> None:
        self.state.clear()
        self.state.update(states)
        self._kept = KeptState(states)

    def _take_replaced(self) -> None:
        """Goes on from tensors that others have put in the place of the state's, or taken away."""
        replaced = self._kept.replaced(self.state, self._all())
        if not replaced:
            return
        self._take_counts()  # but those that others have written
        states = self._kept.taken(self._spec, self.state, self.param_groups, replaced)
        self._put({p: s for p, s in {**self.state, **states}.items() if s})
        self._forget()

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("_ranks", MeshRanks())  # torch calls this to load a state, too
        self._kept = KeptState(self.state)
        self._forget()

    def __getstate__(self) -> Dict[str, Any]:
        # Not the core: it is made again from the state.
        self._take_counts()
        return {**super().__getstate__(), "_spec": self._spec, "_threads": self._threads}

    def _forget(self) -> None:
        """The core is to be made again, from the groups and the state there are."""
        self._core = None
        self._rows = []
        self._layouts = []
        self._names = []
        self._places = None
        self._summed_by = None

    @property
    def _gpu(self) -> Optional[int]:
        """Where all parameters are; None: the CPU."""
        parameters = self._all()
        return gpu_of(local_of("params", parameters[0])) if parameters else None

    @property
    def _core_gpu(self) -> Optional[int]:
        """Where parameters were when the core was made; they may have moved since."""
        place = "cpu" if self._core is None else self._core.device
        return None if place == "cpu" else int(place.rpartition(":")[2])

    def _stream(self) -> Optional[int]:
        return None if self._gpu is None else current_stream(self._gpu)

    def _step_on_gpu(
        self,
        gpu: int,
        rows: List[Tuple[Any, ...]],
        scale: Optional[torch.Tensor],
        found: Optional[torch.Tensor],
    ) -> None:
        """What is temporary here is reused by torch behind the step, on the same stream."""
        core, kept = self._ready(rows)
        if rows != self._rows:
            core.set_groups(rows, current_stream(gpu))
            self._rows = rows
        like = local_of("params", self._all()[0])
        numbers = [number_at(number, like) for number in (scale, found)]
        addresses = [None if number is None else number.data_ptr() for number in numbers]
        skip = found is not None and self._ranks.several  # also what another rank leaves out
        core.step(1.0, 1.0, False, skip, current_stream(gpu), *addresses)
        del kept, numbers

    def _take_counts(self) -> None:
        """On a GPU steps are counted there: makes the state's the same. Waits, and raises as check()
        does: whoever asks may make the core anew, which knows of no fault."""
        if self._core is None or self._core_gpu is None:
            return
        self.check()
        scalars, _ = self._core.state_views()
        for parameter, name in zip(self._all(), self._names):
            self._kept.count(parameter, scalars[name])

    def _all(self) -> List[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _ready(
        self, rows: List[Tuple[Any, ...]]
    ) -> Tuple[_Core, List[Optional[torch.Tensor]]]:
        """The core, told where everything is, and gradients that must live until the step ends."""
        self._take_replaced()
        wholes = self._all()
        parameters = [local_of("params", p) for p in wholes]
        pairs = list(zip(parameters, wholes))
        layouts = [(p.dtype, p.device, p.shape, p.stride(), place_of(whole)) for p, whole in pairs]
        given = [None if w.grad is None else local_gradient(w, w.grad) for w in wholes]
        gradients = [None if g is None else gradient_like(p, g) for p, g in zip(parameters, given)]
        core = self._core
        without = momentum_free(self._spec, self._rows) and not momentum_free(self._spec, rows)
        if core is None or layouts != self._layouts or without:
            self._take_counts()
            core = self._build(wholes, rows)
            self._core, self._rows, self._layouts = core, rows, layouts
            self._places = self._summed_by = None
        transport = self._ranks.transport(parameters[0].device) if self._ranks.several else None
        if transport is not None and transport is not self._summed_by:
            core.set_slices(transport)
            self._summed_by = transport
        places = (
            [p.data_ptr() for p in parameters],
            [
                (0, "float32") if g is None else (g.data_ptr() or EMPTY, DTYPES[g.dtype])
                for g in gradients
            ],
        )
        if places != self._places:
            self._places = None
            core.bind(*places, self._stream())
            self._places = places
        return core, gradients

    def _build(
        self, parameters: List[torch.Tensor], rows: List[Tuple[Any, ...]]
    ) -> _Core:
        """A core with the state there is; that state becomes views of the core's."""
        for parameter in parameters:
            check_parameter(parameter, parameters)
        parts = [local_of("params", p) for p in parameters]
        gpu = gpu_of(parts[0])
        replicas = self._ranks.take(parameters)
        names = [str(i) for i in range(len(parameters))]
        named = [n for group in self.param_groups for n in group.get("param_names", ())]
        if len(named) == len(parameters) and len(set(named)) == len(named):
            names = named
        core = _Core.at(
            self._spec,
            [(p.data_ptr(), DTYPES[p.dtype]) for p in parts],
            [p.numel() for p in parts],
            names,
            [i for i, group in enumerate(self.param_groups) for _ in group["params"]],
            rows,
            self._threads,
            -1 if gpu is None else gpu,
            None if gpu is None else current_stream(gpu),
            replicas,
        )
        self._names = names
        scalars, tensors = core.state_views()
        fresh: Dict[torch.Tensor, Dict[str, torch.Tensor]] = {}
        for parameter, part, name in zip(parameters, parts, names):
            views = {
                k: torch.from_numpy(v) if gpu is None else torch.tensor(v, dtype=torch.int64)
                for k, v in scalars[name].items()
            }
            for key, array in tensors.get(name, {}).items():
                view = torch.from_numpy(array) if gpu is None else tensor_over(array)
                if not key.endswith(".scale"):
                    # In the parameter's order of elements, which is the core's.
                    view = torch.as_strided(view, part.shape, part.stride())
                views[_TORCH_NAMES.get(key, key)] = view
            views.update(masters_of_nothing(self._spec, part))
            for key, value in self.state.get(parameter, {}).items():
                if key not in views:
                    continue
                value = local_of(f"state['{key}']", value)
                if torch.uint8 in (value.dtype, views[key].dtype):
                    check_dtype(f"state['{key}']", value, views[key].dtype)
                    check_order(f"state['{key}']", value, part)
                views[key].copy_(value)
            fresh[parameter] = {**others_keys(self.state.get(parameter, {})), **shared(parameter, views)}
        if gpu is not None:
            core.set_counts({n: {"step": int(fresh[p]["step"])} for p, n in zip(parameters, names)})
        self._put(fresh)
        return core
