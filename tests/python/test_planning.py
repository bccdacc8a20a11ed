"""gradwire.planner and the commands `gradwire plan` and `gradwire recommend`."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradwire
from gradwire import cli, planner

ROOT = Path(__file__).resolve().parents[2]

if not gradwire.build_info()["features"]["planner"]:
    pytest.skip("this build has no planner", allow_module_level=True)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """What is timed here is not kept in the user's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def command(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "gradwire", *map(str, arguments)],
                          capture_output=True, text=True, timeout=120, **options)


def test_every_name_is_documented():
    for name in planner.__all__:
        assert getattr(planner, name).__doc__, name


def test_quantities_and_links():
    assert planner.parse_rate("10gbit") == 1.25e9
    assert planner.parse_seconds("60us") == pytest.approx(60e-6)
    link = planner.PlannedLink("1.2GB/s")
    link.alpha_s, link.stream_bytes_per_s = 1e-3, 0.5e9
    assert link.effective_bytes_per_s(2) == 1e9
    assert link.message_seconds(1e6, streams=2) == pytest.approx(2e-3)
    # A ring of 4 ranks: six messages of a quarter, each with a frame of 64 bytes.
    assert planner.exchange_seconds("ring", 250_000, 1_000_000, 4, link) == pytest.approx(
        6 * (1e-3 + (250_000 + 64) / 0.5e9))
    for preset in planner.link_presets():
        assert planner.PlannedLink(preset.name).bytes_per_s == preset.bytes_per_s and preset.source
    with pytest.raises(gradwire.InvalidArgument, match="carries nothing"):
        planner.PlannedLink("0gbit")
    with pytest.raises(gradwire.InvalidArgument, match="known: pcie3"):
        planner.PlannedLink("string")


def test_a_fit_finds_its_line():
    alpha, rate, residuals = planner.fit_line([(n, 1e-4 + n / 1e9) for n in (1e3, 1e5, 1e7)])
    assert (alpha, rate) == (pytest.approx(1e-4), pytest.approx(1e9))
    assert max(map(abs, residuals)) < 1e-9
    with pytest.raises(gradwire.InvalidArgument, match="does not grow"):
        planner.fit_line([(1, 1), (2, 1), (3, 1)])


def test_a_plan_of_two_gradients_by_hand():
    link = planner.PlannedLink("1GB/s")
    link.alpha_s = 0.0
    options = dict(link=link, world_size=2, codecs={"bf16": (1.0, 0, 1.0, 0)}, exchanges=["sum", "dense"])
    gradients = [("b", 250_000_000, 1.0), ("a", 250_000_000, 10.0)]
    plan = planner.plan_buckets(gradients, **options)
    # Each gradient of 1 GB takes a second on the line; the first one is through while backward runs.
    assert plan.end_s == pytest.approx(11.0, abs=1e-3)
    assert plan.backward_end_s == 10.0 and plan.exact
    assert [bucket["gradients"] for bucket in plan.buckets] == [["b"], ["a"]]
    assert {bucket["spec"] for bucket in plan.buckets} == {"none"}
    assert plan.candidates[plan.chosen]["behind_s"] == 0
    assert "chosen: none" in plan.explain()
    with pytest.raises(gradwire.InvalidArgument, match="costs of codec: unknown name 'int8'"):
        planner.plan_buckets(gradients, specs=["int8"], **options)
    with pytest.raises(gradwire.InvalidArgument, match="0 gradients"):
        planner.plan_buckets([], **options)


def test_a_slow_link_is_worth_compressing_for_and_a_fast_one_is_not():
    gradients = [(f"g{i}", 1_000_000, 0.01 * (i + 1)) for i in range(20)]
    codecs = {"bf16": (1e-4, 5e9, 1e-4, 5e9), "topk:1%": (1e-3, 1e9, 1e-4, 20e9)}
    specs = {
        rate: {bucket["spec"] for bucket in planner.plan_buckets(
            gradients, link=planner.PlannedLink(rate), world_size=4, codecs=codecs,
            specs=["topk:1%"]).buckets}
        for rate in ("100mbit", "400GB/s")}
    assert specs == {"100mbit": {"topk:1%"}, "400GB/s": {"none"}}


