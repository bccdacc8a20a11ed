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
    for steps_s, interval_s in (([3.0, 1.0, 2.0], (1.0, 3.0)), ([3.0], (3.0, 3.0))):
        assert table.row_of({}, 2.0, steps_s, (True, True))["interval_s"] == interval_s


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


def from_nothing(form, floor, rate):
    return form.Line(((0.0, floor), (1e9, floor + 1e9 / rate)))


def probe_of(form, ranks, bits_per_s, alpha, rate, cpu_s=0.0, hand_over_s=0.0):
    """cpu_s: of each message, whatever its size."""
    cpu = form.Line(((8.0, cpu_s), (float(1 << 24), cpu_s)))
    return form.Probe(ranks, bits_per_s, straight(form, alpha, rate), cpu, hand_over_s)


def test_messages_take_what_those_of_like_size_took(form):
    line = form.line_through([(100, 5.0), (300, 9.0), (100, 1.0), (100, 2.0), (200, 4.0)])
    assert line.points == ((100, 2.0), (200, 4.0), (300, 9.0))
    found = [line.seconds(size) for size in (0, 100, 150, 200, 250, 300, 400)]
    assert found == pytest.approx([2.0, 2.0, 3.0, 4.0, 6.5, 9.0, 14.0])
    # Times that fall are noise: neighbours share their mean.
    assert form.line_through([(1, 3.0), (2, 6.0), (3, 4.0), (4, 8.0)]).points == (
        (1, 3.0), (2, 5.0), (3, 5.0), (4, 8.0))


def test_links_nobody_probed_take_the_nearest_probe(form):
    probes = [probe_of(form, 2, 1e8, 1e-4, 1e8 / 8), probe_of(form, 2, 1e9, 2e-4, 1e9 / 8),
              probe_of(form, 4, 1e9, 3e-4, 0.5e9 / 8)]

    def line_at(ranks, rate):
        return form.probe_at(probes, ranks, rate).line

    assert line_at(2, 1e8).seconds(1e6) == pytest.approx(1e-4 + 8e6 / 1e8)
    assert line_at(2, 2e8).seconds(1e6) == pytest.approx(1e-4 + 8e6 / 2e8)
    # Half the rate was had there; it is here too.
    assert line_at(8, 5e8).seconds(1e6) == pytest.approx(3e-4 + 8e6 / 2.5e8, rel=1e-3)
    # Between two and four ranks: half of what each would take at that rate.
    halves = (1e-4 + 8e6 / 2e8 + 3e-4 + 8e6 / 1e8) / 2
    assert line_at(3, 2e8).seconds(1e6) == pytest.approx(halves, rel=1e-3)
    three = form.probe_at([probe_of(form, 2, 1e9, 0.0, 1e8, 0.01, 0.1),
                           probe_of(form, 4, 1e9, 0.0, 1e8, 0.03, 0.2)], 3, 1e9)
    assert three.cpu.seconds(1e6) == pytest.approx(0.02) and three.hand_over_s == pytest.approx(0.15)


def test_exchanges_are_messages_of_their_size(form):
    line = straight(form, 0.001, 1e6)
    # By gather each of 3 others gets the payload and a frame of 64 bytes.
    assert form.exchange_seconds("gather", 1000, 5000, 4, line) == pytest.approx(3 * (0.001 + 5064 / 1e6))


def test_a_step_of_one_bucket_is_the_sum_of_its_parts(form):
    numel = 1 << 20
    profiles = {2: profile([("a", numel, 0.05)], 2)}
    probe = probe_of(form, 2, 1e8, 0.001, 1e8 / 8)
    # Measured of one rank: two share the core.
    codecs = {"fp16": {1: form.Codec(from_nothing(form, 0.001, 4e9), from_nothing(form, 0.002, 2e9))}}
    found = form.expected(form.Case("m", 1, "fp16", "100mbit", 2), 1e8, profiles, {"a": (1024, 1024)},
                          [probe], codecs, cores=1)
    dense = 4.0 * numel
    payload = len(gradwire.Feedback("fp16", numel).compress(__import__("numpy").ones(numel, "float32")))
    # Encoded, and half of it once more by the owner of the sums; decoded in slices, and the sums.
    codec = 1.5 * (0.001 + dense / 4e9) + 2 * (0.002 + dense / 2e9)
    # Two messages of half the payload, 64 bytes of frame each.
    exchange = 2 * 0.001 + (payload + 128) / (1e8 / 8)
    # The profiled step took 0.07 s, 0.01 more than its parts; two ranks share the core for codecs.
    assert found["step_s"] == pytest.approx(0.07 + 2 * codec + exchange)


