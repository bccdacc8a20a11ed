"""`gradwire simulate`: exchanges, compressors, uneven machines, pictures, and inputs without effect."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest

import gradwire
from gradwire import cli
from gradwire.cnns import CNNS

if not gradwire.build_info()["features"]["planner"]:
    pytest.skip("this build has no planner", allow_module_level=True)

from gradwire import codec_cache

DATA = Path(__file__).parent.parent / "planner" / "data"


@pytest.fixture
def one_layer(tmp_path):
    """1 s forward, 1 s backward, 4 MB of gradient; a link of 1 s a message and 4 MB/s."""
    path = tmp_path / "one.json"
    path.write_text(json.dumps({
        "format": "gradwire.profile", "version": 1, "model": "one", "batch": 10, "ranks": 1, "step": {},
        "layers": [{"name": "a", "numel": 1_000_000, "forward_s": 1.0, "backward_s": 1.0}]}))
    return ["simulate", "--profile", str(path), "--schedule", "wfbp", "--alpha", "1s", "--bandwidth", "4MB/s",
            "--json", "-"]


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """What compressors take here, without a clock; the specs that were timed."""
    asked = []

    def measure(specs, *_):
        asked.append(list(specs))
        return dict.fromkeys(specs, (0.125, 8e6, 0.25, 16e6))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(codec_cache, "measure_codecs", measure)
    return asked


def answer(capsys, words):
    assert cli.main(words) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def step_of(capsys, words):
    return answer(capsys, words)["predictions"][0]["step_s"]


@pytest.mark.parametrize("words, exchange_s", [
    ("--exchange tree", 6 + 6), ("--exchange rabenseifner", 6 + 2 * 7 / 8), ("--exchange ring", 14 + 14 / 8),
    ("--exchange gather", 7 + 7), ("--exchange two_shot", 14 + 14 / 8),
    ("--exchange parameter_server --servers 4", 16 + 4),
    ("--gpus-per-node 4 --intra 1GB/s", 2 + 1 + 6 * (57e-6 + 1e-3)),
    ("--worker-links 1x7,0.5", 2 * (14 + 14 / 8)),
])
def test_exchanges_take_their_closed_forms(one_layer, words, exchange_s, capsys):
    assert step_of(capsys, [*one_layer, "--workers", "8", *words.split()]) == pytest.approx(2 + exchange_s)


def test_the_slowest_worker_and_a_file_of_workers_decide(one_layer, tmp_path, capsys):
    words = [*one_layer, "--workers", "4"]
    ring = 6 + 6 / 4
    assert step_of(capsys, [*words, "--speeds", "1,0.5x2,1"]) == pytest.approx(2 * 2 + ring)
    path = tmp_path / "workers.json"
    path.write_text('[{"workers": 3}, {"speed": 0.25, "link": 0.5}]')
    assert step_of(capsys, [*words, "--uneven", str(path)]) == pytest.approx(2 * 4 + 2 * ring)


def test_a_codec_costs_time_and_saves_bytes(one_layer, capsys):
    words = [*one_layer, "--workers", "2"]
    # Half the bytes, and 4 MB at 8 MB/s to encode and at 16 MB/s to decode.
    halved = 2 + 0.5 + 2 * (1 + 0.25) + 0.25
    assert step_of(capsys, [*words, "--codec", "bf16=8MB/s,16MB/s"]) == pytest.approx(halved, rel=1e-3)
    # Every payload to every worker, each of which decodes both.
    found = answer(capsys, [*words, "--codec", "topk:1%=8MB/s,16MB/s"])
    assert found["exchange"] == "gather" and 20 < found["compression"] < 100
    gathered = 2 + 0.5 + 1 + 1 / found["compression"] + 2 * 0.25
    assert found["predictions"][0]["step_s"] == pytest.approx(gathered, rel=1e-6)


def test_a_codec_without_rates_is_timed_here(one_layer, timed, capsys):
    for _ in range(2):  # the second time it is known
        found = answer(capsys, [*one_layer, "--workers", "2", "--codec", "int8,block=128"])
        assert timed == [["int8,block=128"]] and found["codec"] == [0.125, 8e6, 0.25, 16e6]
    answer(capsys, ["plan", *one_layer[1:3], "--workers", "2", "--specs", "int8,block=128", "--json", "-"])
    assert timed[1:] == [["bf16"]]


def test_processors_that_exchanges_take_from_computing(tmp_path, capsys):
    """A gradient of 4 MB that leaves 3 s before backward ends."""
    path = tmp_path / "two.json"
    path.write_text(json.dumps({
        "format": "gradwire.profile", "version": 1, "model": "two", "batch": 1, "ranks": 4,
        "step": {"hand_over_s": 0.25}, "layers": [
            {"name": "rest", "numel": 0, "forward_s": 1.0, "backward_s": 3.0},
            {"name": "sent", "numel": 1_000_000, "forward_s": 1.0, "backward_s": 1.0}]}))
    words = ["simulate", "--profile", str(path), "--schedule", "wfbp", "--workers", "4", "--alpha", "0.1s",
             "--bandwidth", "10MB/s", "--json", "-"]
    usual = 6 + 0.25
    assert step_of(capsys, words) == pytest.approx(usual)
    assert step_of(capsys, [*words, "--hand-over", "1s"]) == pytest.approx(7)
    # Six messages of 1 MB: 0.01 s and a fiftieth of a second each, in six times 0.2 s.
    costs = [*words, "--message-cpu", "10ms", "--cpu-bandwidth", "50MB/s"]
    assert step_of(capsys, costs) == pytest.approx(usual)
    assert step_of(capsys, [*costs, "--cores-per-worker", "0.5"]) == pytest.approx(usual + 2 * 0.18)
    assert step_of(capsys, [*costs, "--cores-per-worker", "1"]) == pytest.approx(usual + 0.18)
    assert step_of(capsys, [*costs, "--cores-per-worker", "2"]) == pytest.approx(usual)
    wide = [*costs, "--cores-per-worker", "2", "--threads", "2"]
    assert step_of(capsys, wide) == pytest.approx(usual + 0.09)
    named = {row["input"]: row for row in answer(
        capsys, [*costs, "--cores-per-worker", "0.5", "--sensitivity"])["predictions"][0]["sensitivities"]}
    whole = usual + 0.36
    assert named["processor time of messages"]["elasticity"] == pytest.approx(2 * 0.06 / whole, rel=1e-3)
    assert named["processor rate of bytes"]["elasticity"] == pytest.approx(-2 * 0.12 / whole, rel=1e-3)
    assert named["cores per worker"]["elasticity"] == pytest.approx(-0.36 / whole, rel=1e-3)
    assert named["hand_over"]["elasticity"] == pytest.approx(0.25 / whole, rel=1e-3)
    assert named["processor time of exchanges"]["no_effect"] == "it is the links' messages that take it"


@pytest.mark.parametrize("words, message", [
    ("--cores-per-worker -1", "cores_per_worker: -1, must be above 0, or 0 for enough"),
    ("--threads 0", "threads: 0, must be at least 1"),
    ("--message-cpu 3", "'3'"),
    ("--cpu-bandwidth 0GB/s", "0GB/s"),
    ("--hand-over 2h", "step.hand_over_s: 7200 s, must be at most 3600 s"),
    ("--exchange star", "exchange: unknown name 'star', known: ring, tree"),
    ("--exchange ring --codec topk:1%=1GB/s,1GB/s",
     "ring does not carry 'topk:1%', expected one of two_shot, gather, parameter_server"),
    ("--exchange parameter_server --servers 0", "servers: 0, must be at least 1"),
    ("--codec bf16=1GB/s", "rates of encoding and of decoding"),
    ("--codec zip=1GB/s,1GB/s", "unknown name 'zip'"),
    ("--speeds 1,0.5", "--speeds: 2 workers, expected as many as --workers, 4"),
    ("--speeds 1x3,0", "--speeds: 0.0, expected a share"),
    ("--speeds 1xx3", "'1xx3', expected a share such as"),
    ("--uneven /nowhere", "/nowhere: cannot be read"),
    ("--measured /nowhere", "/nowhere: cannot be read"),
    ("--plot picture.gif", "'picture.gif', expected a file that ends in .svg"),
])
def test_bad_words_are_one_line(one_layer, words, message, capsys):
    assert cli.main([*one_layer, "--workers", "4", *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("text, message", [
    ("{}", "dict, expected a list of workers"), ("[", "line 1, column 2: Expecting value, expected JSON"),
    ('[{"pace": 1}]', "[0]: expected an object with some of speed"),
    ('[{"speed": -1, "workers": 4}]', "[0].speed: -1, expected a share"),
    ('[{"workers": 9}]', "[0].workers: 9, expected a whole number from 1 to 4"),
    ("[{}, {}]", "2 workers, expected as many as --workers, 4"),
])
def test_a_file_of_workers_that_cannot_be_names_the_place(one_layer, tmp_path, text, message, capsys):
    path = tmp_path / "workers.json"
    path.write_text(text)
    assert cli.main([*one_layer, "--workers", "4", "--uneven", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"{path}" in error and message in error


@pytest.mark.parametrize("words, said", [
    ("--workers 4 --intra nvlink", ["--intra has no effect: each machine has one worker (--gpus-per-node)"]),
    ("--workers 4 --streams 4", ["--streams has no effect: no schedule but multi-stream has several"]),
    ("--workers 4 --streams 4 --schedule multi-stream", []),
    ("--workers 1 --exchange tree", ["--exchange has no effect: one worker exchanges nothing"]),
    ("--workers 4 --stream-bandwidth 5MB/s",
     ["--stream-bandwidth has no effect: the link carries no more than that"]),
    ("--workers 4 --stream-bandwidth 2MB/s", []),
    ("--workers 4 --message-cpu 1ms --threads 2",
     ["--message-cpu has no effect: there are enough cores (--cores-per-worker)",
      "--threads has no effect: there are enough cores (--cores-per-worker)"]),
    ("--workers 4 --cores-per-worker 0.5",
     ["--cores-per-worker has no effect: exchanges take nothing of the processors (--message-cpu, "
      "--cpu-bandwidth)"]),
    ("--workers 4 --cores-per-worker 0.5 --message-cpu 1ms", []),
    ("--workers 4 --link nvlink", ["--link has no effect: --alpha and --bandwidth say all of it"]),
    ("--workers 4 --seed 3 --tflops 9 --batch 2 --step 1 --servers 2",
     ["--servers has no effect: ring has no servers",
      "--seed has no effect: nothing is drawn without --jitter",
      "--tflops has no effect: --profile has times of its own",
      "--batch has no effect: the format profile says its own",
      "--step has no effect: it is of the format kineto"]),
])
def test_inputs_without_effect_are_said(one_layer, words, said, capsys):
    found = answer(capsys, [*one_layer, *words.split()])["without_effect"]
    if "--workers 1" in words:
        said = [f"--{name} has no effect: one worker exchanges nothing"
                for name in ("alpha", "bandwidth")] + said
    assert found == said


def test_what_is_said_to_have_no_effect_has_none(one_layer, capsys):
    words = [*one_layer, "--workers", "4"]
    usual = step_of(capsys, words)
    for idle in ("--intra nvlink", "--streams 5", "--stream-bandwidth 5MB/s", "--link nvlink", "--seed 9"):
        assert step_of(capsys, [*words, *idle.split()]) == usual, idle


def test_the_convolutional_networks_have_their_published_sizes_and_work():
    totals = {name: (sum(row[1] for row in rows()), sum(row[2] for row in rows()) / 2e9)
              for name, rows in CNNS.items()}
    # Parameters and billions of multiply-adds of an image, as torchvision's documentation lists them.
    published = {"resnet50": (25_557_032, 4.09), "resnet101": (44_549_160, 7.80),
                 "resnet152": (60_192_808, 11.51), "vgg16": (138_357_544, 15.47),
                 "vgg19": (143_667_240, 19.63), "alexnet": (61_100_840, 0.71)}
    assert set(totals) == {*published, "googlenet"}
    for name, (parameters, work) in published.items():
        assert totals[name][0] == parameters, name
        assert totals[name][1] == pytest.approx(work, abs=0.005), name
    with open(DATA / "layers" / "resnet50.csv", encoding="utf-8") as table:
        rows = [(row["tensor"], int(row["elements"])) for row in csv.DictReader(table)]
    assert sorted(count for _, count in rows) == sorted(row[1] for row in CNNS["resnet50"]())


def test_googlenet_has_the_tensors_that_caffe_trained():
    # B-Caffe's log has every tensor, rounded up to 64 elements.
    log = (DATA / "b-caffe" / "tmpcomm.log").read_text(encoding="utf-8")
    logged = [int(count) for count in re.findall(r"\[\d+, (\d+),", log)][-128:]
    assert sorted(-(-row[1] // 64) * 64 for row in CNNS["googlenet"]()) == sorted(logged)


def test_a_convolutional_network_is_simulated_and_has_no_tokens(capsys):
    words = ["simulate", "--model", "resnet50", "--workers", "2", "--batch", "32", "--tflops", "1",
             "--json", "-"]
    found = answer(capsys, words)["predictions"][0]
    # 3 times 32 images of 4.089 billion multiply-adds, at 10^12 operations per second.
    assert found["compute_s"] == pytest.approx(3 * 32 * 2 * 4.089184256e-3, rel=1e-6)
    assert cli.main([*words, "--tokens", "5"]) == 2
    assert "resnet50 reads images" in capsys.readouterr().err


def test_the_measured_step_lies_beside_the_predicted_one(one_layer, tmp_path, capsys):
    measured, both = tmp_path / "measured.json", tmp_path / "both.json"
    measured.write_text(json.dumps({"traceEvents": [
        {"ph": "X", "name": "backward", "pid": 0, "tid": 0, "ts": 500, "dur": 7, "args": {"step": 0}}]}))
    assert cli.main([*one_layer, "--workers", "2", "--trace", str(both), "--measured", str(measured)]) == 0
    events = [e for e in json.loads(both.read_text())["traceEvents"] if e["ph"] == "X"]
    assert [e["ts"] for e in events if e["pid"] == 1] == [pytest.approx(2e6)]
    assert {e["pid"] for e in events} == {0, 1}


def test_pictures_are_drawn_of_all_three_commands(one_layer, tmp_path, timed, capsys):
    pytest.importorskip("matplotlib")
    drawn = tmp_path / "steps.svg"
    words = [*one_layer, "--workers", "8", "--scaling", "--sensitivity", "--schedule", "bsp,wfbp"]
    assert cli.main([*words, "--plot", str(drawn)]) == 0
    text = drawn.read_text()
    for part in ("computing", "exposed exchange", "ideal", "wfbp", "inter.alpha", "one, 8 workers"):
        assert part in text, part
    first = drawn.read_bytes()
    assert cli.main([*words, "--plot", str(drawn)]) == 0
    assert drawn.read_bytes() == first  # the same numbers, the same picture
    assert cli.main([*words, "--links", "1mbit,1gbit", "--compression", "4", "--plot", str(drawn)]) == 0
    assert "wfbp, not compressed" in drawn.read_text() and "link, Gbit/s" in drawn.read_text()
    planned = tmp_path / "plan.svg"
    assert cli.main(["plan", *one_layer[1:3], "--workers", "2", "--specs", "", "--plot", str(planned)]) == 0
    assert "backward ends" in planned.read_text() and "bf16, dense for all" in planned.read_text()
    rented = tmp_path / "front.png"
    assert cli.main(["recommend", "--step", "V100=200ms", "--gradient", "100MB", "--samples", "1e6",
                     "--batch", "64", "--budget", "1h", "--plot", str(rented)]) == 0
    assert rented.read_bytes().startswith(b"\x89PNG")


def test_the_timeline_has_computing_and_messages_of_every_schedule(one_layer, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    drawn = tmp_path / "timeline.svg"
    words = [*one_layer, "--workers", "2", "--schedule", "bsp,wfbp"]
    assert cli.main([*words, "--timeline", str(drawn)]) == 0
    text = drawn.read_text()
    rows = ("bsp: computing", "bsp: exchange", "wfbp: computing", "wfbp: exchange")
    for part in (*rows, "forward", "backward"):
        assert f">{part}<" in text, part
    # 2 s of computing, then 2 messages of 1 s and half of 4 MB at 4 MB/s each
    assert len(re.findall(">5000 ms<", text)) == 2
    assert cli.main([*one_layer, "--timeline", "a.gif"]) == 2
    assert "--timeline: 'a.gif', expected" in capsys.readouterr().err


def test_other_links_beside_the_one_asked_for(one_layer, capsys):
    words = [*one_layer, "--workers", "2", "--alpha", "1s", "--links", "32mbit,64mbit"]
    points = answer(capsys, words)["predictions"][0]["links"]
    # 2 s of computing, 2 messages of 1 s each, and 4 MB over 4 and 8 MB/s
    assert [(p["link"], p["bytes_per_s"], p["step_s"]) for p in points] == [
        ("32mbit", 4e6, pytest.approx(5)), ("64mbit", 8e6, pytest.approx(4.5))]
    assert all("dense_step_s" not in p for p in points)
    points = answer(capsys, [*words, "--compression", "4"])["predictions"][0]["links"]
    assert [p["step_s"] for p in points] == [pytest.approx(4.25), pytest.approx(4.125)]
    assert [p["dense_step_s"] for p in points] == [pytest.approx(5), pytest.approx(4.5)]
    assert "--links has no effect: one worker exchanges nothing" in answer(
        capsys, [*one_layer, "--workers", "1", "--links", "1gbit"])["without_effect"]


def test_gradients_that_travel_alone_are_said_unless_it_was_asked_for(tmp_path, capsys):
    path = tmp_path / "small.json"
    layers = [{"name": name, "numel": 1000, "forward_s": 1.0, "backward_s": 1.0} for name in "abcd"]
    path.write_text(json.dumps({"format": "gradwire.profile", "version": 1, "model": "small", "batch": 1,
                                "ranks": 1, "step": {}, "layers": layers}))
    said = "wfbp: every gradient travels alone; as DDP does it: --bucket ddp"
    words = ["simulate", "--profile", str(path), "--json", "-"]
    found = answer(capsys, words)
    assert found["notes"] == [said]
    assert {p["schedule"]: p["exchanges"] for p in found["predictions"]}["wfbp"] == 4
    assert cli.main(words[:-2]) == 0 and said in capsys.readouterr().out.splitlines()
    for more in (["--bucket", "ddp"], ["--bucket", "1B"], ["--schedule", "bsp,mg-wfbp"], ["--workers", "1"]):
        assert answer(capsys, [*words, *more])["notes"] == [], more
    large = [dict(layer, numel=10_000_000) for layer in layers]  # 40 MB: DDP sends each alone, too
    path.write_text(path.read_text().replace(json.dumps(layers), json.dumps(large)))
    assert answer(capsys, words)["notes"] == []


def test_without_matplotlib_a_picture_is_refused_before_the_work(one_layer, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main([*one_layer, "--plot", "a.svg"]) == 2
    assert "needs matplotlib" in capsys.readouterr().err


def test_plan_and_recommend_say_what_has_no_effect(one_layer, timed, capsys):
    words = ["plan", *one_layer[1:3], "--workers", "2", "--specs", "", "--json", "-"]
    found = answer(capsys, [*words, "--streams", "1,4"])
    assert found["without_effect"] == [
        "--streams has no effect: one stream carries all of the link (--stream-bandwidth)"]
    assert answer(capsys, [*words, "--streams", "1,4", "--stream-bandwidth", "1gbit"])["without_effect"] == []
    rent = ["recommend", "--step", "V100=1s", "--gradient", "1MB", "--samples", "1", "--batch", "1",
            "--budget", "1h", "--json", "-"]
    found = answer(capsys, [*rent, "--counts", "2,4", "--node-link", "nvlink", "--step", "H100=1s"])
    assert found["without_effect"] == [
        "--node-link has no effect: no configuration is one instance with several GPUs",
        "--step H100 has no effect: no instance of the price table has this GPU"]


def test_plan_refuses_bad_counts_before_it_times_anything(one_layer, monkeypatch, capsys):
    monkeypatch.setattr(codec_cache, "measure_codecs", lambda *_: pytest.fail("timed first"))
    for words, message in (("--workers 0", "--workers: 0"), ("--workers 2 --streams 0", "--streams: 0")):
        assert cli.main(["plan", *one_layer[1:3], *words.split()]) == 2
        assert f"{message}, must be at least 1" in capsys.readouterr().err