def test_a_breakdown_and_what_if():
    # BERT of arXiv 1910.05930: 63 % of the time of a cluster of all-reduce is communication.
    step = planner.StepDemand("BERT", flops=2.1e12, memory_bytes=107.3e9, input_bytes=46e3,
                              weight_bytes=1.5e9)
    rows = planner.break_down(step, "allreduce-cluster")
    assert rows["communication_share"] == pytest.approx(0.63, abs=0.005)
    assert rows["bottleneck"] == "ethernet"
    faster = planner.what_if(step, "allreduce-cluster", "ethernet", [12.5e9])[0]
    assert faster["gain"] == pytest.approx(1.80, abs=0.005) and faster["has_effect"]
    assert not planner.what_if(step, "1w1g", "ethernet", [12.5e9])[0]["has_effect"]
    hardware = planner.Hardware()
    hardware.ethernet_bytes_per_s = 12.5e9
    assert planner.break_down(step, "allreduce-cluster", hardware)["total_s"] == faster["total_s"]
    assert planner.moves_from(step, "ps")[0]["to"] == "1w1g"
    with pytest.raises(gradwire.InvalidArgument, match="known: 1w1g"):
        planner.break_down(step, "mesh")


def test_stalls():
    stalls = planner.find_stalls(one_gpu=6.0, all_gpus=8.0, two_hosts=12.0)
    assert stalls == {"interconnect": (2.0, 0.25), "network": (4.0, 0.5)}
    samples = [(n, b, 1 + 2 * n + 3 * b) for n, b in [(1, 1), (2, 1), (1, 5), (7, 3)]]
    assert planner.fit_stalls(samples) == pytest.approx((1, 2, 3, 1))
    assert planner.extrapolate_ring_stall(1.0, 2, 4) == 1.5
    assert planner.sampled_straggler_factor(0.1, 1) == 1
    assert planner.measured_straggler_factor([1.0, 3.0], 2) == 1.25  # (1 + 3 + 3 + 3) / 4 over 2


def test_a_recommendation_asks_for_every_configuration():
    asked = []

    def epoch_s(instance, count, plan):
        asked.append((instance.name, count, plan))
        return None if instance.gpus == 1 else 100.0 / count

    machines = [planner.Instance("small", "T4", 1, 1.0), planner.Instance("large", "H100", 8, 36.0)]
    found = planner.recommend(machines, epoch_s, budget_s=60, counts=[1, 2], plans=["none", "x"])
    assert len(asked) == 8 and len(found.configurations) == 4
    assert (found.chosen.count, found.chosen.epoch_s, found.chosen.cost_usd) == (2, 50.0, 1.0)
    none = planner.recommend(machines, epoch_s, budget_s=6)
    assert none.chosen is None and none.explain().startswith("no configuration meets the budget")
    with pytest.raises(RuntimeError, match="mine"):
        planner.recommend(machines, lambda *_: (_ for _ in ()).throw(RuntimeError("mine")), budget_s=6)


def test_codecs_are_measured_on_this_machine():
    specs = ["bf16", "powersgd:2", "powersgd:2,rounds=2"]  # the last two want matrices
    for spec in specs:
        for attempt in range(8):  # of which some meet a machine that is busy: then it says so
            try:
                codecs = planner.measure_codecs([spec], repeats=3)
                break
            except gradwire.InvalidArgument:
                assert attempt < 7
        floor, rate, decode_floor, decode_rate = codecs[spec]
        assert 0 <= floor < 1 and rate > 1e6 and 0 <= decode_floor < 1 and decode_rate > 1e6


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "profile.json"
    layers = [{"name": f"w{i}", "numel": 400_000, "forward_s": 0.001, "backward_s": 0.002}
              for i in range(6)]
    path.write_text(json.dumps({"format": "gradwire.profile", "version": 1, "model": "m", "batch": 8,
                                "ranks": 1, "step": {}, "layers": layers}))
    return path


