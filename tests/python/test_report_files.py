"""Reading, refusing and writing files: what the command says, and what is left when it fails."""

import base64
import gzip
import json
import os
import subprocess
import sys

import bench_support
import pytest
from report_case import document

from gradwire.bench.errors import UsageError
from gradwire.report import sources, timeline

_MAIN = bench_support._MAIN.replace("gradwire.bench import", "gradwire.report import")


def report(*words, **options):
    done = subprocess.run(
        [sys.executable, "-c", _MAIN, *map(str, words)], capture_output=True, text=True, timeout=60, **options
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def result(tmp_path):
    path = tmp_path / "out.json"
    path.write_text(json.dumps(document(seeds=(1, 2))))
    return path


@pytest.mark.parametrize("suffix", ["html", "json"])
def test_a_report_can_be_read_again_and_gives_the_same(result, tmp_path, suffix):
    first, second = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
    code, out, err = report(result, "--output", first)
    assert (code, err) == (0, "")
    assert "At 50 Mbit/s take" in out and f"wrote {first}" in out
    assert report(first, "--output", second)[0] == 0
    assert first.read_bytes() == second.read_bytes()


def test_without_output_it_is_markdown_on_the_terminal(result):
    code, out, err = report(result)
    assert (code, err) == (0, "")
    assert out.startswith("# Which gradient compression")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(schema="gradwire-bench/2"), "schema: 'gradwire-bench/2', expected"),
        (lambda d: d.pop("schema"), "schema: None, expected 'gradwire-bench/1'"),
        (lambda d: d.update(rows={}), "rows: {}, expected a list"),
        (lambda d: d["rows"][3].update(step_ms="fast"), "rows[3].step_ms: 'fast', expected a finite number"),
        (lambda d: d["rows"][0].update(link=5), "rows[0].link: 5, expected a text"),
        (lambda d: d["rows"][0].pop("seed"), "rows[0].seed: None, expected a finite number"),
        (lambda d: d["rows"].append(d["rows"][0]), "stands in rows[0] already, expected each once"),
        (lambda d: d["curves"][0]["points"][1].update(accuracy=[]), "curves[0].points[1].accuracy: []"),
        (lambda d: d.update(machine=[]), "machine: [], expected an object"),
        (lambda d: d.update(links=["50mbit"]), "links[0]: '50mbit', expected an object"),
        (lambda d: d.update(command_line=[1]), "command_line[0]: 1, expected a text"),
        (lambda d: d["settings"].update(bucket_kib="1024"), "settings.bucket_kib: '1024', expected a finite"),
        (lambda d: d["rows"][0].update(world_size=10**30), "rows[0].world_size: 1000000000000000000000"),
        (lambda d: d["rows"][0].update(step_ms=-1), "rows[0].step_ms: -1, expected a finite number, "),
        (lambda d: d["rows"][0].update(step_ms=1e-320), "rows[0].step_ms: 1e-320, expected a finite number"),
        (lambda d: d["rows"][0].update(decisions=[[]]), "rows[0].decisions[0]: [], expected an object or"),
        (lambda d: d["rows"][0].update(link="\ud800"), "rows[0].link: '\\ud800', expected a text of whole"),
        (lambda d: d["rows"][0]["timeline"].update(step=0.5), "rows[0].timeline.step: 0.5, expected a"),
        (lambda d: d["rows"][0]["timeline"]["tracks"][1].update(spans=[]), "tracks[1].spans: [], exp"),
        (lambda d: d["curves"][2].pop("points"), "curves[2].points: None, expected a list"),
    ],
)  # fmt: skip
def test_other_files_are_refused_with_place_value_and_what_was_expected(result, change, said):
    changed = json.loads(result.read_text())
    change(changed)
    result.write_text(json.dumps(changed))
    code, out, err = report(result, "--output", result.parent / "x.html")
    assert (code, out) == (2, "")
    assert err.startswith(f"gradwire report: {result}") and said in err
    assert err.count("\n") == 1
    assert not (result.parent / "x.html").exists()


