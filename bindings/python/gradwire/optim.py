"""Optimizers for large batches, stepping in place on NumPy arrays."""

from typing import Any, Dict, Optional, Sequence, Union

from . import _core
from ._core import GroupPayloads, Transport
from .errors import InvalidArgument
from .param_groups import ParamGroup, group_of_dict, places_of, row_of

__all__ = ["LAMB", "LARC", "LARS", "SGD", "AdamW", "Optimizer", "ParamGroup", "make_optimizer"]


class Optimizer:
    """An optimizer by its spec, such as "lamb:weight_decay=0.01" (see gradwire.optimizers()).

    Args:
        spec: name and settings.
        parameters: arrays in C order, changed in place by step(): float32, or float16 or bfloat16
            (ml_dtypes, or uint16 holding its bits), of which the optimizer keeps exact masters.
        gradients: one array per parameter, of the same size and of any of these dtypes; read by
            every step(), so write the next gradient into the same memory.
        lr: learning rate of steps that are given none.
        groups: settings of some parameters, as ParamGroup or dicts of its fields.
        names: of the parameters, for messages and checkpoints; "0", "1", ... by default.
        threads: of the loops; results have the same bits for any number.
        slices: a transport each of whose ranks holds slices of the same parameters, in the same
            order; a slice may be empty. Norms are then those of whole parameters, and a gradient
            that is not finite on one rank leaves the step out on all. step() is collective: the
            ranks call it in one order with all else on the transport. Not for onebit-adam and
            onebit-lamb.

    Raises:
        InvalidArgument: for a bad spec, arrays that cannot be viewed in place, sizes that differ.
    """

    def __init__(
        self,
        spec: str,
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        lr: float,
        *,
        groups: Sequence[Union[ParamGroup, Dict[str, Any]]] = (),
        names: Optional[Sequence[str]] = None,
        threads: int = 1,
        slices: Optional[Transport] = None,
    ) -> None:
        rows = [g if isinstance(g, ParamGroup) else group_of_dict(g) for g in groups]
        self.lr = lr
        self._core = _core.Optimizer(
            spec,
            list(parameters),
            list(gradients),
            [str(i) for i in range(len(parameters))] if names is None else list(names),
            places_of(rows, len(parameters)),
            [row_of(ParamGroup(()))] + [row_of(g) for g in rows],
            threads,
        )
        if slices is not None:
            self._core.set_slices(slices)

    @property
    def spec(self) -> str:
        """The canonical spec text."""
        return self._core.spec

    @property
    def state_bytes(self) -> int:
        """Memory of all state and masters."""
        return self._core.state_bytes

    @property
    def exchanges(self) -> str:
        """What the next step exchanges: "gradients", or what prepare() writes in their place,
        "momentum" (1-bit Adam and 1-bit LAMB, once v stays) or "moves" (DiLoCo)."""
        return self._core.exchanges

    def prepare(self, gradient_scale: float = 1.0) -> None:
        """Writes to the gradients what is to be exchanged, unless it is these. Once a step.

        Args:
            gradient_scale: what gradients are multiplied by as they are read; step() is to be given
                the same.

        Raises:
            InvalidArgument: gradient_scale is not in (0, 1], or of moves not 1.
        """
        self._core.prepare(gradient_scale)

    def step(
        self,
        lr: Optional[float] = None,
        *,
        gradient_scale: float = 1.0,
        known_finite: bool = False,
        payloads: Sequence[GroupPayloads] = (),
    ) -> None:
        """Updates all parameters in place from their gradients.

        Args:
            lr: instead of self.lr.
            payloads: groups from Reducer.take_payloads(), of plans whose parameters are this
                optimizer's: the gradients of their parameters are read from there, a piece at a
                time, and never lie in memory as a whole. The others' are in memory as ever.
            gradient_scale: what gradients are multiplied by as they are read, in (0, 1]: 1 over a
                loss scale, or over a number of gradients added up.
            known_finite: no gradient holds NaN or infinity, as after Reducer.wait(); saves SGD and
                AdamW a pass. Where it is not so, state is lost to NaN.

        Raises:
            NonFiniteGradient: a gradient held NaN or infinity; nothing was changed, state included.
            InvalidArgument: the learning rate is negative or not finite, gradient_scale is not in
                (0, 1], or payloads do not decode or are of other parameters; nothing was changed.
        """
        rate = self.lr if lr is None else lr
        if payloads:
            self._core.step_from(list(payloads), rate, gradient_scale, known_finite)
        else:
            self._core.step(rate, gradient_scale, known_finite)

    def step_on(
        self,
        gradients: Sequence[Any],
        lr: Optional[float] = None,
        *,
        gradient_scale: float = 1.0,
        known_finite: bool = False,
    ) -> None:
        """Steps on other gradients than those in memory, this once.

        Args:
            gradients: an array for each parameter, of its size and of any dtype that gradients may
                have; only read, so that they may be immutable.
            lr, gradient_scale, known_finite: as of step().

        Raises:
            NonFiniteGradient, InvalidArgument: as step(), or an array does not fit; nothing was
                changed.
        """
        rate = self.lr if lr is None else lr
        self._core.step_on(list(gradients), rate, gradient_scale, known_finite)

    def values_changed(self) -> None:
        """Takes values of 16 bits as they are for their masters.

        Needed where others wrote parameters (a checkpoint, a broadcast) after the first step.
        """
        self._core.values_changed()

    def state_dict(self) -> Dict[str, Any]:
        """Copies of everything a checkpoint needs besides the parameters."""
        scalars, tensors = self._core.state()
        return {"spec": self.spec, "lr": self.lr, "scalars": scalars, "tensors": tensors}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what state_dict() returned, also by an optimizer that kept its state in the
        other of float32 and 8 bits: it takes the form that this one keeps. Codes become exactly what
        they stand for, and floats the nearest codes. What prepare() wrote before is void.

        Raises:
            InvalidArgument: the state is of another spec but for `state` and `min_8bit_size`, of
                other parameters, or none that an optimizer writes, and nothing was changed.
        """
        for key in ("spec", "lr", "scalars", "tensors"):
            if key not in state:
                raise InvalidArgument(f"state['{key}']: is missing, must be there")
        if not isinstance(state["spec"], str) or _formula(state["spec"]) != _formula(self.spec):
            raise InvalidArgument(f"state['spec']: is {state['spec']!r}, must be {self.spec!r}")
        self._core.load_state(state["scalars"], state["tensors"])
        self.lr = state["lr"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.spec}', lr={self.lr})"


class SGD(Optimizer):
    """Stochastic gradient descent with momentum.

    d = g + weight_decay * w, v = momentum * v + d, w -= lr * v, with `nesterov`
    w -= lr * (d + momentum * v). `max_grad_norm` is what the norm of all gradients together is
    brought down to, 0: nothing. `master` says what is kept of the exact value of a bfloat16
    parameter: "remainder", its other 16 bits, or "float32". `state` "8bit" keeps moments and
    momenta of parameters with 4096 elements and more in a byte each. Other arguments: see
    Optimizer.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        lr: float,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        master: str = "remainder",
        state: str = "float32",
        **options: Any,
    ) -> None:
        spec = _spec(
            "sgd",
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm,
            master=master,
            state=state,
        )
        super().__init__(spec, parameters, gradients, lr, **options)


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101).

    w -= lr * (m / (sqrt(v) + epsilon) + weight_decay * w) with bias-corrected moments m and v;
    `max_grad_norm`, `master` and `state` as in SGD. Other arguments: see Optimizer.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        lr: float,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        max_grad_norm: float = 0.0,
        master: str = "remainder",
        state: str = "float32",
        **options: Any,
    ) -> None:
        spec = _spec(
            "adamw",
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm,
            master=master,
            state=state,
        )
        super().__init__(spec, parameters, gradients, lr, **options)


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You et al., arXiv 1708.03888).

    Each parameter's ratio is trust_coefficient * |w| / (|g| + weight_decay * |w| + epsilon), 1 when
    a norm is 0; lr * ratio enters before the momentum. `preset` takes another implementation's form:
    "timm", "torch-optimizer", "optax" (gradwire.optimizers() lists them); None leaves a setting to
    the preset. `max_grad_norm` as in SGD. Other arguments: see Optimizer.
    """

    _name = "lars"

    def __init__(
        self,
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        lr: float,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        trust_coefficient: Optional[float] = None,
        epsilon: Optional[float] = None,
        preset: Optional[str] = None,
        max_grad_norm: float = 0.0,
        master: str = "remainder",
        state: str = "float32",
        **options: Any,
    ) -> None:
        spec = _spec(
            self._name,
            preset=preset,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
            epsilon=epsilon,
            max_grad_norm=max_grad_norm,
            master=master,
            state=state,
        )
        super().__init__(spec, parameters, gradients, lr, **options)


class LARC(LARS):
    """LARS that never takes a parameter's rate above `lr`, as apex has it.

    d = min(trust_coefficient * |w| / (|g| + weight_decay * |w| + epsilon) / lr, 1)
    * (g + weight_decay * w), then SGD with momentum on d. It has no presets; trust_coefficient is
    0.02 and epsilon 1e-8 unless given. Arguments: see LARS.
    """

    _name = "larc"


class LAMB(Optimizer):
    """LAMB, the paper's form (You et al., arXiv 1904.00962, v5): bias-corrected moments.

    r = m / (sqrt(v) + epsilon) + weight_decay * w, w -= lr * |w| / |r| * r, with ratio 1 when a
    norm is 0. `preset` takes another implementation's form: "apex", "nvlamb", "timm", "lambc",
    "tf-addons", "optax", "paper-v1"; None leaves a setting to the preset. Other arguments: see
    Optimizer.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        lr: float,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.0,
        preset: Optional[str] = None,
        max_grad_norm: Optional[float] = None,
        max_ratio: Optional[float] = None,
        master: str = "remainder",
        state: str = "float32",
        **options: Any,
    ) -> None:
        spec = _spec(
            "lamb",
            preset=preset,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm,
            max_ratio=max_ratio,
            master=master,
            state=state,
        )
        super().__init__(spec, parameters, gradients, lr, **options)


