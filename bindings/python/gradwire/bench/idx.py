"""The names under which MNIST and its like are handed on: four IDX files, images and labels to train with,
then those to test with; each plain or .gz.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Optional, Tuple

from gradwire.bench.errors import UsageError

MNIST_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
# Of EMNIST: a folder may hold several of them.
_EMNIST = ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")

Four = Tuple[Path, Path, Path, Path]


def sets(folder: Path) -> Dict[str, Four]:
    """Whole sets in a folder, by name. Kaggle's copies of MNIST have a dot before "idx"."""
    prefixes = {"MNIST's names": ("train", "t10k")}
    prefixes.update({f"emnist-{name}": (f"emnist-{name}-train", f"emnist-{name}-test") for name in _EMNIST})
    found: Dict[str, Four] = {}
    for name, pair in prefixes.items():
        paths = [
            _there(folder, f"{prefix}-{kind}")
            for prefix in pair
            for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
        ]
        known = [path for path in paths if path is not None]
        if len(known) == 4:
            found[name] = (known[0], known[1], known[2], known[3])
    return found


def files(folder: Path) -> Four:
    """The four files of the one set in a folder.

    :raises UsageError: there is none, or there are several.
    """
    found = sets(folder)
    if len(found) > 1:
        raise UsageError(
            f"--data {folder}: holds several data sets ({', '.join(found)}), expected the four files of one"
        )
    if not found:
        missing: List[str] = [name for name in MNIST_NAMES if _there(folder, name) is None]
        raise UsageError(
            f"--data {folder}: {', '.join(missing)} not found, expected the four MNIST files "
            f"({', '.join(MNIST_NAMES)}; or with a dot before idx, or EMNIST's names), plain or .gz, "
            "or CIFAR-10's (data_batch_1.bin, ..), or CIFAR-100's (train.bin, test.bin), there or in "
            "the folders that torchvision makes"
        )
    return next(iter(found.values()))


def _there(folder: Path, name: str) -> Optional[Path]:
    dotted = name.replace("-idx", ".idx")
    tried = (folder / f"{each}{end}" for each in (name, dotted) for end in ("", ".gz"))
    return next((path for path in tried if path.is_file()), None)
