"""gradwire's optimizers as torch.optim.Optimizer: param groups, schedulers, GradScaler, state_dict.

    optimizer = gradwire.torch.LAMB(model.parameters(), lr=1e-3, weight_decay=0.01)

One call steps all parameters. A gradient with NaN or infinity raises NonFiniteGradient and changes
nothing, not a parameter and not a state; under a GradScaler the step is skipped instead.
"""

from typing import Any, Dict, Optional, Tuple, Type

from .._core import optimizer_settings
from ..errors import InvalidArgument
from ..optim import _spec
from .stepped import Optimizer, Params

__all__ = ["LAMB", "LARC", "LARS", "SGD", "AdamW", "Optimizer", "make_optimizer"]


class SGD(Optimizer):
    """Stochastic gradient descent, the formula of torch.optim.SGD without dampening.

    d = g + weight_decay * w, v = momentum * v + d, w -= lr * v, with `nesterov`
    w -= lr * (d + momentum * v).

    Args:
        params: see Optimizer.
        lr, momentum, weight_decay: of param groups that have none of their own.
        nesterov: as above.
        max_grad_norm: what the norm of all gradients together is brought down to; 0: nothing.
        master: what is kept of the exact value of a bfloat16 parameter: "remainder", its other 16
            bits, or "float32".
        state: "float32", or "8bit": moments and momenta of parameters with 4096 elements and more
            in a byte each, but in param groups with "full_state".
        threads: see Optimizer.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        max_grad_norm: float = 0.0,
        master: str = "remainder",
        state: str = "float32",
        threads: Optional[int] = None,
    ) -> None:
        spec = _spec(
            "sgd", nesterov=nesterov, max_grad_norm=max_grad_norm, master=master, state=state
        )
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, spec, defaults, threads)


class AdamW(Optimizer):
    """Adam with decoupled weight decay, the formula of torch.optim.AdamW.

    Args:
        params, max_grad_norm, master, state, threads: see SGD.
        lr, betas, eps, weight_decay: of param groups that have none of their own.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        max_grad_norm: float = 0.0,
        master: str = "remainder",
        state: str = "float32",
        threads: Optional[int] = None,
    ) -> None:
        spec = _spec("adamw", max_grad_norm=max_grad_norm, master=master, state=state)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, spec, defaults, threads)


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You et al., arXiv 1708.03888); see gradwire.LARS.

    Args:
        params, max_grad_norm, master, state, threads: see SGD.
        lr, momentum, weight_decay, adapt: of param groups that have none of their own; `adapt`
            False leaves layer-wise adaptation out, as for biases and normalisation layers.
        nesterov, trust_coefficient, eps, preset: as gradwire.LARS has them (eps: its epsilon).
    """

    _name = "lars"

    def __init__(
        self,
        params: Params,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        trust_coefficient: Optional[float] = None,
        eps: Optional[float] = None,
        preset: Optional[str] = None,
        adapt: bool = True,
        max_grad_norm: float = 0.0,
        master: str = "remainder",
        state: str = "float32",
        threads: Optional[int] = None,
    ) -> None:
        spec = _spec(
            self._name,
            preset=preset,
            nesterov=nesterov,
            trust_coefficient=trust_coefficient,
            epsilon=eps,
            max_grad_norm=max_grad_norm,
            master=master,
            state=state,
        )
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "adapt": adapt}
        super().__init__(params, spec, defaults, threads)


class LARC(LARS):
    """LARS that never takes a parameter's rate above its group's lr, as apex has it.

    It has no presets; trust_coefficient is 0.02 and eps 1e-8 unless given. Arguments: see LARS.
    """

    _name = "larc"


class LAMB(Optimizer):
    """LAMB (You et al., arXiv 1904.00962, v5); see gradwire.LAMB, of which `preset` is.

    Args:
        params, master, state, threads: see SGD.
        lr, betas, eps, weight_decay, adapt: of param groups that have none of their own; see LARS.
        preset, max_grad_norm, max_ratio: as gradwire.LAMB has them.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        preset: Optional[str] = None,
        adapt: bool = True,
        max_grad_norm: Optional[float] = None,
        max_ratio: Optional[float] = None,
        master: str = "remainder",
        state: str = "float32",
        threads: Optional[int] = None,
    ) -> None:
        spec = _spec(
            "lamb",
            preset=preset,
            max_grad_norm=max_grad_norm,
            max_ratio=max_ratio,
            master=master,
            state=state,
        )
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "adapt": adapt,
        }
        super().__init__(params, spec, defaults, threads)


_KINDS: Dict[str, Type[Optimizer]] = {
    "sgd": SGD, "adamw": AdamW, "lars": LARS, "larc": LARC, "lamb": LAMB
}  # fmt: skip


def make_optimizer(
    spec: str, params: Params, lr: float = 0.1, *, threads: Optional[int] = None
) -> Optimizer:
    """The optimizer that a spec names, as gradwire.large_batch() returns one.

        large = gradwire.large_batch("sgd:weight_decay=5e-4", 0.1, 256, 4096, examples=n, epochs=90)
        optimizer = gradwire.torch.make_optimizer(large.optimizer, model.parameters(), lr=1.0)
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, large.schedule.at)  # factors on lr

    Args:
        spec: name and settings, such as "lamb:weight_decay=0.01" or "lars:preset=timm" (see
            gradwire.optimizers()); of SGD, AdamW, LARS, LARC and LAMB.
        params, threads: see Optimizer. Where biases and norms are a group of their own,
            {"params": ..., "weight_decay": 0.0, "adapt": False} keeps decay and adaptation from them.
        lr: of param groups that have none of their own.

    Returns:
        One of the classes of this module; the spec's momentum, betas, eps and weight decay are those
        of param groups that have none of their own.

    Raises:
        InvalidArgument: for a bad spec, another optimizer's, and parameters as of Optimizer.
    """
    settings: Dict[str, Any] = dict(optimizer_settings(spec))
    name = spec.split(":")[0]
    kind = _KINDS.get(name)
    if kind is None:
        raise InvalidArgument(
            f"spec: is {spec!r}, must be of {', '.join(_KINDS)}; the others exchange what they step "
            "with and have classes of their own (OneBitAdam, OneBitLAMB, DiLoCo)"
        )
    defaults: Dict[str, Any] = {"lr": lr, "weight_decay": float(settings.pop("weight_decay"))}
    if "momentum" in settings:
        defaults["momentum"] = float(settings.pop("momentum"))
    if "beta1" in settings:
        defaults["betas"] = float(settings.pop("beta1")), float(settings.pop("beta2"))
        defaults["eps"] = float(settings.pop("epsilon"))
    if issubclass(kind, (LARS, LAMB)):
        defaults["adapt"] = True
    shared = f"{name}:" + ",".join(f"{key}={value}" for key, value in settings.items())
    optimizer = kind.__new__(kind)
    Optimizer.__init__(optimizer, params, shared, defaults, threads)
    return optimizer
