"""What compressors cost on this machine, kept between runs (gradwire.codec_cache)."""

import json
import logging
import os
import subprocess
import sys

import pytest

import gradwire

if not gradwire.build_info()["features"]["planner"]:
    pytest.skip("this build has no planner", allow_module_level=True)

from gradwire import codec_cache, planner
from gradwire.codec_cache import cache_file, cached_codecs, needed_codecs

_COSTS = (1e-5, 2e9, 3e-6, 4e9)


@pytest.fixture
def measured(monkeypatch):
    """The specs that are measured, which then cost _COSTS."""
    asked = []

    def measure(specs, threads=1, repeats=5):
        asked.extend((spec, threads) for spec in specs)
        return dict.fromkeys(specs, _COSTS)

    monkeypatch.setattr(codec_cache, "measure_codecs", measure)
    monkeypatch.setattr(codec_cache, "_told", set())
    return asked


def test_a_compressor_is_measured_once_for_a_machine_threads_and_version(
        measured, tmp_path, monkeypatch):
    file = tmp_path / "a" / "b.json"
    assert cached_codecs(["int8", "topk:1%,int4"], file=file) == {
        "int8": _COSTS, "topk:1%,int4": _COSTS}
    assert cached_codecs(["topk:0.01,int4", "int4"], file=file) == {
        "topk:0.01,int4": _COSTS, "int4": _COSTS}  # the first is known by another text
    assert measured == [("int8", 1), ("topk:1%,int4", 1), ("int4", 1)]
    cached_codecs(["int8"], 2, file=file)
    assert measured[3:] == [("int8", 2)]
    for name, value in (("cpu", "another"), ("version", "9.9")):
        with monkeypatch.context() as patch:
            if name == "cpu":
                patch.setattr("gradwire.bench.machine.machine", lambda cpu=value: {"cpu": cpu})
            else:
                patch.setattr(codec_cache._core, "build_info", lambda version=value: {"version": version})
            del measured[:]
            cached_codecs(["int8"], file=file)
            assert measured == [("int8", 1)], name
    del measured[:]
    cached_codecs(["int8", "int4"], file=file)
    assert measured == []
    assert os.listdir(file.parent) == ["b.json"]


def test_what_is_measured_is_what_the_planner_measures(tmp_path):
    found = cached_codecs(["int8"], file=tmp_path / "costs")
    # Compressing 4 MiB, of which nobody knows the time here: but no machine takes 10 s or 1 us.
    floor, rate, _, _ = found["int8"]
    assert 1e-6 < floor + 2**22 / rate < 10
    assert cached_codecs(["int8"], file=tmp_path / "costs") == found
    link = planner.PlannedLink("1gbit")
    planner.plan_buckets([("w", 1 << 20, 0.0)], link=link, world_size=2, specs=["int8"],
                         codecs={**found, "bf16": _COSTS})


@pytest.mark.parametrize("text", [
    "", "{", "[]", '{"format": "other"}', '{"format": "gradwire.codecs", "version": 2}',
    '{"format": "gradwire.codecs", "version": 1}',
    '{"format": "gradwire.codecs", "version": 1, "machines": {"m": 1}}',
    '{"format": "gradwire.codecs", "version": 1, "machines": {"m": {"int8": [1, 2, 3]}}}',
    '{"format": "gradwire.codecs", "version": 1, "machines": {"m": {"int8": [1, 2, 3, -1]}}}',
    '{"format": "gradwire.codecs", "version": 1, "machines": {"m": {"int8": [1, 2, 3, "4"]}}}',
    '{"format": "gradwire.codecs", "version": 1, "machines": {"m": {"int8": [1, 2, 3, NaN]}}}',
    '{"format": "gradwire.codecs", "version": 1, "machines": {"m": {"int8": [1, 2, 3, 1e999]}}}',
    '{"format": "gradwire.codecs", "version": 1, "machines": {"m": {"int8": [1, 2, 3, 1%s]}}}' % ("0" * 400),
    '{"format": "gradwire.codecs", "version": 1, "machines": {"m": {"int8": [3601, 2, 3, 4]}}}',
    '{"format": "gradwire.codecs", "version": 1, "machines": {"m": {"int8": [1, 1e16, 3, 4]}}}',
    '{"format": "gradwire.codecs", "version": 1, "machines": {"\\ud800": {}}}',
    "[" * 100000, "9" * 5000, " " * (17 << 20), b"\xff\xfe",
], ids=lambda text: str(text[:40]))
def test_a_damaged_cache_is_told_once_and_replaced(measured, tmp_path, caplog, text):
    file = tmp_path / "costs"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with caplog.at_level(logging.WARNING, "gradwire"):
        assert cached_codecs(["int8"], file=file) == {"int8": _COSTS}
    (record,) = caplog.records
    assert str(file) in record.message and "timed anew" in record.message
    assert json.loads(file.read_text())["version"] == 1
    cached_codecs(["int8"], file=file)
    assert measured == [("int8", 1)]
    assert len(caplog.records) == 1