def test_the_command_plan_prints_a_table_and_json(profile):
    done = command("plan", "--profile", profile, "--workers", 4, "--link", "100mbit", "--specs",
                   "topk:1%", "--json", profile.with_name("plan.json"))
    assert done.returncode == 0, done.stderr
    assert "topk:1%" in done.stdout and "chosen:" in done.stdout
    document = json.loads(profile.with_name("plan.json").read_text())
    assert sum(len(bucket["gradients"]) for bucket in document["buckets"]) == 6
    assert document["backward_end_s"] == pytest.approx(0.012)
    names = [candidate["name"] for candidate in document["candidates"]]
    assert any(name.startswith("none,") for name in names)
    assert any(name.startswith("bf16,") for name in names)


def test_the_command_plan_says_what_a_rank_will_hold(profile, monkeypatch, capsys):
    codec = (1e-5, 1e9, 1e-5, 1e9)
    monkeypatch.setattr("gradwire.codec_cache.needed_codecs",
                        lambda specs, threads: dict.fromkeys(specs, codec))  # fmt: skip
    file = profile.with_name("plan.json")
    assert cli.main(["plan", "--profile", str(profile), "--workers", "2",
                     "--specs", "int8;int8+residual=bf16", "--json", str(file)]) == 0  # fmt: skip
    document = json.loads(file.read_text())
    copy = document["gradient_bytes"]
    assert copy == 4 * 6 * 400_000
    memory = {c["name"].split(" for all")[0]: c["memory"] for c in document["candidates"]}
    assert memory["int8, gather"]["residuals"] == 2 * copy
    assert memory["int8,residual=bf16, gather"]["residuals"] == copy
    assert memory["int8,residual=bf16, gather"]["scratch"] > 0 == memory["int8, gather"]["scratch"]
    # The sum lies where the gradients do.
    dense = memory["none, dense"]
    assert dense["residuals"] == dense["payloads"] == dense["messages"] == 0 and dense["gradients"] == copy
    chosen = document["candidates"][document["chosen"]]
    held = sum(bytes for part, bytes in chosen["memory"].items() if part != "gradients")
    said = capsys.readouterr().out
    lines = said.splitlines()
    head = next(i for i, line in enumerate(lines) if "MB of a rank" in line)
    assert lines[head + 1].split()[-1] == f"{held / copy:.2f}"
    assert f"a copy is {copy / 1e6:.1f} MB" in said


def test_a_plan_says_what_a_rank_will_hold():
    named = [("body", (1000, 64)), ("head", (640, 100))]

    def memory(spec, workers=2, **options):
        return gradwire.make_plan(named, spec, **options).memory(workers)

    assert memory("int8,ef21")["estimates"] == memory("int8,ef21")["residuals"] == 8 * 128_000
    assert memory("topk:10%,momentum=0.9")["compressors"] == 8 * 128_000  # both buffers
    # Of one bucket in turn, from each rank.
    two, four = (memory("fp16", workers, exchange="gather", bucket_bytes=256_000)["messages"]
                 for workers in (2, 4))
    assert 2 * 128_000 < two < 2 * 129_000 and four == 2 * two
    with pytest.raises(gradwire.InvalidArgument, match="memory of 0 ranks"):
        memory("none", 0)
    with pytest.raises(gradwire.InvalidArgument, match="must divide the world size, 3"):
        memory("int8", 3, exchange="hierarchical", ranks_per_node=2)