def test_the_decoding_of_gathered_payloads_grows_with_ranks(form):
    profiles = {4: profile([("a", 1 << 16, 0.05)], 4)}
    arguments = (1e8, profiles, {"a": (256, 256)}, [probe_of(form, 4, 1e8, 0.0, 1e15)])
    free, paid = [
        form.expected(form.Case("m", 1, "topk:1%@gather", "x", 4), *arguments,
                      {"topk:1%": {4: form.Codec(decode=from_nothing(form, floor, 1e15))}}, cores=4)["step_s"]
        for floor in (0.0, 0.1)]
    assert paid - free == pytest.approx(4 * 0.1)


def test_exchanges_take_their_processor_time_from_backward(form):
    # The first bucket, of 1 MiB, leaves when half of backward is still to come and hides behind it.
    made = profile([("rest", 16, 0.2), ("sent", 1 << 18, 0.1)], 4)
    made["step"].update(measured_s=0.24, io_s=0.0)
    shapes = {"rest": (16,), "sent": (512, 512)}

    def step_s(cores, **costs):
        probes = [probe_of(form, 4, 1e9, 0.01, 1e15, **costs)]
        return form.expected(form.Case("m", 1, "none", "x", 4), 1e9, {4: made}, shapes, probes,
                             {"none": {4: form.Codec()}}, cores)["step_s"]

    # Six messages of 10 ms for each of two buckets; the second one's are behind backward.
    idle = step_s(2)
    assert idle == pytest.approx(0.24 + 0.06)
    # Four ranks on two cores: the six hidden messages' time, twice.
    assert step_s(2, cpu_s=0.001) - idle == pytest.approx(2 * 6 * 0.001)
    assert step_s(4, cpu_s=0.001) - idle == pytest.approx(6 * 0.001)
    assert step_s(8, cpu_s=0.001) == pytest.approx(idle)  # a core to spare
    # Two buckets are handed over.
    assert step_s(2, hand_over_s=0.003) - idle == pytest.approx(2 * 0.003)


@pytest.mark.parametrize("ranks, cores, alone, cpu, beside", [
    (2, 2, 0.1, 0.02, 0.1),  # wants less than half of its core
    (2, 2, 0.1, 0.08, 0.16),  # gets half of it
    (4, 2, 0.1, 0.02, 0.1), (4, 2, 0.1, 0.04, 0.16),  # a quarter of a core each
    (4, 2, 0.1, 9.0, 0.2),  # more than there was
    (1, 2, 0.1, 0.05, 0.1), (1, 2, 0.1, 0.1, 0.15)])  # beside two threads
def test_an_exchange_beside_computing_by_hand(form, ranks, cores, alone, cpu, beside):
    assert form.beside_computing(alone, cpu, ranks, cores) == pytest.approx(beside)


def test_the_rule_in_a_line_is_the_planners(form):
    for ranks, cpu in ((2, 0.03), (2, 0.09), (4, 0.02), (4, 0.045), (3, 0.06)):
        document = profile([("rest", 0, 0.0), ("sent", 1 << 18, 0.1)], ranks)
        del document["layers"][0]["ready_s"]
        document["layers"][0]["backward_s"] = 9.9  # much of backward behind the only gradient
        document["layers"][1].update(backward_s=0.1, exchange_s=0.1, exchange_cpu_s=cpu)
        cluster = planner.Cluster(workers=ranks, measured_exchanges=True, cores_per_worker=2 / ranks)
        exchange_s = planner.simulate(json.dumps(document), cluster)["exchange_s"]
        assert exchange_s == pytest.approx(form.beside_computing(0.1, cpu, ranks, 2)), (ranks, cpu)


