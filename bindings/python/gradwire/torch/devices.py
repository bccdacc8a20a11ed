"""Where tensors are, and what those of a GPU need: the current stream, memory of gradwire as tensors."""

from typing import Any, Optional, Sequence

import torch

from .._core import build_info
from ..errors import DeviceError, InvalidArgument

__all__ = ["array_of", "check_device", "current_stream", "gpu_of", "number_at", "tensor_over"]


def gpu_of(tensor: torch.Tensor) -> Optional[int]:
    """The number of the GPU in whose memory it is; None elsewhere."""
    return tensor.get_device() if tensor.device.type == "cuda" else None


def array_of(tensor: torch.Tensor) -> Any:
    """Its memory, as gradwire's optimizers take arrays."""
    return tensor.detach().numpy() if gpu_of(tensor) is None else tensor.detach()


def check_device(what: str, tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> None:
    """Raises for a tensor elsewhere than in memory of the CPU or a GPU, than the others, or on a GPU
    that gradwire cannot use."""
    if gpu_of(tensor) is None and tensor.device.type != "cpu":
        raise InvalidArgument(
            f"{what}: is on {tensor.device}, must be in memory of the CPU or of a CUDA GPU"
        )
    if others and others[0].device != tensor.device:
        raise InvalidArgument(
            f"{what}: is on {tensor.device}, must be on {others[0].device}, where the first one is"
        )
    reason = "" if gpu_of(tensor) is None else build_info()["cuda_unavailable_reason"]
    if reason:
        raise DeviceError(f"{what}: is on {tensor.device}, which gradwire cannot use: {reason}")


def current_stream(gpu: int) -> int:
    """The handle of torch's current stream there."""
    return int(torch.cuda.current_stream(gpu).cuda_stream)


def tensor_over(array: Any) -> torch.Tensor:
    """A DeviceArray's memory as a tensor, without a copy."""
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
    return tensor


def number_at(number: Optional[torch.Tensor], like: torch.Tensor) -> Optional[torch.Tensor]:
    """One float32 in the memory of `like`, for kernels to read."""
    return None if number is None else number.to(like.device, torch.float32, non_blocking=True)
