"""Numbers of a step for the places where people look at training."""

from typing import Any, Mapping, Optional

from ..errors import InvalidArgument

__all__ = ["write_scalars"]


def write_scalars(writer: Any, values: Mapping[str, float], step: Optional[int]) -> None:
    """To a TensorBoard SummaryWriter (add_scalar) or a wandb run (log); nothing for no values.

    Raises:
        InvalidArgument: the writer is neither.
    """
    at = step if step is not None else int(values.get("step", 0))
    named = {f"gradwire/{key}": value for key, value in values.items() if key != "step"}
    if hasattr(writer, "add_scalar"):
        for key, value in named.items():
            writer.add_scalar(key, value, at)
    elif hasattr(writer, "log"):
        if named:
            writer.log(named, step=at)
    else:
        raise InvalidArgument(
            f"writer: is a {type(writer).__name__}, must have add_scalar() (TensorBoard) or log() "
            "(wandb)"
        )
