"""The CUDA stream on which work with an array of a GPU is enqueued."""

import sys
from typing import Any, Callable, Dict

from .errors import InvalidArgument

__all__ = ["handle_of"]


def handle_of(stream: Any, array: Any, device: int) -> int:
    """The handle (a cudaStream_t) of the stream that a caller names.

    Args:
        stream: a handle, 0 and 1 being the GPU's default stream and 2 the thread's own; an object with
            `cuda_stream` (torch), `ptr` (CuPy) or `__cuda_stream__` (cuda.core); None for the current
            stream of the array's library.
        array: whose library is asked.
        device: number of its GPU.

    Raises:
        InvalidArgument: for anything else, and for None where the library has no current stream that
            is known here.
    """
    if stream is None:
        return _current(array, device)
    if isinstance(stream, int) and not isinstance(stream, bool):
        handle: Any = stream
    elif hasattr(stream, "__cuda_stream__"):
        named = stream.__cuda_stream__
        _, handle = named() if callable(named) else named
    else:
        handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", None))
    if not isinstance(handle, int) or isinstance(handle, bool) or handle < 0:
        raise InvalidArgument(
            f"stream: is {stream!r}, must be a handle (0 or more), have cuda_stream, ptr or "
            "__cuda_stream__, or be None"
        )
    return handle


def _current(array: Any, device: int) -> int:
    own = getattr(array, "__gradwire_stream__", None)  # what gradwire has written itself
    if own is not None:
        return int(own)
    library = type(array).__module__.split(".")[0]
    find = _LIBRARIES.get(library)
    if find is None:
        raise InvalidArgument(
            f"stream: is None, must be given with a {type(array).__name__}: which stream is current is "
            f"known of {' and '.join(_LIBRARIES)} alone"
        )
    return find(sys.modules[library], device)


def _of_torch(torch: Any, device: int) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


def _of_cupy(cupy: Any, device: int) -> int:
    with cupy.cuda.Device(device):
        return int(cupy.cuda.get_current_stream().ptr)


_LIBRARIES: Dict[str, Callable[[Any, int], int]] = {"torch": _of_torch, "cupy": _of_cupy}
