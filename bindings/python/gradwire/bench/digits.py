"""scikit-learn's handwritten digits as the four IDX files every MNIST reader knows.

1797 images of 8x8 pixels, values 0..16, stored times 15 so that bytes span 0..240. Rows are split
by a fixed permutation: 1437 to train, 360 to test (one test row is 0.28 points of accuracy).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any, Dict

from gradwire.bench import cifar, idx
from gradwire.bench.errors import RunError, UsageError
from gradwire.streams import note

IDX_NAMES = idx.MNIST_NAMES
TRAIN_ROWS, TEST_ROWS, SIDE = 1437, 360, 8
_SIZES = dict(
    zip(IDX_NAMES, (16 + 64 * TRAIN_ROWS, 8 + TRAIN_ROWS, 16 + 64 * TEST_ROWS, 8 + TEST_ROWS))
)


# Of what _idx_files() makes: a cache that somebody or a disk has changed is not trained on.
_SHA256 = dict(
    zip(
        IDX_NAMES,
        (
            "130bc5863f18ec63d08d9fbef2d77f19e73d944de405b5cab71836ab264aa55d",
            "483637fa8ce26669d4a2fa29d02d27d6d3b69cc99012e4910d2b784daf532fde",
            "4f065b197a8291c44ec7700bf953cff672a71aaa561f8131c0c4cebe6f763559",
            "b2595c6f3ff4c7760945284fd9a5e20ed2248bce7dcc8844adc00ae64cacf6a2",
        ),
    )
)
# Below a folder that somebody names: those of torchvision, and what archives unpack to.
_BELOW = ("raw", "*/raw", "cifar-10-batches-bin", "cifar-100-binary")
_PICKLED = ("cifar-10-batches-py", "cifar-100-python")


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "gradwire" / "digits-v1"


def digits_folder() -> Path:
    """The folder with the digits' IDX files, written on first use."""
    folder = cache_folder()
    if _complete(folder):
        return folder
    if folder.exists():
        note(f"digits cache {folder}: is not as it was written, it is written anew")
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
    """The folder with one whole data set: MNIST's four files or its like, plain or .gz, or all of
    CIFAR-10's or CIFAR-100's; `folder` itself or one below it.

    :raises UsageError: there is none, or there are several.
    """
    if not folder.is_dir():
        raise UsageError(f"--data {folder}: no such folder")
    below = [each for pattern in _BELOW for each in sorted(folder.glob(pattern))]
    found = [each for each in (folder, *below) if cifar.version_of(each) or idx.sets(each)]
    if len(found) > 1 and found[0] != folder:
        names = ", ".join(str(each.relative_to(folder)) for each in found)
        raise UsageError(f"--data {folder}: holds several data sets ({names}), expected one of these folders")
    chosen = found[0] if found else folder
    version = cifar.version_of(chosen)
    if version:
        cifar.check(chosen, version)
        return chosen
    pickled = [name for name in _PICKLED if name == folder.name or (folder / name).is_dir()]
    if not found and pickled:
        raise UsageError(
            f"--data {folder}: {pickled[0]} is CIFAR's Python version, which runs code when it is read, "
            "expected the binary version (cifar-10-binary.tar.gz, cifar-100-binary.tar.gz)"
        )
    idx.files(chosen)
    return chosen


def _complete(folder: Path) -> bool:
    return all(
        (folder / name).is_file()
        and (folder / name).stat().st_size == size
        and hashlib.sha256((folder / name).read_bytes()).hexdigest() == _SHA256[name]
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
        if any((folder / name).read_bytes() != data for name, data in files.items()):
            raise OSError(5, "could not be written completely")
    finally:
        shutil.rmtree(staging, ignore_errors=True)
