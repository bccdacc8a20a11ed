"""Training data as tensors: images from IDX files, windows of bytes from text."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import NamedTuple, Optional, Tuple

import numpy
import torch

from gradwire.bench import cifar, idx
from gradwire.bench.texts import standard_library
from gradwire.errors import InvalidArgument

MOST_TEXT_BYTES = 4 << 20
LEAST_TEXT_BYTES = 1 << 16
WINDOW = 64  # bytes that one row predicts, each from those before it
_HELD_OUT = 10  # one in so many rows
_TOGETHER = 64  # windows of text that are held out together


class Rows(NamedTuple):
    """Examples, and those that are held out."""

    inputs: torch.Tensor
    targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor


def images(folder: Path) -> Rows:
    """(rows, channels, height, width) float32, standardised by the training pixels; targets: classes."""
    version = cifar.version_of(folder)
    if version:
        return _colours(folder, version)
    files = idx.files(folder)
    train, labels, test, test_labels = map(_idx, files)
    for pixels, classes, file in ((train, labels, files[0]), (test, test_labels, files[2])):
        if pixels.ndim != 3 or classes.ndim != 1 or len(pixels) != len(classes) or not len(pixels):
            raise InvalidArgument(
                f"{file}: has the shape {pixels.shape} beside labels {classes.shape}, "
                "expected (rows, height, width) and (rows,)"
            )
    if labels.min() == 1:  # EMNIST's letters count from 1
        if test_labels.min() < 1:
            raise InvalidArgument(f"{files[3]}: a label is 0, expected at least 1, the least to train with")
        labels, test_labels = labels - 1, test_labels - 1
    mean, deviation = float(train.mean()), float(train.std()) or 1.0

    def standard(pixels: numpy.ndarray) -> torch.Tensor:
        scaled = (pixels.astype(numpy.float32) - mean) / deviation
        return torch.from_numpy(scaled).unsqueeze(1)

    def classes_of(values: numpy.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(numpy.int64))

    return Rows(standard(train), classes_of(labels), standard(test), classes_of(test_labels))


def _colours(folder: Path, version: cifar.Version) -> Rows:
    """CIFAR, each channel standardised by its own training pixels."""
    train = [_records(folder / name, version) for name in version.train_names]
    pixels = numpy.concatenate([each for each, _ in train]).astype(numpy.float32)
    labels = numpy.concatenate([each for _, each in train])
    test_pixels, test_labels = _records(folder / version.test_name, version)
    mean = pixels.mean((0, 2, 3), dtype=numpy.float64, keepdims=True)
    deviation = pixels.std((0, 2, 3), dtype=numpy.float64, keepdims=True)
    deviation[deviation == 0] = 1.0

    def standard(values: numpy.ndarray) -> torch.Tensor:
        return torch.from_numpy(((values - mean) / deviation).astype(numpy.float32))

    return Rows(
        standard(pixels), torch.from_numpy(labels),
        standard(test_pixels), torch.from_numpy(test_labels),
    )  # fmt: skip


def _records(path: Path, version: cifar.Version) -> Tuple[numpy.ndarray, numpy.ndarray]:
    """(rows, 3, 32, 32) uint8 and (rows,) int64 of one file."""
    raw = numpy.fromfile(path, numpy.uint8)
    if not len(raw) or len(raw) % version.record_bytes:
        raise InvalidArgument(
            f"{path}: has {len(raw)} bytes, expected a multiple of {version.record_bytes}"
        )
    records = raw.reshape(-1, version.record_bytes)
    labels = records[:, version.labels - 1].astype(numpy.int64)
    if labels.max() >= version.classes:
        at = int(labels.argmax())
        raise InvalidArgument(
            f"{path}: the label of record {at} is {labels[at]}, expected 0 to {version.classes - 1}"
        )
    return records[:, version.labels :].reshape(-1, cifar.CHANNELS, cifar.SIDE, cifar.SIDE), labels


def text(file: Optional[Path]) -> Rows:
    """(rows, WINDOW) of byte values, targets the bytes that follow each.

    Every tenth stretch of 4 KiB is held out. Without a file: Python's standard library.
    """
    data = file.read_bytes()[:MOST_TEXT_BYTES] if file else standard_library(MOST_TEXT_BYTES)
    if len(data) < LEAST_TEXT_BYTES:
        raise InvalidArgument(
            f"{file}: has {len(data)} bytes, expected {LEAST_TEXT_BYTES} at least"
        )
    values = torch.from_numpy(numpy.frombuffer(data, numpy.uint8).astype(numpy.int64))
    count = (len(data) - 1) // WINDOW
    inputs = values[: count * WINDOW].view(count, WINDOW)
    targets = values[1 : count * WINDOW + 1].view(count, WINDOW)
    held_out = (torch.arange(count) // _TOGETHER) % _HELD_OUT == _HELD_OUT - 1
    return Rows(inputs[~held_out], targets[~held_out], inputs[held_out], targets[held_out])


def _idx(path: Path) -> numpy.ndarray:
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    shape: Tuple[int, ...] = ()
    if raw[:3] == b"\0\0\x08" and len(raw) >= 4 + 4 * raw[3]:
        shape = tuple(int(n) for n in numpy.frombuffer(raw, ">u4", raw[3], 4))
    begin = 4 + 4 * len(shape)
    if not shape or len(raw) - begin != int(numpy.prod(shape)):
        raise InvalidArgument(f"{path}: is no whole IDX file of unsigned bytes, expected one")
    return numpy.frombuffer(raw, numpy.uint8, offset=begin).reshape(shape)
