"""gradwire over torch.distributed: a process group as the carrier of a transport.

    transport = gradwire.torch.transport()          # a group of its own over all ranks
    reducer = gradwire.Reducer(plan, transport)

Needs torch, which nothing else in gradwire imports.
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "gradwire.torch: torch is not installed, must be: pip install torch", name="torch"
    ) from error

from .carrier import transport

__all__ = ["transport"]
