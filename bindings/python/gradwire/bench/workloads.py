"""What can be trained, and with what where nothing is said. The words of `--workload`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Tuple

from gradwire.bench.errors import UsageError

MLP = "mlp"
CONV = "conv"
#: By the C++ trainer; all others by torch.
IN_CPP: Tuple[str, ...] = (MLP, CONV)
#: Widths of the hidden layers where none are given.
HIDDEN = {MLP: "512,512,512,512,512", CONV: "256"}
CONVOLUTIONS = "32,64"


@dataclass(frozen=True)
class Usual:
    """What a workload is trained with where nothing is said."""

    optimizer: str
    learning_rate: float
    batch_size: int
    epochs: int
    eval_every: int
    target_accuracy: float


_GRADIENTS = Usual("sgd", 1.0, 1, 1, 0, 0.0)  # which trains nothing
USUAL: Dict[str, Usual] = {
    "cnn": Usual("sgd:momentum=0.9,nesterov=1", 0.02, 64, 20, 10, 0.95),
    "bytes": Usual("adamw:weight_decay=0.01", 0.002, 16, 1, 50, 0.0),
    "gradients:resnet50": _GRADIENTS,
    "gradients:bert-base": _GRADIENTS,
    "gradients:gpt2": _GRADIENTS,
}
IN_TORCH: Tuple[str, ...] = tuple(USUAL)
NAMES: Tuple[str, ...] = (*IN_CPP, *IN_TORCH)
#: The C++ trainer's for its MLP, where none is given; where it begins with other batches and models.
RATES = {
    "sgd": 0.05,
    "adamw": 0.001,
    "onebit-adam": 0.001,
    "lars": 3.0,
    "lamb": 0.005,
    "onebit-lamb": 0.005,
}
#: Adaptive ones, whose rate grows with the square root of the batch (You et al., arXiv 1904.00962);
#: others' in proportion to it (Goyal et al., arXiv 1706.02677).
BY_SQUARE_ROOT = ("adamw", "lamb", "onebit-adam", "onebit-lamb")
#: Those that read a folder of data.
OF_FOLDERS = (*IN_CPP, "cnn")


def parse(text: str) -> List[str]:
    """'mlp,cnn' as names.

    Raises:
        UsageError: an unknown name, or one that is given twice.
    """
    names = [name.strip().lower() for name in text.split(",")]
    for index, name in enumerate(names):
        if name not in NAMES:
            raise UsageError(f"--workload: '{name}' is unknown, expected {', '.join(NAMES)}")
        if name in names[:index]:
            raise UsageError(f"--workload: {name} is given twice")
    return names
