"""What brings torch, in the words of every message that wants it."""

__all__ = ["TORCH_COMMAND", "torch_missing"]

TORCH_COMMAND = "pip install torch"


def torch_missing(what: str) -> str:
    """The message of what cannot go on without it."""
    return (
        f"{what}: torch is not installed, must be: {TORCH_COMMAND}, in this environment (for CPUs "
        "alone with --index-url https://download.pytorch.org/whl/cpu)"
    )