def test_codecs_between_and_beyond_the_ranks_that_coded(form):
    codecs = {r: form.Codec(from_nothing(form, 0.001 * r, 1e9), from_nothing(form, 0.0, 1e9 / r))
              for r in (1, 2, 4)}
    for ranks, longer in ((1, 1), (2, 2), (3, 3), (4, 4), (8, 8)):
        codec = form.codec_at(codecs, ranks, 2)
        assert codec.encode.seconds(0) == pytest.approx(0.001 * longer)
        assert codec.decode.seconds(1e6) == pytest.approx(0.001 * longer)
    assert form.coding_behind("gather", 4) == (4, 0) and form.coding_behind("two_shot", 4) == (2, 0.25)


def test_codecs_are_lines_by_spec_and_ranks(load):
    predict = load("predict")
    measured = {"encode": [[100, 1.0], [200, 3.0]], "decode": [[100, 1.0], [200, 1.0]]}
    codecs = predict.codecs_of({"codecs": [{"ranks": 2, "specs": {"int4": measured}}]})
    assert codecs["int4"][2].encode.seconds(300) == 5.0 and codecs["int4"][2].decode.seconds(300) == 1.0
    assert codecs["none"][2].encode.seconds(1e9) == 0.0
    assert predict.coding_specs(["none", "int4", "topk:1%@gather", "bf16"]) == ["bf16", "int4", "topk:1%"]


def test_what_computes_beside_is_counted_out(load):
    probe = load("predict_probe")
    assert probe.processor_seconds(1000, 1.5, 0.001) == pytest.approx(0.5)
    assert probe.processor_seconds(1000, 0.9, 0.001) == 0.0  # a hiccup of the machine
    assert [probe.busy_threads(2, ranks) for ranks in (1, 2, 3, 4)] == [2, 1, 1, 1]
    assert probe.busy_threads(7, 3) == 3
    with probe.Busy(2) as busy:
        begin = busy.now()
        while busy.now()[0] - begin[0] < 20:
            pass
        pieces, process_s, seconds = probe.passed(begin, busy.now())
    assert pieces >= 20 and process_s > 0 and seconds > 0
    assert busy.now()[0] == busy.now()[0]  # they have ended


def test_probes_are_lines_through_exchanges(load):
    predict = load("predict")

    def point(numel, alone_s):
        return {"numel": numel, "alone_s": alone_s, "cpu_s": alone_s / 10, "beside_s": 2 * alone_s}

    points = [point(n, 2 * 3 * (0.0005 + 4 * n / 4 / 12e6)) for n in (1 << 12, 1 << 16, 1 << 20)]
    rows = [{"ranks": 4, "link": "100mbit", "part": part, "points": points[part:], "hand_over_s": 0.1 + part}
            for part in range(2)]
    rows.append({"ranks": 2, "link": "1gbit", "part": 0, "hand_over_s": 0.2,
                 "points": [point(n, n / 1e8) for n in (10, 100, 1000)]})
    four, two = predict.probes_of({"probes": rows})
    for size in (1 << 12, 1 << 16, 1 << 20):
        assert four.line.seconds(size) == pytest.approx(0.0005 + size / 12e6)
        assert four.cpu.seconds(size) == pytest.approx((0.0005 + size / 12e6) / 10)
    assert (four.ranks, four.bits_per_s, four.hand_over_s) == (4, 1e8, pytest.approx(0.6))
    # Two messages of half the elements: 2 n bytes in half the time.
    assert two.ranks == 2 and two.line.seconds(2e6) == pytest.approx(2e6 / 4e8)
    rule = predict.sharing({"probes": rows, "machine": {"cores": 2}})
    assert len(rule) == 8 and rule[0]["error"] == pytest.approx(-0.5)  # a tenth of a core is not slowed


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
    record.found["codecs"] = {"bf16": [0.0, 1e9, 0.0, 1e9]}  # as earlier versions wrote it
    record.keep()
    with pytest.raises(errors.UsageError, match="did not probe what exchanges take of the processors"):
        predict.Record(file, settings, [])


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
