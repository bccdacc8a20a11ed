"""The one step that a benchmark keeps of a run: which it is, what it says, how small it stays."""

import json
import random
import re

import pytest
from bench_support import bench, trainer
from rank_processes import needs_torch

from gradwire.bench.report import Report
from gradwire.bench.timeline import KEPT, MOST_SPANS, Steps

pytest.importorskip("sklearn", reason="the digits come from scikit-learn")


def event(step, buckets=2):
    """A step of 1 ms: bucket b is compressed from 300 + 100 b on, and its exchange ends with wait."""
    return {
        "event": "timeline",
        "rank": 0,
        "step": step,
        "caller_us": [["forward", 0, 250], ["backward", 250, 600], ["wait", 600, 900], ["update", 900, 1000]],
        "buckets_us": [
            [300 + 100 * b, 350 + 100 * b, 350 + 100 * b, 440 + 100 * b, 70, 0] for b in range(buckets)
        ],
    }


def observed(times, **options):
    steps = Steps()
    for number, step_ms in enumerate(times, 1):
        steps.observe(event(number, **options), step_ms)
    return steps


def test_the_step_is_the_median_of_the_second_half():
    # The first half is slow, as before a plan is chosen; 5 6 7 8 9 follow in another order.
    found = observed([90, 91, 92, 93, 94, 7, 9, 5, 8, 6]).document()
    assert (found["step"], found["step_ms"]) == (6, 7)
    assert observed([3.0]).document()["step"] == 1
    assert Steps().document() is None
    # Of a long run the last ones are kept alone.
    assert observed([1.0] * KEPT + [2.0] * KEPT).document()["step"] > KEPT


def test_with_local_steps_one_that_exchanges_is_taken():
    steps = Steps()
    for number in range(1, 41):
        steps.observe(event(number, buckets=2 if number % 10 == 0 else 0), 5.0 if number % 10 == 0 else 1.0)
    assert steps.document()["step"] in (30, 40)


def test_tracks_have_what_each_thread_did_and_when():
    found = observed([1.0]).document()["tracks"]
    assert [track["name"] for track in found] == ["caller", "compression", "exchange", "decoding"]
    by_name = {t["name"]: [(s["name"], s["begin_ms"], s["ms"]) for s in t["spans"]] for t in found}
    assert by_name["caller"] == [
        ("forward", 0, 0.25), ("backward", 0.25, 0.35), ("wait", 0.6, 0.3), ("update", 0.9, 0.1),
    ]  # fmt: skip
    assert by_name["compression"] == [("bucket 0", 0.3, 0.05), ("bucket 1", 0.4, 0.05)]
    assert by_name["exchange"] == [("bucket 0", 0.35, 0.09), ("bucket 1", 0.45, 0.09)]
    # Of 70 us of coding 50 were compression: 20 at the end of the exchange.
    assert by_name["decoding"] == [("bucket 0", 0.42, 0.02), ("bucket 1", 0.52, 0.02)]


@pytest.mark.parametrize("buckets", [1, 5, 60, 400])
@pytest.mark.parametrize("streams", [1, 4, 16])
def test_a_case_stays_below_4_kb_and_covers_the_same_time(buckets, streams):
    at = event(1, buckets=0)
    begins = sorted(random.Random(7).sample(range(300, 100_000, 7), buckets))
    at["buckets_us"] = [[b, b + 3, b + 4, b + 6, 4, i % streams] for i, b in enumerate(begins)]
    steps = Steps()
    steps.observe(at, 100.0)
    found = steps.document()
    text = json.dumps({"rows": [{"timeline": found}]}, indent=1)  # as a report is written
    assert len(text.encode()) < 4096
    assert sum(len(track["spans"]) for track in found["tracks"]) <= MOST_SPANS
    names = [span["name"] for span in found["tracks"][0]["spans"]]
    assert names == ["forward", "backward", "wait", "update"]
    for track in found["tracks"][1:]:
        last = max(track["spans"], key=lambda span: span["begin_ms"])
        parts = [int(s["name"].split()[0]) if s["name"].endswith("buckets") else 1 for s in track["spans"]]
        assert len(parts) <= buckets and sum(parts) <= buckets
        assert last["begin_ms"] + last["ms"] <= (begins[-1] + 6) / 1e3 + 1e-9
    (compression,) = [t for t in found["tracks"] if t["name"] == "compression"]
    assert compression["spans"][0]["begin_ms"] == begins[0] / 1e3


