"""gradwire.planner and `gradwire simulate`: answers against formulas, files and the layer tables."""

import csv
import json
from pathlib import Path

import pytest

import gradwire
from gradwire import cli, planner
from gradwire.models import MODELS, layers

if not gradwire.build_info()["features"]["planner"]:
    pytest.skip("this build has no planner", allow_module_level=True)

DATA = Path(__file__).parent.parent / "planner" / "data"


def one_layer(**changes):
    """1 s forward, 1 s backward, 4 MB of gradient."""
    profile = {
        "format": "gradwire.profile", "version": 1, "model": "one", "batch": 10, "ranks": 1,
        "step": {}, "layers": [
            {"name": "a", "numel": 1_000_000, "forward_s": 1.0, "backward_s": 1.0}],
    }
    return json.dumps({**profile, **changes})


def cluster(**changes):
    return planner.Cluster(**{"workers": 8, "alpha_s": 0.125, "bytes_per_s": 4e6, **changes})


def test_the_models_have_the_tensors_of_their_architectures():
    assert [sum(n for _, n in layers(MODELS[name])) for name in MODELS] == [
        110_106_428, 336_226_108, 124_439_808, 354_823_168, 1_557_611_200]
    with open(DATA / "layers" / "bert_large_pretrain.csv", encoding="utf-8") as table:
        rows = [(row["tensor"], int(row["elements"])) for row in csv.DictReader(table)]
    assert layers(MODELS["bert-large"]) == rows


def test_a_step_is_its_parts():
    step = planner.simulate(one_layer(), cluster())
    assert step["step_s"] == pytest.approx(2 + 14 * 0.125 + 14 / 8)  # a ring of 8
    assert step["compute_s"] == pytest.approx(2)
    assert step["exposed_s"] == pytest.approx(3.5)
    assert step["samples_per_s"] == pytest.approx(80 / 5.5)
    assert [task["kind"] for task in step["critical_path"]] == ["forward", "backward", "exchange"]


def test_scaling_and_sensitivities():
    points = planner.scaling(one_layer(), cluster())
    assert [p["workers"] for p in points] == [1, 2, 4, 8]
    assert points[1]["speedup"] == pytest.approx(2 * 2 / (2 + 0.25 + 1))
    found = {row["input"]: row for row in planner.sensitivities(one_layer(), cluster())}
    assert found["inter.alpha"]["elasticity"] == pytest.approx(1.75 / 5.5, rel=1e-3)
    assert found["inter.bandwidth"]["elasticity"] == pytest.approx(-1.75 / 5.5, rel=1e-3)
    assert found["io"]["no_effect"] == "it is 0"


def test_compression_and_buckets_reach_the_model():
    half = planner.simulate(one_layer(), cluster(compression=2.0))
    assert half["step_s"] == pytest.approx(2 + 1.75 + 1.75 / 2)
    bert = planner.profile_of_model("bert-large", 50e12)
    ddp = planner.simulate(bert, cluster(bucket_bytes=(2.0**20, 25 * 2.0**20)))
    assert 20 < ddp["exchanges"] < 60
    assert planner.simulate(bert, cluster())["exchanges"] == 398


def test_the_calibrated_step_on_one_worker_is_the_measured_one():
    profile = planner.calibrated(one_layer(), 2.75)
    assert planner.simulate(profile, planner.Cluster())["step_s"] == pytest.approx(2.75)


def test_the_command_simulates_four_thousand_workers(tmp_path, capsys):
    out, drawn = tmp_path / "out.json", tmp_path / "trace.json"
    words = ["simulate", "--model", "bert-large", "--workers", "4096", "--link", "25gbit"]
    assert cli.main([*words, "--json", str(out), "--trace", str(drawn)]) == 0
    printed = capsys.readouterr().out
    answer = json.loads(out.read_text())
    assert [p["schedule"] for p in answer["predictions"]] == list(planner.SCHEDULES)
    assert len(planner.SCHEDULES) == 6
    steps = [p["step_s"] for p in answer["predictions"]]
    assert max(steps) == pytest.approx(steps[0])  # nothing overlaps
    for one in answer["predictions"]:
        assert f"{one['step_s'] * 1e3:.2f}" in printed
        parts = one["compute_s"] + one["exposed_s"] + one["input_s"]
        assert parts == pytest.approx(one["step_s"])
    assert "assumed: 50 TFLOP/s" in printed
    assert any(e["ph"] == "X" for e in json.loads(drawn.read_text())["traceEvents"])


def test_several_streams_are_counted_wherever_their_schedule_is_named(capsys):
    words = ["simulate", "--profile", str(DATA / "b-caffe" / "tmp4comm.log"), "--format", "b-caffe",
             "--schedule", "wfbp,multi-stream", "--scaling", "--links", "1gbit", "--workers", "2",
             "--streams", "3"]  # fmt: skip
    assert cli.main([*words, "--json", "-"]) == 0
    assert [p["streams"] for p in json.loads(capsys.readouterr().out)["predictions"]] == [1, 3]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert said.count("multi-stream") == said.count("multi-stream (3 streams)") == 3
    assert "wfbp (" not in said


def test_b_caffes_published_step_is_replayed(capsys):
    words = ["simulate", "--profile", str(DATA / "b-caffe" / "tmp4comm.log"), "--format", "b-caffe",
             "--schedule", "wfbp", "--measured-exchanges", "--json", "-"]
    assert cli.main(words) == 0
    step = json.loads(capsys.readouterr().out)["predictions"][0]["step_s"]
    assert step * 1e3 == pytest.approx(452.2 - 190.2, abs=0.1)  # without the other program's constant


@pytest.mark.parametrize("words, message", [
    (["--model", "bert-huge"], "model: unknown name 'bert-huge', known: bert-base, bert-large"),
    (["--model", "gpt2", "--link", "fast"], "fast"),
    (["--model", "gpt2", "--schedule", "asap"], "schedule: unknown name 'asap', known: bsp"),
    (["--model", "gpt2", "--workers", "0"], "workers: 0, must be at least 1"),
    (["--model", "gpt2", "--workers", "-3"], "workers: -3"),
    (["--model", "gpt2", "--bandwidth", "12"], "12"),
    (["--model", "gpt2", "--tflops", "50000000000000"], "flops_per_s"),
    (["--profile", "/nowhere.json"], "/nowhere.json: cannot be read"),
])
def test_bad_words_are_one_line(words, message, capsys):
    assert cli.main(["simulate", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_profile_that_cannot_be_right_names_the_place(tmp_path, capsys):
    path = tmp_path / "run.json"
    path.write_text(one_layer(batch=0))
    assert cli.main(["simulate", "--profile", str(path)]) == 2
    assert f"{path}: batch: 0, must be at least 1 sample" in capsys.readouterr().err


def test_predictions_are_of_the_steps_behind_the_first_ones(capsys):
    def said(codec):
        assert cli.main(["simulate", "--model", "resnet50", "--workers", "8", "--link", "1gbit", "--schedule",
                         "bsp", "--codec", f"{codec}=2GB/s,8GB/s", "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    lasting, warmed = said("topk:1%"), said("topk:1%,warmup=50,start=100")
    assert warmed["predictions"] == lasting["predictions"] and warmed["compression"] == lasting["compression"]
    # 100 dense steps, then 50 each at 25%, 6.25% and 1.5625%.
    note = ("'topk:1%,warmup=50,start=100': times are those of 'topk:1%', from step 250 on; the first step "
            "sends 'none'")
    assert note in warmed["notes"] and note not in lasting["notes"]
