"""Training that exchanges once in many steps: what local steps have moved parameters by."""

from typing import Any, Optional, Sequence

from .optim import Optimizer, _spec

__all__ = ["DiLoCo"]


class DiLoCo(Optimizer):
    """The outer step of training with local steps (Douillard et al., arXiv 2311.08105).

    Another optimizer steps the parameters H times on every rank alone; then

        outer.prepare()    # gradients = what the parameters were before, minus what they are
        ...                # make them the mean of all ranks, by any exchange
        outer.step()       # the parameters of all ranks are the same again

    With theta the parameters before and D the mean: v = momentum * v + D, theta -= lr * (D +
    momentum * v), without `nesterov` theta -= lr * v. All ranks must start with the same parameters.

    Args:
        parameters: float32 arrays, those of the optimizer of the local steps.
        gradients: float32 arrays of the same sizes, which prepare() writes and step() reads: those of
            the other optimizer may serve, or a Reducer's.
        lr: 0.7, the paper's, unless given; 1 without momentum, SparseLoCo's.
        momentum, nesterov: as above.
        preset: "sparseloco" or "local-sgd": neither momentum nor nesterov, so that all ranks go on
            from the mean of their parameters; "paper": both; None leaves them to the arguments.
        max_grad_norm: what the norm of all of D together is brought down to, 0: nothing.
        options: names, groups and threads, see Optimizer.
    """

    def __init__(
        self,
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        lr: Optional[float] = None,
        *,
        momentum: float = 0.9,
        nesterov: bool = True,
        preset: Optional[str] = None,
        max_grad_norm: float = 0.0,
        **options: Any,
    ) -> None:
        if preset is None:
            spec = _spec(
                "diloco", momentum=momentum, nesterov=nesterov, max_grad_norm=max_grad_norm
            )
        else:
            spec = _spec("diloco", preset=preset, max_grad_norm=max_grad_norm)
        super().__init__(spec, parameters, gradients, 0.7 if lr is None else lr, **options)
        keys = self.spec.partition(":")[2].split(",")
        if lr is None and "momentum=0" in keys:
            self.lr = 1.0

    def prepare(self, gradient_scale: float = 1.0, *, stream: Any = None) -> None:
        """Writes to the gradients what the parameters have moved by, the other way round.

        Raises:
            InvalidArgument: gradient_scale is not 1.
        """
        self._core.prepare(gradient_scale, stream)
