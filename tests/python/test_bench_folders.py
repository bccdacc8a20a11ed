"""Folders of pictures as people have them: torchvision's, Kaggle's, EMNIST's, CIFAR's archives."""

import gzip
import struct

import numpy
import pytest
from bench_support import bench
from rank_processes import HAS_TORCH

from gradwire.bench import digits
from gradwire.bench.errors import UsageError

KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def write_set(folder, names, labels, test_labels, packed=False):
    """Pictures of 2 x 3 whose pixels are 10 times the number of the picture, under four names."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in zip(names, (labels, labels, test_labels, test_labels)):
        count = len(values)
        pixels = b"".join(bytes([10 * i] * 6) for i in range(count))
        data = (
            b"\0\0\x08\x03" + struct.pack(">III", count, 2, 3) + pixels
            if "images" in name
            else b"\0\0\x08\x01" + struct.pack(">I", count) + bytes(values)
        )
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)


def names(train, test, joint="-"):
    return [f"{prefix}-{kind.replace('-idx', joint + 'idx')}" for prefix in (train, test) for kind in KINDS]


def emnist(name):
    return names(f"emnist-{name}-train", f"emnist-{name}-test")


def write_hundred(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, fine in (("train.bin", (99, 0, 42, 7)), ("test.bin", (5,))):
        (folder / name).write_bytes(
            b"".join(bytes([label // 5, label]) + bytes([label + 1] * 3072) for label in fine)
        )


def write_ten(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]):
        (folder / name).write_bytes(bytes([number]) + bytes(3072))


@pytest.mark.parametrize(
    ("below", "write"),
    [
        ("MNIST/raw", lambda f: write_set(f, names("train", "t10k"), [0, 1, 1], [1])),
        ("FashionMNIST/raw", lambda f: write_set(f, names("train", "t10k"), [0, 1, 1], [1], True)),
        ("raw", lambda f: write_set(f, names("train", "t10k"), [0, 1, 1], [1])),
        (".", lambda f: write_set(f, names("train", "t10k", "."), [0, 1, 1], [1])),
        ("EMNIST/raw", lambda f: write_set(f, emnist("letters"), [1, 2], [2])),
        (".", lambda f: write_set(f, emnist("mnist"), [0, 1], [1], True)),
        ("cifar-10-batches-bin", write_ten),
        ("cifar-100-binary", write_hundred),
        (".", write_hundred),
    ],
)
def test_the_data_is_found_in_the_folder_or_below_it(tmp_path, below, write):
    write(tmp_path / below)
    assert digits.check_data_folder(tmp_path) == tmp_path / below
    assert digits.check_data_folder(tmp_path / below) == tmp_path / below


def test_of_several_sets_none_is_taken(tmp_path):
    for each in ("MNIST", "KMNIST"):
        write_set(tmp_path / each / "raw", names("train", "t10k"), [0, 1], [1])
    with pytest.raises(UsageError, match=r"several data sets \(KMNIST/raw, MNIST/raw\), exp"):
        digits.check_data_folder(tmp_path)
    for each in ("letters", "digits"):
        write_set(tmp_path / "E", emnist(each), [1, 2], [1])
    with pytest.raises(UsageError, match=r"data sets \(emnist-digits, emnist-letters\), exp"):
        digits.check_data_folder(tmp_path / "E")


@pytest.mark.parametrize("name", ["cifar-10-batches-py", "cifar-100-python"])
def test_pickled_pictures_are_refused_by_name(tmp_path, name):
    (tmp_path / name).mkdir()
    for folder in (tmp_path, tmp_path / name):
        with pytest.raises(UsageError, match=f"{name} is CIFAR's Python version, .* the binary version"):
            digits.check_data_folder(folder)


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_torch_reads_what_is_found(tmp_path):
    from gradwire.bench.torch_trainer import data
    from gradwire.errors import InvalidArgument

    write_set(tmp_path / "kaggle", names("train", "t10k", "."), [1, 0, 1], [0])
    rows = data.images(tmp_path / "kaggle")
    assert (rows.targets.tolist(), rows.test_targets.tolist()) == ([1, 0, 1], [0])
    expected = (numpy.array([0, 10, 20]) - 10) / numpy.std([0, 10, 20])
    assert numpy.allclose(rows.inputs[:, 0, 1, 2].numpy(), expected)
    letters = emnist("letters")
    write_set(tmp_path / "letters", letters, [26, 1, 2], [2], True)
    rows = data.images(tmp_path / "letters")
    assert (rows.targets.tolist(), rows.test_targets.tolist()) == ([25, 0, 1], [1])
    write_set(tmp_path / "letters", letters, [26, 1, 2], [0], True)
    with pytest.raises(InvalidArgument, match="letters-test-labels.*: a label is 0, expected at"):
        data.images(tmp_path / "letters")
    write_hundred(tmp_path / "hundred")
    rows = data.images(tmp_path / "hundred")
    assert (rows.targets.tolist(), rows.test_targets.tolist()) == ([99, 0, 42, 7], [5])
    assert tuple(rows.inputs.shape) == (4, 3, 32, 32)
    raw = numpy.array([100, 1, 43, 8])
    assert numpy.allclose(rows.inputs[:, 2, 31, 31].numpy(), (raw - raw.mean()) / raw.std(), atol=1e-6)


def test_the_trainer_trains_on_letters_below_the_folder_that_is_named(tmp_path):
    pytest.importorskip("matplotlib", reason="the benchmark draws plots")
    letters = emnist("letters")
    write_set(tmp_path / "EMNIST" / "raw", letters, [1, 2, 3, 1, 2, 3, 1, 2], [2, 3])
    code, _, err = bench(
        "--data", tmp_path, "--workers", 2, "--links", "none", "--link-mode", "pacing", "--methods",
        "none", "--batch-size", 2, "--max-steps", 2, "--output", tmp_path / "plots", timeout=120,
    )  # fmt: skip
    assert code == 0, err


def test_digits_that_a_disk_has_changed_are_written_anew_with_a_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = digits.digits_folder() / "train-images-idx3-ubyte"
    assert capsys.readouterr().err == ""
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert digits.digits_folder() == file.parent
    assert file.read_bytes() == whole
    assert "is not as it was written, it is written anew" in capsys.readouterr().err
