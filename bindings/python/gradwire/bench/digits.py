"""scikit-learn's handwritten digits as the four IDX files every MNIST reader knows.

1797 images of 8x8 pixels, values 0..16, stored times 15 so that bytes span 0..240. Rows are split
by a fixed permutation: 1437 to train, 360 to test (one test row is 0.28 points of accuracy).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any, Dict, List

from gradwire.bench import cifar
from gradwire.bench.errors import RunError, UsageError

IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
TRAIN_ROWS, TEST_ROWS, SIDE = 1437, 360, 8
_SIZES = dict(
    zip(IDX_NAMES, (16 + 64 * TRAIN_ROWS, 8 + TRAIN_ROWS, 16 + 64 * TEST_ROWS, 8 + TEST_ROWS))
)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "gradwire" / "digits-v1"


def digits_folder() -> Path:
    """The folder with the digits' IDX files, written on first use."""
    folder = cache_folder()
    if _complete(folder):
        return folder
    files = _idx_files()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _publish(files, folder)
    except OSError as error:
        raise RunError(
            f"digits cache {folder}: {error.strerror}; set XDG_CACHE_HOME to a folder that can be "
            "written, or pass --data DIR"
        ) from error
    return folder


def check_data_folder(folder: Path) -> Path:
    """Makes sure that ``folder`` holds the four files, plain or .gz, or all of CIFAR-10's."""
    if not folder.is_dir():
        raise UsageError(f"--data {folder}: no such folder")
    if cifar.is_folder(folder):
        cifar.check(folder)
        return folder
    missing: List[str] = [
        name
        for name in IDX_NAMES
        if not (folder / name).is_file() and not (folder / f"{name}.gz").is_file()
    ]
    if missing:
        raise UsageError(
            f"--data {folder}: {', '.join(missing)} not found, expected the four MNIST files "
            f"({', '.join(IDX_NAMES)}), plain or .gz, or CIFAR-10's (data_batch_1.bin, ..)"
        )
    return folder


def _complete(folder: Path) -> bool:
    return all(
        (folder / name).is_file() and (folder / name).stat().st_size == size
        for name, size in _SIZES.items()
    )


def _idx_files() -> Dict[str, bytes]:
    try:
        import numpy
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError as error:
        raise RunError(
            f"the default data needs scikit-learn ({error}): pip install scikit-learn, "
            "or pass --data DIR with the four MNIST files"
        ) from error
    digits = load_digits()
    images = (digits.images * 15).astype(numpy.uint8)
    labels = digits.target.astype(numpy.uint8)
    # RandomState's stream is frozen by NumPy's compatibility policy; Generator's is not.
    order = numpy.random.RandomState(1).permutation(len(labels))
    train, test = order[TEST_ROWS:], order[:TEST_ROWS]
    contents = (_idx(images[train]), _idx(labels[train]), _idx(images[test]), _idx(labels[test]))
    return dict(zip(IDX_NAMES, contents))


def _idx(array: Any) -> bytes:
    """Big-endian: two zero bytes, type 8 (unsigned byte), dimensions, their sizes, the values."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + bytes(array.tobytes())


def _publish(files: Dict[str, bytes], folder: Path) -> None:
    """Writes to a folder beside and renames; a second launcher may do the same at the same time."""
    staging = Path(tempfile.mkdtemp(prefix=".digits-", dir=folder.parent))
    try:
        for name, data in files.items():
            (staging / name).write_bytes(data)
        staging.chmod(0o755)
        if folder.exists() and not _complete(folder):  # left by something else: out of the way
            shutil.rmtree(folder)
        with contextlib.suppress(OSError):
            os.rename(staging, folder)
        if not _complete(folder):
            raise OSError(5, "could not be written completely")
    finally:
        shutil.rmtree(staging, ignore_errors=True)