def make_optimizer(
    spec: str, parameters: Sequence[Any], gradients: Sequence[Any], lr: float = 0.1, **options: Any
) -> Optimizer:
    """The optimizer a spec names, e.g. "lamb:weight_decay=0.01"; arguments as Optimizer's."""
    return Optimizer(spec, parameters, gradients, lr, **options)


def _formula(spec: str) -> str:
    """The spec without the form that state is kept in."""
    name, _, keys = spec.partition(":")
    kept = [k for k in keys.split(",") if k.split("=")[0] not in ("state", "min_8bit_size")]
    return f"{name}:{','.join(kept)}"


def _spec(name: str, **settings: Union[None, float, bool, str]) -> str:
    given = {key: value for key, value in settings.items() if value is not None}
    return f"{name}:" + ",".join(f"{key}={_text(key, value)}" for key, value in given.items())


def _text(key: str, value: Union[float, bool, str]) -> str:
    if key in ("preset", "master", "state"):
        return str(value)
    return _number(key, value)


def _number(key: str, value: Union[float, bool, str]) -> str:
    if isinstance(value, bool):
        return str(int(value))
    try:  # float() first: a NumPy scalar's repr is not a number
        return repr(float(value))
    except (TypeError, ValueError):
        raise InvalidArgument(f"{key}: is {value!r}, must be a number") from None
