"""What can be trained: CIFAR-10's files, methods with local steps, rates of batches."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
from bench_support import bench, trainer
from rank_processes import HAS_TORCH
from test_bench_budget import FREE, JOB

from gradwire.bench import add_arguments, cifar, digits, local, options, sweep, workloads
from gradwire.bench.errors import UsageError
from gradwire.bench.job import Case, trainer_arguments

RECORDS = 7


@pytest.fixture
def folder(tmp_path):
    """Six files of seven pictures, byte by byte: picture i of file f has the label (f + i) % 10."""
    for f, name in enumerate([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]):
        data = b""
        for i in range(RECORDS):
            planes = [bytes([(colour * 80 + f * 10 + i) % 256]) * 1024 for colour in range(3)]
            data += bytes([(f + i) % 10]) + b"".join(planes)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_a_folder_of_cifar_is_found_and_must_be_whole(folder):
    assert digits.check_data_folder(folder) == folder
    (folder / "data_batch_3.bin").write_bytes(bytes(3072))
    with pytest.raises(UsageError, match=r"data_batch_3\.bin: has 3072 bytes, expected a multiple of 3073"):
        digits.check_data_folder(folder)
    (folder / "data_batch_3.bin").write_bytes(b"")
    with pytest.raises(UsageError, match="has 0 bytes"):
        digits.check_data_folder(folder)
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(UsageError, match=r"data_batch_3\.bin not found, expected all six"):
        digits.check_data_folder(folder)


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_pictures_have_three_standardised_channels_and_labels_in_order(folder):
    from gradwire.bench.torch_trainer import data
    from gradwire.errors import InvalidArgument

    rows = data.images(folder)
    assert tuple(rows.inputs.shape) == (5 * RECORDS, 3, 32, 32)
    assert tuple(rows.test_inputs.shape) == (RECORDS, 3, 32, 32)
    assert rows.targets.tolist() == [(f + i) % 10 for f in range(5) for i in range(RECORDS)]
    for colour in range(3):
        raw = [float((colour * 80 + f * 10 + i) % 256) for f in range(5) for i in range(RECORDS)]
        expected = (numpy.array(raw) - numpy.mean(raw)) / numpy.std(raw)
        assert numpy.allclose(rows.inputs[:, colour, 3, 5].numpy(), expected, atol=1e-6)
        assert numpy.allclose(rows.inputs[:, colour].std((1, 2)).numpy(), 0, atol=1e-6)
    whole = bytearray((folder / "data_batch_2.bin").read_bytes())
    whole[4 * 3073] = 10
    (folder / "data_batch_2.bin").write_bytes(whole)
    with pytest.raises(InvalidArgument, match=r"data_batch_2\.bin: the label of record 4 is 10, exp"):
        data.images(folder)
    (folder / "data_batch_2.bin").write_bytes(whole[:-1])
    with pytest.raises(InvalidArgument, match="expected a multiple of 3073"):
        data.images(folder)


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_a_cnn_trains_on_cifar(folder, tmp_path):
    pytest.importorskip("matplotlib", reason="the benchmark draws plots")
    code, _, err = bench(
        "--workload", "cnn", "--data", folder, "--workers", 2, "--links", "none", "--link-mode",
        "pacing", "--methods", "int8", "--batch-size", 4, "--max-steps", 3, "--json",
        tmp_path / "out.json", "--output", tmp_path / "plots", timeout=300,
    )  # fmt: skip
    assert code == 0, err
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert row["steps"] == 3
    assert 1.1e6 < row["parameters"] < 1.3e6


def sweep_of(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return sweep.Sweep(parser.parse_args([str(word) for word in words]), {})


@pytest.fixture
def no_files(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "find_trainer", lambda given: Path("/trainer"))
    monkeypatch.setattr(sweep, "digits_folder", lambda: tmp_path)


@pytest.mark.parametrize(
    ("workload", "parameters"),
    [
        ("mlp", 64 * 3073 + 10 * 65),
        ("conv", 8 * 28 + 64 * (8 * 16 * 16 + 1) + 10 * 65),  # halved once, to 16 by 16
    ],
)
def test_the_cpp_trainer_trains_on_cifar(folder, tmp_path, workload, parameters):
    code, _, err = bench(
        "--trainer", trainer(), "--workload", workload, "--data", folder, "--workers", 2, "--links",
        "none", "--link-mode", "pacing", "--methods", "none,int8", "--hidden", 64, "--batch-size", 4,
        "--max-steps", 3, *(("--convolutions", 8) if workload == "conv" else ()), "--json",
        tmp_path / "out.json", "--output", tmp_path / "plots",
    )  # fmt: skip
    assert code == 0, err
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [(row["method"], row["steps"]) for row in rows] == [("none", 3), ("int8", 3)]
    assert {row["parameters"] for row in rows} == {parameters}


def methods_of(*words):
    return list(dict.fromkeys(trial.case.method for trial in sweep_of(*words).trials))


def test_auto_is_a_usual_method_where_it_can_be(no_files):
    usual = ["auto", "none", "fp16", "topk:1%", "int4"]
    assert methods_of() == methods_of("--optimizer", "sgd,lamb") == usual
    for words in (("--local-steps", 4), ("--exchange", "dense"), ("--optimizer", "sgd,onebit-adam")):
        assert methods_of(*words) == usual[1:]
    assert methods_of("--methods", "auto:window=10,specs=int8|topk:1%,int4;none", "--local-steps", 4) == [
        "auto:window=10,specs=int8|topk:1%,int4", "none"
    ]  # fmt: skip


def test_rates_follow_the_batch_in_proportion_or_by_its_square_root(no_files):
    made = sweep_of("--optimizer", "sgd,lamb", "--batch-size", "64,256", "--methods", "none").jobs
    assert [job.learning_rate for job in made] == [None, 0.05 * 4, None, 0.005 * 2]
    made = sweep_of("--learning-rate", 0.1, "--batch-size", "256,64", "--methods", "none").jobs
    assert [job.learning_rate for job in made] == [0.1, pytest.approx(0.025)]


def test_a_method_with_local_steps_is_the_options_of_the_trainer():
    def words(method):
        given = trainer_arguments(JOB, Case(FREE, method, 1))
        return {name: given[given.index(f"--{name}") + 1] for name in ("method", "local-steps", "outer")}

    assert words("none") == {"method": "none", "local-steps": "1", "outer": "diloco"}
    assert words("diloco:20") == {"method": "none", "local-steps": "20", "outer": "diloco"}
    assert words("sparseloco:30") == {
        "method": "chunktopk:64/4096,2bit,decay=0.95",
        "local-steps": "30",
        "outer": "diloco:preset=sparseloco",
    }
    assert local.read("topk:1%") is None
    for bad in ("diloco:", "diloco:0", "diloco:x", "sparseloco:1.5", "diloco:-3"):
        with pytest.raises(ValueError, match="local steps, expected 1 to 999999"):
            local.read(bad)


def test_local_steps_are_refused_where_they_cannot_be(no_files):
    with pytest.raises(UsageError, match="'diloco:x': diloco: 'x' local steps"):
        sweep_of("--methods", "none,diloco:x")
    with pytest.raises(UsageError, match="'diloco:20' has local steps of its own, expected no --local"):
        sweep_of("--methods", "none,diloco:20", "--local-steps", 5)


def test_local_steps_train_beside_other_methods_and_send_less(tmp_path):
    pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
    code, out, err = bench(
        "--trainer", trainer(), "--workers", 2, "--links", "none", "--link-mode", "pacing", "--hidden",
        "64", "--methods", "none,diloco:4,sparseloco:4", "--max-steps", 20, "--stop-at-target", 0,
        "--json", tmp_path / "out.json", "--output", tmp_path / "plots",
    )  # fmt: skip
    assert code == 0, err
    rows = {row["method"]: row for row in json.loads((tmp_path / "out.json").read_text())["rows"]}
    assert list(rows) == ["none", "diloco:4", "sparseloco:4"]
    assert [row["local_steps"] for row in rows.values()] == [1, 4, 4]
    sent = [row["wire_bytes_per_step"] for row in rows.values()]
    assert sent[0] > 3 * sent[1] > 9 * sent[2] > 0
    assert "sparseloco:4" in out


def test_a_cnn_trains_without_torch(tmp_path):
    """Its parameters counted by hand: 3x3 kernels over 8x8 pictures that become 4x4, then 2x2."""
    pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
    code, out, err = bench(
        "--trainer", trainer(), "--workload", "conv,mlp", "--workers", 2, "--links", "none",
        "--link-mode", "pacing", "--convolutions", "4,8", "--hidden", "16", "--methods", "none,int8",
        "--max-steps", 3, "--stop-at-target", 0, "--json", tmp_path / "out.json",
        "--output", tmp_path / "plots",
    )  # fmt: skip
    assert code == 0, err
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    found = {(row["workload"], row["method"]): row["parameters"] for row in rows}
    conv = (9 * 4 + 4) + (9 * 4 * 8 + 8) + (2 * 2 * 8 * 16 + 16) + (16 * 10 + 10)
    mlp = (64 * 16 + 16) + (16 * 10 + 10)
    assert found == {("conv", "none"): conv, ("conv", "int8"): conv, ("mlp", "none"): mlp,
                     ("mlp", "int8"): mlp}  # fmt: skip
    assert "conv, sgd:momentum=0.8,nesterov=1, batch 64" in out


def test_rates_are_those_of_the_trainer(tmp_path, monkeypatch):
    """The table in Python against what the program takes where it is told none."""
    import subprocess

    pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
    program, data = trainer(), digits.digits_folder()
    for name, rate in workloads.RATES.items():
        job = replace(JOB, trainer=program, data=data, optimizer=name, learning_rate=None, max_steps=1,
                      transport="in_process", workers=2, batch_size=8, epochs=1)  # fmt: skip
        done = subprocess.run(
            trainer_arguments(job, Case(FREE, "none", 1)), capture_output=True, text=True, timeout=60
        )
        started = [json.loads(line) for line in done.stdout.splitlines()]
        assert [e["learning_rate"] for e in started if e["event"] == "start"][0] == rate, done.stderr
    assert options.DEFAULT_LEARNING_RATE == workloads.RATES["sgd"]
    assert cifar.TEN.record_bytes == 3073