def test_the_command_plan_reads_other_formats_and_refuses_files_that_are_not_there(profile):
    packed = profile.with_name("profile.json.gz")
    packed.write_bytes(gzip.compress(profile.read_bytes()))
    done = command("plan", "--profile", packed, "--workers", 2, "--specs", "", "--json", "-")
    assert json.loads(done.stdout)["workers"] == 2, done.stderr
    done = command("plan", "--profile", profile.with_name("none.json"), "--workers", 2)
    assert done.returncode == 2 and "none.json: cannot be read" in done.stderr, done.stderr
    done = command("plan", "--profile", profile, "--workers", 0, "--specs", "")
    assert done.returncode == 2 and "--workers: 0" in done.stderr, done.stderr


KINETO = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"}]}'
OTHERS = [
    (KINETO, "profile", "it looks like a Chrome trace, as torch.profiler writes it, which the format kineto "
     "reads (--format kineto)"),
    ('[{"id": 1, "name": "a", "type": "COMM_COLL_NODE"}]', "profile", "(--format chakra)"),
    ("Id\tName\tForward\tBackward\tComm\tSize\n0\tdata\t0\t0\t0\t0\n", "profile", "(--format columns)"),
    ("node1 -- Conv -- forward_compute_time=1, backward_compute_time=2, parameter_size=4", "profile",
     "(--format pipedream)"),
    ("I0207 16:23:08.1 35803 distributed.cpp:112] [0, 9408, 14744.1, 408]\n", "profile",
     "(--format b-caffe)"),
    ('{"format": "gradwire.profile", "version": 1}', "kineto", "(--format profile)"),
]  # fmt: skip


@pytest.mark.parametrize("text, format, says", OTHERS)
def test_a_file_of_another_format_is_answered_by_the_format_that_reads_it(text, format, says, tmp_path):
    path = tmp_path / "step.json"
    path.write_text(text)
    with pytest.raises(gradwire.InvalidArgument) as refused:
        planner.read_profile(str(path), format)
    assert str(path) in str(refused.value) and str(refused.value).endswith(says)


@pytest.mark.parametrize("format", ["profile", "kineto", "chakra"])
def test_pytorchs_own_execution_trace_is_answered_by_how_to_convert_it(format):
    path = ROOT / "tests/planner/data/pytorch/execution_trace.json"
    with pytest.raises(gradwire.InvalidArgument, match="chakra_converter makes a Chakra trace") as refused:
        planner.read_profile(str(path), format)
    assert str(refused.value).startswith(f"{path}: is PyTorch's execution trace (ExecutionTraceObserver, ")
    assert "looks like" not in str(refused.value)


def test_what_is_wrong_with_a_profile_of_the_format_that_was_said_is_not_answered_so(tmp_path):
    path = tmp_path / "step.json"
    own = '{"format": "gradwire.profile"}'
    for text, format in [(KINETO, "kineto"), (own, "profile"), ("{}", "profile")]:
        path.write_text(text)
        with pytest.raises(gradwire.InvalidArgument) as refused:
            planner.read_profile(str(path), format)
        assert "looks like" not in str(refused.value)


def test_a_file_whose_name_is_no_utf8_is_read_and_an_empty_one_is_called_empty(tmp_path):
    mlp_profile = planner.profile_of_model("resnet50", 1e12)
    path = tmp_path / os.fsdecode(b"n\xe9.json")
    path.write_text(mlp_profile)
    assert json.loads(planner.read_profile(str(path))) == json.loads(mlp_profile)
    path.write_text("{")
    with pytest.raises(gradwire.InvalidArgument, match=r"n\\udce9\.json: "):
        planner.read_profile(str(path))
    path.write_text("")
    for format in ("profile", "kineto", "chakra"):
        with pytest.raises(gradwire.InvalidArgument, match=f"is empty, expected a {format} in JSON"):
            planner.read_profile(str(path), format)


