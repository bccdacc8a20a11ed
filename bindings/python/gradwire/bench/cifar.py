"""The binary versions of CIFAR-10 and CIFAR-100: what makes a folder one, and whether its files are whole.

A file is records: a label, or of CIFAR-100 a coarse and a fine one of which the fine one counts, then
32x32 bytes of red, of green, of blue (Krizhevsky, Learning multiple layers of features from tiny images,
2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Tuple

from gradwire.bench.errors import UsageError

CHANNELS, SIDE = 3, 32


@dataclass(frozen=True)
class Version:
    name: str
    train_names: Tuple[str, ...]
    test_name: str
    labels: int  # bytes before the pixels, of which the last is the label
    classes: int

    @property
    def names(self) -> Tuple[str, ...]:
        return (*self.train_names, self.test_name)

    @property
    def record_bytes(self) -> int:
        return self.labels + CHANNELS * SIDE * SIDE


TEN = Version(
    "CIFAR-10", tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin", 1, 10
)
HUNDRED = Version("CIFAR-100", ("train.bin",), "test.bin", 2, 100)


def version_of(folder: Path) -> Optional[Version]:
    """That of which any of the files is there."""
    every = (TEN, HUNDRED)
    return next((v for v in every if any((folder / name).is_file() for name in v.names)), None)


def check(folder: Path, version: Version) -> None:
    """Refuses a folder that lacks a file, or has one that is no whole number of records."""
    missing: List[str] = [name for name in version.names if not (folder / name).is_file()]
    if missing:
        count = "six" if version is TEN else "two"
        raise UsageError(
            f"--data {folder}: {', '.join(missing)} not found, expected all {count} files of "
            f"{version.name}'s binary version"
        )
    for name in version.names:
        size = (folder / name).stat().st_size
        if size == 0 or size % version.record_bytes:
            raise UsageError(
                f"--data {folder / name}: has {size} bytes, expected a multiple of {version.record_bytes}"
            )