def _page(results):
    packed = base64.b64encode(gzip.compress(results, mtime=0))
    return b'<script id="gradwire-results">' + packed + b"</script>"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "line 1, column 2"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        (b"[1]", "[1], expected a JSON file of gradwire bench"),
        (b"<html>nothing</html>", "HTML without results"),
        (b'<script id="gradwire-results">AAAA</script>', "its results cannot be unpacked"),
        (b"[" * 100000, "nested more than 100 deep, expected a JSON file"),
        (b"[" * 101 + b"]" * 101, "nested more than 100 deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number of 5000 digits, expected numbers up to 1.8e308"),
        (b'{"a": [0, ' + b"9" * 309 + b"]}", "a[1]: 999999999"),
        (b'{"schema": "gradwire-report/1", "results": [{"document": {"schema": 1}}]}', "schema: 1, expected"),
        (_page(b"0" * (65 << 20)), "cannot be unpacked (more than 64 MiB are packed in it)"),
        (_page(b"[]")[:-30] + b"AA</script>", "its results cannot be unpacked"),
        (b" " * ((64 << 20) + 1), "has more than 64 MiB, expected a JSON file"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path, content, said):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        sources.read(path)
    assert said in str(caught.value)


def test_numbers_beyond_all_bounds_are_refused(result):
    text = result.read_text().replace('"step_ms": ', '"step_ms": 1e999, "was": ', 1)
    result.write_text(text)
    code, _, err = report(result)
    assert code == 2 and "rows[0].step_ms: inf, expected a finite number" in err


def test_outputs_that_cannot_be_are_refused_first(result, tmp_path):
    for words, said in (
        (["--output", tmp_path / "x.pdf"], "expected a name ending in .html, .md, .json"),
        (["--output", tmp_path / "no" / "x.html"], "is no writable folder"),
        (["--output", result], "is one of the files to read"),
    ):
        code, _, err = report(result, *words)
        assert code == 2 and said in err, err
    assert report(tmp_path / "none.json")[0] == 2


def test_a_full_disk_leaves_the_old_file(result, tmp_path):
    path = tmp_path / "x.html"
    path.write_text("old")
    # A limit on the size of files stands in for the disk's.
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n{_MAIN}"
    import signal

    done = subprocess.run(
        [sys.executable, "-c", limited, str(result), "--output", str(path)],
        capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )  # fmt: skip
    assert done.returncode == 1
    assert "could not write" in done.stderr
    assert path.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["out.json", "x.html"]


def trace():
    def span(pid, tid, name, ts, dur, step):
        return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur, "args": {"step": step}}

    events = [{"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "caller"}}]
    for step in (7, 8, 9):
        at = 1000 * step
        events += [span(0, 0, "backward", at, 400, step), span(0, 2, "bucket 0", at + 100, 500, step)]
        events += [span(1, 0, "backward", at, 999, step)]
    return {"traceEvents": events}


def test_the_timeline_is_one_step_of_the_first_rank(result, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace()))
    step = timeline.read(path)
    assert step.step == 8
    assert [(t.name, [(s.name, s.begin_ms, s.ms) for s in t.spans]) for t in step.tracks] == [
        ("caller", [("backward", 0.0, 0.4)]),
        ("thread 2", [("bucket 0", 0.1, 0.5)]),
    ]
    page = tmp_path / "x.html"
    assert report(result, "--trace", path, "--output", page)[0] == 0
    assert "What overlaps in a step" in page.read_text()
    odd = [[{"ph": "X", "ts": ts, "dur": dur}] for ts, dur in ((10**300, 1), (1, -1), (True, 1))]
    for wrong in ({}, {"traceEvents": []}, {"traceEvents": [1]}, [[[]] * 9], *odd):
        path.write_text(json.dumps(wrong))
        with pytest.raises(UsageError, match="expected a trace"):
            timeline.read(path)


def test_a_trace_is_shown_whatever_its_threads_say_of_themselves(tmp_path):
    odd = trace()
    odd["traceEvents"] += [{"ph": "M", "name": "thread_name", "pid": 0, "tid": 2, "args": ["codec"]}]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(odd))
    assert [track.name for track in timeline.read(path).tracks] == ["caller", "thread 2"]


def test_a_command_line_that_no_shell_could_read_is_shown_as_it_is(result, tmp_path):
    changed = json.loads(result.read_text())
    changed["command_line"] = ["it's", "bench"]
    result.write_text(json.dumps(changed))
    code, out, err = report(result)
    assert (code, err) == (0, "") and "it's bench" in out


def test_the_benchmark_writes_the_report_too(tmp_path):
    page, out = tmp_path / "x.html", tmp_path / "x.json"
    code, _, err = bench_support.bench(
        "--workers", 2, "--links", "none", "--methods", "none", "--trainer", bench_support.FAKE,
        "--json", out, "--report", page, "--output", tmp_path / "plots",
    )  # fmt: skip
    assert code == 0, err
    (source,) = sources.read(page)
    assert source.document["rows"] == json.loads(out.read_text())["rows"]
    code, _, err = bench_support.bench("--report", tmp_path / "x.pdf")
    assert code == 2 and "--report" in err and ".html" in err
