"""Arrays of any library as NumPy sees them, where Python code looks at them itself."""

from typing import Any, Optional

import numpy as np

from .errors import InvalidArgument

__all__ = ["gpu_of", "refuse_one_array", "viewed"]

_CPU, _CUDA, _PINNED = 1, 2, 3  # of DLPack's devices: the CPU reads the memory of the first and the last


def refuse_one_array(what: str, arrays: Any) -> None:
    """InvalidArgument where an array stands in the place of a list of them."""
    if hasattr(arrays, "__array__") or hasattr(arrays, "__dlpack__"):
        raise InvalidArgument(
            f"{what}: is a {type(arrays).__name__}, must be a list of arrays, one per parameter: "
            f"[{what}] where there is one"
        )


def gpu_of(array: Any) -> Optional[int]:
    """The number of the GPU in whose memory it is; None elsewhere."""
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return None
    kind, number = array.__dlpack_device__()
    return int(number) if kind == _CUDA else None


def viewed(array: Any, what: str) -> np.ndarray:
    """As NumPy sees it, without a copy; InvalidArgument, which begins with `what`, where it cannot."""
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack_device__"):
        # NumPy would copy what JAX keeps on a GPU, without a word.
        kind, number = array.__dlpack_device__()
        if kind not in (_CPU, _PINNED):
            raise InvalidArgument(
                f"{what}: is on a device (DLPack's type {int(kind)}, number {number}), must be in CPU "
                "memory here (cupy.asnumpy and jax.device_get make a copy)"
            )
    try:
        view = np.asarray(array)
    except (TypeError, RuntimeError) as error:  # of tensors that require gradients, for one
        name = type(array).__name__
        raise InvalidArgument(f"{what}: is a {name}, which NumPy cannot view: {error}") from error
    if not view.flags.c_contiguous:
        raise InvalidArgument(f"{what}: is not contiguous, must be in C order")
    return view