def test_the_command_plan_takes_a_model_by_name_as_simulate_does(capsys):
    from gradwire import cli

    words = ["plan", "--model", "gpt2", "--tflops", "40", "--batch", "4", "--workers", "2", "--specs", ""]
    assert cli.main([*words, "--json", "-"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert sum(bucket["numel"] for bucket in plan["buckets"]) == 124_439_808  # of its published dimensions
    # Backward is two thirds of its arithmetic: 2 x 2 operations for each weight but those looked up.
    step = planner.simulate(planner.profile_of_model("gpt2", 40e12, 4), planner.Cluster())
    assert plan["backward_end_s"] == pytest.approx(2 / 3 * step["compute_s"], rel=0.01)
    assert cli.main(words) == 0
    assert "assumed: 40 TFLOP/s per worker, 4 samples each" in capsys.readouterr().out
    assert cli.main([*words, "--step", "1"]) == 0
    assert "--step has no effect: it is of --profile" in capsys.readouterr().out


@pytest.mark.parametrize("name, option", [("plan", "[topk:1%,int4;int8]"), ("recommend", "--budget")])
def test_the_commands_have_help(name, option):
    done = command(name, "--help")
    assert done.returncode == 0 and option in done.stdout, done.stderr


def test_a_build_without_the_planner_says_so():
    code = ("import sys\nfrom gradwire import _core\n_core.planner_unavailable_reason = 'no json'\n"
            "from gradwire import cli, planner\ntry:\n  planner.plan_buckets\n"
            "except __import__('gradwire').Error as error:\n  print(error)\n"
            "sys.exit(cli.main(['plan', '--profile', 'x', '--workers', '2']))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "planner.plan_buckets: no json\n", done.stderr
    assert done.returncode == 1 and done.stderr == "gradwire plan: planner.PlannedLink: no json\n"


def test_the_command_recommend_finds_the_cheapest_in_time():
    words = ["recommend", "--step", "V100=200ms", "--gradient", "100MB", "--samples", 1e6, "--batch",
             64, "--link", "25gbe", "--json", "-"]
    found = json.loads(command(*words, "--budget", "30min").stdout)
    chosen = found["configurations"][found["chosen"]]
    within = [c for c in found["configurations"] if c["epoch_s"] <= 1800]
    assert chosen["cost_usd"] == min(c["cost_usd"] for c in within)
    assert all(c["instance"].startswith("p3") for c in found["configurations"])
    none = json.loads(command(*words, "--budget", "1ms").stdout)
    assert none["chosen"] is None
    said = command(*words[:-2], "--budget", "1ms")
    assert said.returncode == 0 and "no configuration meets the budget" in said.stdout


@pytest.mark.parametrize("wrong, says", [
    (["--budget", "5"], "--budget: '5', expected a time such as"),
    (["--budget", "1h", "--step", "K80=7"], "--step K80: '7', expected a time such as"),
    (["--budget", "1h", "--gradient", "100"], "--gradient: '100', expected an amount such as"),
    (["--budget", "1h", "--alpha", "9"], "--alpha: '9', expected a time such as"),
    (["--budget", "1h", "--step", "V100=1s"], "V100 is given twice"),
    (["--budget", "1h", "--plans", "fast"], "NAME=RATIO"),
    (["--budget", "1h", "--counts", "1,x"], "whole numbers"),
    (["--budget", "1h", "--link", "0gbit"], "carries nothing"),
    (["--budget", "1h", "--prices", "nothing.csv"], "nothing.csv cannot be read"),
])
def test_the_command_recommend_refuses_what_cannot_be(wrong, says):
    done = command("recommend", "--step", "V100=200ms", "--gradient", "100MB", "--samples", 1e6,
                   "--batch", 64, *wrong)
    assert done.returncode == 2 and says in done.stderr, done.stderr


def test_the_command_recommend_knows_the_gpus_that_have_a_price():
    done = command("recommend", "--step", "A9000=200ms", "--gradient", "100MB", "--samples", 1e6,
                   "--batch", 64, "--budget", "1h")
    told = "--step: no instance of the price table has A9000, known: K80, V100"
    assert done.returncode == 2 and told in done.stderr, done.stderr