def test_of_several_seeds_the_first_has_the_step():
    report = Report([], {}, [], "")
    runs = [("1gbit", "none", 1), ("1gbit", "none", 2), ("1gbit", "int4", 2), ("none", "none", 2)]
    for link, method, seed in runs:
        row = {"link": link, "method": method, "seed": seed, "workload": "mlp", "variant": "v"}
        report.add(row, [], (), {"step": seed})
    assert [row.get("timeline") for row in report.rows] == [{"step": 1}, None, {"step": 2}, {"step": 2}]


def check(rows, methods, seeds):
    assert [(row["method"], row["seed"]) for row in rows] == [(m, s) for s in seeds for m in methods]
    for row in rows:
        assert ("timeline" in row) == (row["seed"] == seeds[0])
    for row in rows[: len(methods)]:
        step = row["timeline"]
        assert row["steps"] // 2 < step["step"] <= row["steps"]
        assert len(json.dumps(step, indent=1).encode()) < 4096
        tracks = {track["name"]: track["spans"] for track in step["tracks"]}
        caller = tracks["caller"]
        assert [s["name"] for s in caller][:2] == ["forward", "backward"]
        # The caller is always at something, and that is the step.
        assert sum(span["ms"] for span in caller) == pytest.approx(step["step_ms"], rel=0.01, abs=0.02)
        if row.get("peer"):
            assert list(tracks) == ["caller"]
            continue
        for name in ("compression", "exchange"):
            for span in tracks.get(name, []):  # a dense bucket may take no microsecond: no span
                assert 0 <= span["begin_ms"] <= span["begin_ms"] + span["ms"] <= step["step_ms"] + 0.05
        # A bucket leaves when it is compressed.
        coded = {span["name"]: span["begin_ms"] for span in tracks.get("compression", [])}
        assert tracks["exchange"] and (coded or row["method"] == "none")
        alone = [span for span in tracks["exchange"] if re.match("bucket", span["name"])]
        assert all(coded.get(span["name"], 0) <= span["begin_ms"] for span in alone)


def test_a_real_run_keeps_a_step_of_every_method(tmp_path):
    methods = ["none", "topk:1%,int4"]
    code, _, err = bench(
        *("--trainer", trainer(), "--json", tmp_path / "out.json", "--output", tmp_path / "plots"),
        *("--workers", 2, "--hidden", "64,64", "--bucket-kib", 8, "--batch-size", 32, "--timeout", 20),
        *("--link-mode", "pacing", "--links", "20mbit", "--max-steps", 12, "--stop-at-target", 0),
        *("--methods", "none;topk:1%+int4", "--seeds", 2),
    )
    assert code == 0, err
    check(json.loads((tmp_path / "out.json").read_text())["rows"], methods, [1, 2])


@needs_torch
def test_torch_workers_keep_one_too(tmp_path):
    methods = ["int4", "ddp"]
    code, _, err = bench(
        *("--trainer", "torch", "--json", tmp_path / "out.json", "--output", tmp_path / "plots"),
        *("--workers", 2, "--links", "none", "--link-mode", "pacing", "--timeout", 60),
        *("--methods", ";".join(methods), "--max-steps", 8, "--stop-at-target", 0, "--batch-size", 8),
        timeout=300,
    )
    assert code == 0, err
    check(json.loads((tmp_path / "out.json").read_text())["rows"], methods, [1])
