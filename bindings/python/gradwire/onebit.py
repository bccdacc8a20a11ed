"""1-bit Adam and 1-bit LAMB: what is exchanged becomes the momentum, which 1 bit an element is enough for."""

from typing import Any, Optional, Sequence

from .optim import Optimizer, _spec

__all__ = ["OneBitAdam", "OneBitLAMB"]


class OneBitAdam(Optimizer):
    """1-bit Adam (Tang et al., arXiv 2102.02888): AdamW for `freeze_step` steps, whose v then stays.

        if optimizer.exchanges == "momentum":
            ...                # from here on exchange with a compressor with error feedback
        optimizer.prepare()    # then writes this rank's momentum to the gradients
        ...                    # make them the mean of all ranks
        optimizer.step()       # the parameters of all ranks are the same

    Elements that have seen no gradient when v freezes stand still but for weight decay. Under a loss
    scale prepare() and step() are both given `gradient_scale`, 1 over it.

    Args:
        parameters, gradients, lr: see Optimizer; prepare() writes to the gradients.
        freeze_step: steps of AdamW, past the warm-up of the learning rate.
        beta1, beta2, epsilon, weight_decay, max_grad_norm, master, state: as in AdamW; behind the
            freeze max_grad_norm is of this rank's own gradients.
        preset: "paper" or "deepspeed", which correct no bias; None leaves a setting to the preset.
        options: names, groups and threads, see Optimizer.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        lr: float,
        *,
        freeze_step: int,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: Optional[float] = None,
        preset: Optional[str] = None,
        max_grad_norm: float = 0.0,
        master: str = "remainder",
        state: str = "float32",
        **options: Any,
    ) -> None:
        spec = _spec(
            "onebit-adam",
            preset=preset,
            freeze_step=freeze_step,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm,
            master=master,
            state=state,
        )
        super().__init__(spec, parameters, gradients, lr, **options)


class OneBitLAMB(Optimizer):
    """1-bit LAMB (Li et al., arXiv 2104.06069): LAMB for `freeze_step` steps, then as OneBitAdam.

    From the freeze on a parameter's ratio is the average of those before, times a factor that
    follows how v would have gone on, within bounds.

    Args:
        coeff_beta: of that average.
        factor_min, factor_max, factor_threshold: the factor's bounds, and by what part of the last
            one it changes at the most.
        min_ratio, max_ratio: of LAMB's ratio; a max_ratio of 0: unbounded.
        preset: "paper" or "deepspeed"; None leaves a setting to the preset.
        state: "8bit" is of the two moments; how v would have gone on stays float32.
        Others: see OneBitAdam and LAMB.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        lr: float,
        *,
        freeze_step: int,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: Optional[float] = None,
        weight_decay: float = 0.0,
        coeff_beta: float = 0.9,
        factor_min: float = 0.5,
        factor_max: float = 4.0,
        factor_threshold: float = 0.1,
        min_ratio: Optional[float] = None,
        max_ratio: Optional[float] = None,
        preset: Optional[str] = None,
        max_grad_norm: float = 0.0,
        master: str = "remainder",
        state: str = "float32",
        **options: Any,
    ) -> None:
        spec = _spec(
            "onebit-lamb",
            preset=preset,
            freeze_step=freeze_step,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            coeff_beta=coeff_beta,
            factor_min=factor_min,
            factor_max=factor_max,
            factor_threshold=factor_threshold,
            min_ratio=min_ratio,
            max_ratio=max_ratio,
            max_grad_norm=max_grad_norm,
            master=master,
            state=state,
        )
        super().__init__(spec, parameters, gradients, lr, **options)
