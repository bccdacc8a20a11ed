"""The digits' IDX files, re-read byte by byte without the code that wrote them."""

import os
import struct

import bench_support  # noqa: F401
import numpy
import pytest

from gradwire.bench import digits
from gradwire.bench.errors import RunError, UsageError

pytest.importorskip("sklearn", reason="the digits come from scikit-learn")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return digits.digits_folder()


def read(folder, images, labels, count):
    raw = (folder / images).read_bytes()
    assert raw[:4] == b"\x00\x00\x08\x03"
    assert struct.unpack(">III", raw[4:16]) == (count, 8, 8)
    assert len(raw) == 16 + count * 64
    tags = (folder / labels).read_bytes()
    assert tags[:8] == b"\x00\x00\x08\x01" + struct.pack(">I", count)
    assert len(tags) == 8 + count
    pixels = [tuple(raw[16 + 64 * i : 80 + 64 * i]) for i in range(count)]
    return list(zip(pixels, tags[8:]))


def test_train_and_test_together_are_the_whole_set_times_15(folder):
    from sklearn.datasets import load_digits

    train = read(folder, "train-images-idx3-ubyte", "train-labels-idx1-ubyte", 1437)
    test = read(folder, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 360)
    source = load_digits()
    expected = [
        (tuple(int(value) * 15 for value in image.ravel()), int(label))
        for image, label in zip(source.images, source.target)
    ]
    assert sorted(train + test) == sorted(expected)
    assert max(max(pixels) for pixels, _ in train) == 240


def test_every_class_is_in_the_test_rows(folder):
    test = read(folder, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 360)
    counts = numpy.bincount([label for _, label in test], minlength=10)
    assert counts.min() >= 25


def test_the_second_call_writes_nothing(folder):
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert digits.digits_folder() == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert sorted(before) == sorted(digits.IDX_NAMES)


def test_a_damaged_cache_is_written_again_and_no_temporary_folder_stays(folder):
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"half")
    assert digits.digits_folder() == folder
    read(folder, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 360)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_cache_that_cannot_be_written_says_where_and_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(RunError, match=f"{tmp_path}.*--data"):
        digits.digits_folder()


def test_a_data_folder_needs_all_four_files_plain_or_gz(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        digits.check_data_folder(tmp_path / "nowhere")
    for name in digits.IDX_NAMES[:3]:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(UsageError, match="t10k-labels-idx1-ubyte not found, expected the four"):
        digits.check_data_folder(tmp_path)
    os.rename(tmp_path / digits.IDX_NAMES[0], tmp_path / (digits.IDX_NAMES[0] + ".gz"))
    (tmp_path / (digits.IDX_NAMES[3] + ".gz")).write_bytes(b"")
    assert digits.check_data_folder(tmp_path) == tmp_path
