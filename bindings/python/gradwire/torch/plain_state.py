"""State of arrays as state of tensors, which torch.load(weights_only=True) takes."""

from typing import Any

import numpy as np
import torch

__all__ = ["as_arrays", "as_tensors"]


def as_tensors(state: Any) -> Any:
    """The same with a tensor in the place of each array."""
    if isinstance(state, dict):
        return {key: as_tensors(value) for key, value in state.items()}
    return torch.from_numpy(state) if isinstance(state, np.ndarray) else state


def as_arrays(state: Any) -> Any:
    """The way back, in which arrays stay what they are."""
    if isinstance(state, dict):
        return {key: as_arrays(value) for key, value in state.items()}
    return state.detach().cpu().numpy() if isinstance(state, torch.Tensor) else state
