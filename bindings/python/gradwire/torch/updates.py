"""What the optimizer makes of gradients that come late, as far as this process shows it."""

import gc
from typing import TYPE_CHECKING, Any, Container, List

import torch

from .. import _core
from .optim import SGD

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["agreed_updates", "updates_of"]

# Steps of these are sums of gradients. All others count as dividing by the size of gradients.
_LINEAR = (torch.optim.SGD, SGD)
_WRAPPED = ("optimizer", "optim")  # accelerate's, and torch's ZeroRedundancyOptimizer


def updates_of(parameters: Container[int]) -> str:
    """As of _core.Pilot: 'linear' where all optimizers of these parameters are SGD, with momentum or
    without; 'scaled' where another one is among them, and where there is none.

    Args:
        parameters: their id(): tensors compare elementwise.
    """
    found = [each for each in _optimizers() if _steps(each, parameters)]
    linear = bool(found) and all(issubclass(type(each), _LINEAR) for each in found)
    return "linear" if linear else "scaled"


def agreed_updates(exchange: "GradientExchange", transport: "_core.Transport") -> str:
    """Collective: 'linear' where it is that on all ranks."""
    own = updates_of(exchange._ids)
    told = transport.all_gather(own[:1].encode(), what="auto: optimizers")
    return "linear" if all(bytes(each) == b"l" for each in told) else "scaled"


def _optimizers() -> List[Any]:
    # type(), because isinstance() asks the object, which may be a proxy that acts on it.
    every = [o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]
    return [o for o in every if not any(_is_optimizer(o, name) for name in _WRAPPED)]


def _is_optimizer(wrapper: Any, name: str) -> bool:
    return issubclass(type(getattr(wrapper, name, None)), torch.optim.Optimizer)


def _steps(optimizer: Any, parameters: Container[int]) -> bool:
    groups = getattr(optimizer, "param_groups", ())  # one that is being made has none yet
    return any(id(p) in parameters for group in groups for p in group["params"])