def test_a_cache_that_is_no_file_is_told_and_not_waited_for(measured, tmp_path, caplog):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        assert cached_codecs(["int8"], file=tmp_path / name) == {"int8": _COSTS}
        assert "it is no file), compressors are timed anew" in caplog.text
        caplog.clear()


def test_a_plan_is_made_with_a_broken_cache_and_a_line_says_so(tmp_path):
    cache = tmp_path / "gradwire" / "codecs.json"
    cache.parent.mkdir()
    cache.write_text("[" * 100000)
    profile = planner.profile_of_model("bert-large", 5e13)
    (tmp_path / "step.json").write_text(profile)
    done = subprocess.run(
        [sys.executable, "-m", "gradwire", "plan", "--profile", tmp_path / "step.json", "--workers", "4",
         "--specs", "int8"], env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"{cache}: cannot be used (nested more than 100 deep), compressors are timed anew" in done.stderr
    assert "int8" in json.loads(cache.read_text())["machines"].popitem()[1]


def test_a_cache_that_cannot_be_written_is_told_once(measured, tmp_path, caplog):
    (tmp_path / "file").touch()
    for _ in range(2):  # a folder that is a file: refused to root too
        assert cached_codecs(["int8"], file=tmp_path / "file" / "costs") == {"int8": _COSTS}
    assert measured == [("int8", 1)] * 2
    written = [r.message for r in caplog.records if "cannot be written" in r.message]
    assert len(written) == 1 and written[0].startswith(str(tmp_path))


def test_what_the_time_does_not_allow_is_left_out(measured, tmp_path, caplog):
    file = tmp_path / "costs"
    cached_codecs(["int8"], file=file)
    with caplog.at_level(logging.INFO, "gradwire"):
        assert cached_codecs(["int4", "int8"], file=file, budget_s=0.0) == {"int8": _COSTS}
    assert measured == [("int8", 1)]
    assert caplog.messages == ["int4 is not timed, 0 s for probes are over"]


def test_times_that_follow_no_law_are_measured_twice_and_left_out(tmp_path, monkeypatch, caplog):
    calls = []

    def measure(specs, threads=1, repeats=5):
        calls.append(specs)
        raise gradwire.InvalidArgument("fit: does not grow")

    monkeypatch.setattr(codec_cache, "measure_codecs", measure)
    with caplog.at_level(logging.INFO, "gradwire"):
        assert cached_codecs(["int8"], file=tmp_path / "costs") == {}
    assert len(calls) == 2 and caplog.messages == ["int8 is not timed: fit: does not grow"]
    assert not (tmp_path / "costs").exists()


def test_whoever_needs_all_is_told_which_follows_no_law(tmp_path, monkeypatch):
    def measure(specs, threads=1, repeats=5):
        if specs == ["int4"]:
            raise gradwire.InvalidArgument("no law")
        return dict.fromkeys(specs, _COSTS)

    monkeypatch.setattr(codec_cache, "measure_codecs", measure)
    assert needed_codecs(["int8"], 2, file=tmp_path / "a") == {"int8": _COSTS}
    with pytest.raises(gradwire.InvalidArgument, match="codec int4: what it takes followed no law"):
        needed_codecs(["int8", "int4"], file=tmp_path / "a")


def test_an_unknown_compressor_is_refused_before_anything_is_measured(measured, tmp_path):
    with pytest.raises(gradwire.InvalidArgument, match="zip"):
        cached_codecs(["int8", "zip"], file=tmp_path / "costs")
    assert measured == []


@pytest.mark.parametrize(("given", "folder"), [
    ("/somewhere", "/somewhere"), ("relative", "/home/one/.cache"), ("", "/home/one/.cache"),
    (None, "/home/one/.cache")])
def test_the_cache_is_where_users_keep_them(monkeypatch, given, folder):
    monkeypatch.setenv("HOME", "/home/one")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert str(cache_file()) == f"{folder}/gradwire/codecs.json"
