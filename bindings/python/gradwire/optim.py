"""Optimizers for large batches, stepping in place on arrays."""

from typing import Any, Optional, Sequence, Union

from .errors import InvalidArgument
from .optimizer import Optimizer
from .param_groups import ParamGroup

__all__ = ["LAMB", "LARC", "LARS", "SGD", "AdamW", "Optimizer", "ParamGroup", "make_optimizer"]


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
