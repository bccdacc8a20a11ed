"""CIFAR-10's binary version: what makes a folder one, and whether its files are whole.

Each file is records of 3073 bytes: a label from 0 to 9, then 32x32 bytes of red, of green, of blue
(Krizhevsky, Learning multiple layers of features from tiny images, 2009).
"""

from __future__ import annotations

from pathlib import Path
from typing import List

from gradwire.bench.errors import UsageError

TRAIN_NAMES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_NAME = "test_batch.bin"
CHANNELS, SIDE, CLASSES = 3, 32, 10
RECORD_BYTES = 1 + CHANNELS * SIDE * SIDE


def is_folder(folder: Path) -> bool:
    """Whether any of the files is there."""
    return any((folder / name).is_file() for name in (*TRAIN_NAMES, TEST_NAME))


def check(folder: Path) -> None:
    """Refuses a folder that lacks a file, or has one that is no whole number of records."""
    missing: List[str] = [n for n in (*TRAIN_NAMES, TEST_NAME) if not (folder / n).is_file()]
    if missing:
        raise UsageError(
            f"--data {folder}: {', '.join(missing)} not found, expected all six files of CIFAR-10's "
            "binary version"
        )
    for name in (*TRAIN_NAMES, TEST_NAME):
        size = (folder / name).stat().st_size
        if size == 0 or size % RECORD_BYTES:
            raise UsageError(
                f"--data {folder / name}: has {size} bytes, expected a multiple of {RECORD_BYTES}"
            )
