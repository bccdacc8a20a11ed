"""bench/gpu_train.py on the processor, with a tiny model: methods side by side, broken ones, going on."""

import importlib
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from rank_processes import needs_torch

import gradwire

pytestmark = needs_torch
BENCH = Path(__file__).resolve().parents[2] / "bench"
TINY = [
    "--device",
    "cpu",
    "--ranks",
    "2",
    "--width",
    "16",
    "--layers",
    "1",
    "--batch-size",
    "2",
    "--held-out",
    "8",
    "--reserve-s",
    "0.1",
    "--silence-s",
    "30",
]


@pytest.fixture
def train(monkeypatch):
    """main(): here, so that its processes are forked from the tests' server, which has torch."""
    monkeypatch.syspath_prepend(str(BENCH))
    main = importlib.import_module("gpu_train").main

    def run(*words):
        return main([str(word) for word in words])

    return run


def methods_of(file):
    return json.loads(file.read_text())["methods"]


@pytest.mark.skipif(not gradwire.build_info()["features"]["planner"], reason="this build has no planner")
def test_methods_train_side_by_side_and_a_broken_one_is_named_and_left_out(train, tmp_path, capsys):
    out = tmp_path / "out.json"
    methods = "ddp;none;int4@two_shot;int4@nowhere;topk:1%,int4;auto"
    assert train("--out", out, *TINY, "--methods", methods, "--steps", 4, "--slice", 4) == 1
    assert "not trained: int4@nowhere" in capsys.readouterr().out
    found = methods_of(out)
    broken = found.pop("int4@nowhere")
    assert broken["status"] == "failed" and "nowhere" in broken["tails"]["rank 0"] and not broken["losses"]
    for name, part in found.items():
        assert part["status"] == "trained", (name, part)
        assert len(part["losses"]) == len(part["ms"]) == len(part["specs"]) == 4
        assert part["held_out"]["step"] == 4 and min(part["ms"]) > 0
    assert found["none"]["losses"] == pytest.approx(found["ddp"]["losses"], abs=1e-6)
    assert found["none"]["losses"][0] == found["topk:1%,int4"]["losses"][0]  # same model, same batch
    assert found["none"]["losses"] != found["topk:1%,int4"]["losses"]


def test_a_second_run_goes_on_with_the_steps_of_one_that_was_never_stopped(train, tmp_path):
    """And a third, whose files are lost, starts over and says how many steps that cost."""
    out = tmp_path / "out.json"
    few = ["--methods", "none;topk:1%,int4", "--slice", 2]
    for steps in (2, 4):
        assert train("--out", out, *TINY, *few, "--steps", steps) == 0
    went_on = json.loads(out.read_text())
    assert len(went_on["runs"]) == 2
    for file in (tmp_path / "out-state").iterdir():
        file.unlink()
    assert train("--out", out, *TINY, *few, "--steps", 4) == 0
    for name, once in methods_of(out).items():
        part = went_on["methods"][name]
        assert part["losses"] == once["losses"] and len(once["losses"]) == 4
        assert part["held_out"] == once["held_out"] and "lost_steps" not in part
        assert once["lost_steps"] == 4


def test_a_rank_that_hangs_is_named_and_the_job_ends(train, tmp_path, monkeypatch):
    """Rank 1 is stopped as soon as it is there: rank 0 waits for it."""
    out = tmp_path / "out.json"
    start = multiprocessing.process.BaseProcess.start
    started = []

    def start_and_stop_the_second(self):
        start(self)
        started.append(self.pid)
        if len(started) == 2:
            os.kill(self.pid, signal.SIGSTOP)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start_and_stop_the_second)
    assert train("--out", out, *TINY, "--silence-s", 3, "--methods", "none", "--steps", 2) == 1
    found = json.loads(out.read_text())
    assert found["reason"] == "hangs: no word for 3 s" and found["methods"]["none"]["status"] == "waiting"
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    "words, named",
    [
        (["--seconds", "241"], "expected more than 0 and at most 240"),
        (["--width", "2048"], "expected 25,000,000 at most"),
        (["--ranks", "1"], "--ranks 2 at least"),
        (["--group", "nccl"], "--group nccl goes with --device cuda"),
    ],
)
def test_bad_arguments_are_named(train, tmp_path, capsys, words, named):
    with pytest.raises(SystemExit) as end:
        train("--out", tmp_path / "out.json", *TINY, *words)
    assert end.value.code == 2 and named in capsys.readouterr().err


def test_without_a_gpu_it_says_so_and_trains_nothing(train, tmp_path, capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("here is a GPU")
    assert train("--out", tmp_path / "out.json") == 3
    assert "sees no GPU" in capsys.readouterr().out and not (tmp_path / "out.json").exists()
