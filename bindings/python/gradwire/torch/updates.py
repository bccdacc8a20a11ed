"""What the optimizer makes of gradients, as far as this process shows it: of those that come late, and of
those that have a momentum already."""

import gc
import inspect
import logging
from typing import TYPE_CHECKING, Any, Container, Iterable, List

import torch

from .. import _core
from .._core import parse_spec
from .optim import SGD

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["agreed_updates", "updates_of", "warns_of_two_momenta"]

_log = logging.getLogger("gradwire")

# Optimizers of these modules that have another as .optimizer or .optim step by it, and do no more.
_PASSING_ON = ("accelerate", "lightning", "pytorch_lightning", "torch.distributed.optim")


def updates_of(parameters: Container[int]) -> str:
    """As of _core.Pilot: 'linear' where all optimizers of these parameters are SGD that clips nothing,
    with momentum or without; 'scaled' where another one is among them, and where there is none.

    Args:
        parameters: their id(): tensors compare elementwise.
    """
    try:
        found = [_is_linear(each) for each in _optimizers() if _steps(each, parameters)]
    except Exception as error:  # of somebody else's optimizer: what is unknown counts in full
        _log.warning("auto: optimizers cannot be told apart, none is taken for SGD: %s", repr(error))
        return "scaled"
    return "linear" if found and all(found) else "scaled"


def agreed_updates(exchange: "GradientExchange", transport: "_core.Transport") -> str:
    """Collective: 'linear' where it is that on all ranks."""
    own = updates_of(exchange._names)
    told = transport.all_gather(own[:1].encode(), what="auto: optimizers")
    return "linear" if all(bytes(each) == b"l" for each in told) else "scaled"


def warns_of_two_momenta(specs: Iterable[str], parameters: Container[int]) -> bool:
    """Warns, and returns True, where a compressor keeps a velocity and an optimizer of these parameters has
    a momentum as well: gradients then pass through both.

    Args:
        specs: of the compressors.
        parameters: their id().
    """
    twice = [spec for spec in specs if parse_spec(spec).momentum > 0]
    if not twice:
        return False
    for optimizer in _optimizers():
        for group in getattr(optimizer, "param_groups", None) or ():
            momentum = group.get("momentum")
            has_one = isinstance(momentum, (int, float)) and momentum > 0
            if has_one and any(id(p) in parameters for p in group["params"]):
                _log.warning(
                    "'%s' keeps a velocity with momentum %g, and %s has momentum %g, expected 0 there: "
                    "gradients pass through both, so that steps are about %.3g times too long",
                    twice[0], parse_spec(twice[0]).momentum, type(optimizer).__name__, momentum,
                    1 / (1 - momentum),
                )  # fmt: skip
                return True
    return False


def _optimizers() -> List[Any]:
    # type(), because isinstance() asks the object, which may be a proxy that acts on it. No generator:
    # its frame would hold the list of all objects, itself among them, until it is collected.
    every = [o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]
    return [each for each in every if not _passes_on(each)]


def _passes_on(optimizer: Any) -> bool:
    known = any(
        each.__module__ == name or each.__module__.startswith(f"{name}.")
        for each in type(optimizer).__mro__
        for name in _PASSING_ON
    )
    wrapped = (getattr(optimizer, name, None) for name in ("optimizer", "optim"))
    return known and any(issubclass(type(each), torch.optim.Optimizer) for each in wrapped)


def _steps(optimizer: Any, parameters: Container[int]) -> bool:
    groups = getattr(optimizer, "param_groups", None) or ()  # one that is being made has none yet
    return any(id(p) in parameters for group in groups for p in group["params"])


def _is_linear(optimizer: Any) -> bool:
    """A step of its own may be anything; torch puts one around the class's, which unwrap() takes off."""
    for base in (torch.optim.SGD, SGD):
        if issubclass(type(optimizer), base):
            own = inspect.unwrap(type(optimizer).step)
            clips = "max_grad_norm" in getattr(optimizer, "spec", "")
            return own is inspect.unwrap(base.step) and not clips
    return False
