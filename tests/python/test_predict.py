"""bench/predict.py: intervals, the order of plans, the model's form, and a record that goes on."""

import importlib
import json
from pathlib import Path

import pytest

import gradwire
from gradwire import planner
from gradwire.bench import errors

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module


@pytest.fixture
def table(load):
    return load("predict_table")


@pytest.fixture
def form(load):
    return load("predict_model")


# Ranks of the 95% interval of a median, from any table of the sign test.
@pytest.mark.parametrize("n, low, high", [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (12, 3, 10),
                                          (15, 4, 12), (20, 6, 15), (25, 8, 18), (30, 10, 21)])
def test_the_interval_of_a_median_is_that_of_the_sign_test(table, n, low, high):
    values = [float((7 * i) % n + 1) if n % 7 else float(n - i) for i in range(n)]
    assert sorted(values) == [float(i) for i in range(1, n + 1)]
    assert table.median_interval(values) == (low, high)


def test_few_values_are_their_own_interval(table):
    assert table.median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert table.median_interval([3.0]) == (3.0, 3.0)


def test_kendalls_tau_counts_the_pairs_that_can_be_told_apart(table):
    measured = [1.0, 2.0, 3.0, 4.0]
    apart = [(m - 0.1, m + 0.1) for m in measured]
    assert table.kendall_tau([10, 20, 30, 40], measured, apart) == (1.0, 6)
    assert table.kendall_tau([40, 30, 20, 10], measured, apart) == (-1.0, 6)
    # One of six pairs is the wrong way round: (5 - 1) / 6.
    assert table.kendall_tau([20, 10, 30, 40], measured, apart) == (pytest.approx(4 / 6), 6)
    touching = [(0.9, 2.0), (2.0, 2.1), (2.9, 3.1), (3.9, 4.1)]
    assert table.kendall_tau([20, 10, 30, 40], measured, touching) == (1.0, 5)
    assert table.kendall_tau([1, 2], [1.0, 1.0], [(0, 2), (0, 2)]) == (None, 0)
    only = table.kendall_tau([20, 10, 30, 40], measured, apart, lambda i, j: (i, j) == (0, 1))
    assert only == (-1.0, 1)


def case(**changed):
    return {"model": "mlp", "batch": 4, "method": "none", "link": "100mbit", "ranks": 2, **changed}


def test_errors_and_what_nobody_had_seen_are_summed_up(table, capsys):
    rows = [table.row_of(case(), 1.1, [1.0] * 9, (True, True)),
            table.row_of(case(method="int4"), 0.8, [0.9, 1.0, 1.1] * 3, (False, True)),
            table.row_of(case(ranks=4), 6.0, [4.0] * 9, (True, True))]
    assert [row["error"] for row in rows] == pytest.approx([0.1, -0.2, 0.5])
    found = table.summary(rows)
    assert found["mean_error"] == pytest.approx(0.8 / 3) and found["largest_error"] == pytest.approx(0.5)
    assert (found["unseen_combinations"], found["mean_error_unseen"]) == (1, pytest.approx(0.2))
    assert (found["kendall_tau"], found["pairs"]) == (1.0, 2)
    assert found["kendall_tau_within_jobs"] is None
    table.show(rows, markdown=False)
    told = capsys.readouterr().out
    assert "mean error 26.7%, largest 50.0%" in told and "tau 1.000 over the 2 pairs" in told


def profile(times, ranks=1):
    """times: (name, numel, ready_s) in the order of the forward pass."""
    layers = [{"name": n, "numel": numel, "dtype": "float32", "forward_s": 0.001, "backward_s": 0.001,
               "ready_s": ready, "update_s": 0.002} for n, numel, ready in times]
    return {"format": "gradwire.profile", "version": 1, "model": "m", "batch": 1, "ranks": ranks,
            "step": {"io_s": 0.003, "host_to_device_s": 0.0, "other_s": 0.004, "measured_s": 0.07},
            "layers": layers}


def test_buckets_are_ddps(form):
    # What DDP made on two GPUs, in elements, first the last layers: tests/planner has the trace.
    mib = 1 << 18  # elements
    made = profile([("a", 7 * mib, 0.9), ("b", 20 * mib, 0.8), ("none", 0, 0.0), ("c", 4 * mib, 0.7),
                    ("d", mib, 0.6), ("e", mib // 2, 0.5), ("f", mib // 2, 0.4)])
    del made["layers"][2]["ready_s"]
    names = [[made["layers"][i]["name"] for i in bucket] for bucket in form.buckets_of(made)]
    # 1 MiB, then at least 25 MiB: d, c and b are 25; a is what is left.
    assert names == [["f", "e"], ["d", "c", "b"], ["a"]]


def test_profiles_between_and_beyond_those_measured(form):
    one = profile([("a", 10, 0.01)], 1)
    four = profile([("a", 10, 0.04)], 4)
    profiles = {1: one, 4: four}
    assert form.profile_at(profiles, 4, 2)["layers"][0]["ready_s"] == 0.04
    assert form.profile_at(profiles, 3, 2)["layers"][0]["ready_s"] == pytest.approx(0.03)
    assert form.profile_at(profiles, 8, 2)["layers"][0]["ready_s"] == pytest.approx(0.08)
    assert form.profile_at({1: one}, 2, 2)["layers"][0]["ready_s"] == pytest.approx(0.01)
    assert form.profile_at({4: four}, 2, 2)["layers"][0]["ready_s"] == pytest.approx(0.02)
    assert form.profile_at({1: one}, 3, 2)["step"]["other_s"] == pytest.approx(0.006)
    assert one["layers"][0]["ready_s"] == 0.01  # what was measured stays


def straight(form, alpha, rate):
    """alpha + bytes / rate"""
    return form.Line(tuple((float(b), alpha + b / rate) for b in (8, 1 << 16, 1 << 24)))


def test_messages_take_what_those_of_like_size_took(form):
    line = form.line_through([(100, 5.0), (300, 9.0), (100, 1.0), (100, 2.0), (200, 4.0)])
    assert line.points == ((100, 2.0), (200, 4.0), (300, 9.0))
    found = [line.seconds(size) for size in (0, 100, 150, 200, 250, 300, 400)]
    assert found == pytest.approx([2.0, 2.0, 3.0, 4.0, 6.5, 9.0, 14.0])
    # Times that fall are noise: neighbours share their mean.
    assert form.line_through([(1, 3.0), (2, 6.0), (3, 4.0), (4, 8.0)]).points == (
        (1, 3.0), (2, 5.0), (3, 5.0), (4, 8.0))


def test_links_nobody_probed_take_the_nearest_probe(form):
    probes = [form.Probe(2, 1e8, straight(form, 1e-4, 1e8 / 8)),
              form.Probe(2, 1e9, straight(form, 2e-4, 1e9 / 8)),
              form.Probe(4, 1e9, straight(form, 3e-4, 0.5e9 / 8))]
    assert form.line_at(probes, 2, 1e8).seconds(1e6) == pytest.approx(1e-4 + 8e6 / 1e8)
    assert form.line_at(probes, 2, 2e8).seconds(1e6) == pytest.approx(1e-4 + 8e6 / 2e8)
    # Half the rate was had there; it is here too.
    assert form.line_at(probes, 8, 5e8).seconds(1e6) == pytest.approx(3e-4 + 8e6 / 2.5e8, rel=1e-3)


def test_exchanges_are_messages_of_their_size(form):
    line = straight(form, 0.001, 1e6)
    # By gather each of 3 others gets the payload and a frame of 64 bytes.
    assert form.exchange_seconds("gather", 1000, 5000, 4, line) == pytest.approx(3 * (0.001 + 5064 / 1e6))


def test_a_step_of_one_bucket_is_the_sum_of_its_parts(form):
    numel = 1 << 20
    profiles = {2: profile([("a", numel, 0.05)], 2)}
    probe = form.Probe(2, 1e8, straight(form, 0.001, 1e8 / 8))
    codecs = {"fp16": (0.001, 4e9, 0.002, 2e9)}
    found = form.expected(form.Case("m", 1, "fp16", "100mbit", 2), 1e8, profiles, {"a": (1024, 1024)},
                          [probe], codecs, cores=1)
    dense = 4.0 * numel
    payload = len(gradwire.Feedback("fp16", numel).compress(__import__("numpy").ones(numel, "float32")))
    codec = (0.001 + dense / 4e9) + 2 * (0.002 + dense / 2e9)
    # Two messages of half the payload, 64 bytes of frame each.
    exchange = 2 * 0.001 + (payload + 128) / (1e8 / 8)
    # The profiled step took 0.07 s, 0.01 more than its parts; two ranks share the core for codecs.
    assert found["step_s"] == pytest.approx(0.07 + 2 * codec + exchange)


def test_the_decoding_of_gathered_payloads_grows_with_ranks(form):
    profiles = {4: profile([("a", 1 << 16, 0.05)], 4)}
    arguments = (1e8, profiles, {"a": (256, 256)}, [form.Probe(4, 1e8, straight(form, 0.0, 1e15))])
    free = form.expected(form.Case("m", 1, "topk:1%@gather", "x", 4), *arguments,
                         {"topk:1%": (0, 0, 0, 0)}, cores=4)["step_s"]
    paid = form.expected(form.Case("m", 1, "topk:1%@gather", "x", 4), *arguments,
                         {"topk:1%": (0, 0, 0.1, 0)}, cores=4)["step_s"]
    assert paid - free == pytest.approx(4 * 0.1)


def test_probes_are_lines_through_exchanges(load):
    predict = load("predict")
    points = [[n, 2 * 3 * (0.0005 + 4 * n / 4 / 12e6)] for n in (1 << 12, 1 << 16, 1 << 20)]
    rows = [{"ranks": 4, "link": "100mbit", "part": part, "points": points[part:]} for part in range(2)]
    rows.append({"ranks": 2, "link": "1gbit", "part": 0, "points": [[n, n / 1e8] for n in (10, 100, 1000)]})
    four, two = predict.probes_of({"probes": rows})
    for size in (1 << 12, 1 << 16, 1 << 20):
        assert four.line.seconds(size) == pytest.approx(0.0005 + size / 12e6)
    assert (four.ranks, four.bits_per_s) == (4, 1e8)
    # Two messages of half the elements: 2 n bytes in half the time.
    assert two.ranks == 2 and two.line.seconds(2e6) == pytest.approx(2e6 / 4e8)


def test_a_record_goes_on_where_it_was_and_refuses_others(load, tmp_path):
    predict = load("predict")
    file = tmp_path / "found.json"
    settings = {"steps": 3}
    record = predict.Record(file, settings, ["--json", "x y"])
    record.add("profiles", model="mlp", batch=4, ranks=2, document={}, shapes={})
    again = predict.Record(file, settings, [])
    assert again.has("profiles", model="mlp", batch=4, ranks=2)
    assert not again.has("profiles", model="mlp", batch=8, ranks=2)
    assert again.found["command"] == "bench/predict.py --json 'x y'"
    with pytest.raises(errors.UsageError, match="is of other settings"):
        predict.Record(file, {"steps": 4}, [])


@pytest.mark.parametrize("words, told", [
    (["--models", "alexnet"], "--models: 'alexnet', expected some of mlp, cnn, bytes"),
    (["--places", "1:100mbit*"], "--places: '1:100mbit*', expected ranks from 2"),
    (["--places", "2:none*"], "expected a rate"),
    (["--places", "2:100mbit"], "probes no link"),
    (["--profiled", "0"], "--profiled: '0'"),
    (["--steps", "0"], "--steps 0")])
def test_bad_options_are_refused_before_anything_runs(load, capsys, words, told):
    assert load("predict").main(words) == 2
    assert told in capsys.readouterr().err


def test_profiles_are_written_for_the_planner(load, tmp_path):
    predict = load("predict")
    document = profile([("a", 10, 0.0123456789012)], 2)
    found = {"profiles": [{"model": "mlp", "batch": 1, "ranks": 2, "document": document}],
             "command": "bench/predict.py", "commit": "abc",
             "machine": {"cpu": "c", "cores": 2, "kernel": "k", "python": "3", "load_at_start": 0.5}}
    predict.write_profiles(found, tmp_path / "profiles")
    file = tmp_path / "profiles" / "mlp-batch1-ranks2.json"
    read = json.loads(planner.read_profile(str(file)))
    assert read["layers"][0]["ready_s"] == 0.012345679 and read["ranks"] == 2
    assert "at commit abc on c, 2 cores" in (tmp_path / "profiles" / "README.md").read_text()
