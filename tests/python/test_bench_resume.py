"""Sweeps that are interrupted, fail or meet a full disk, and go on."""

import json
import os
import signal
import subprocess
import sys

import bench_support
import pytest
from bench_support import FAKE, bench, fake, start

from gradwire.bench import ending, resume
from gradwire.bench.errors import UsageError

pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
pytest.importorskip("matplotlib", reason="the benchmark draws plots")

WELL = fake(rank=9, step=1000)


@pytest.fixture
def options(tmp_path):
    return [
        *("--trainer", FAKE, "--json", tmp_path / "out.json", "--output", tmp_path / "plots"),
        *("--workers", 2, "--links", "none", "--methods", "none,int4", "--link-mode", "pacing"),
    ]


def document(tmp_path):
    return json.loads((tmp_path / "out.json").read_text())


def keys(found):
    return [(row["seed"], row["method"]) for row in found["rows"]]


def test_an_interrupted_sweep_goes_on_and_equals_one_that_was_not(options, tmp_path):
    # Rank 1 hangs in the third run, int4's with seed 2; by then two rows are kept.
    hangs = dict(fake(rank=1, step=3, do="silent"), GRADWIRE_FAKE_ONLY="seed=2")
    process = start(*options, "--seeds", 2, environment=hangs)
    for line in process.stderr:
        if line.startswith("[2/4]"):
            break
    kept = document(tmp_path)  # whole although the process still runs
    assert (kept["ended"], keys(kept)) == ("running", [(1, "none"), (1, "int4")])
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "int4" in out  # the table of what was done
    assert document(tmp_path)["ended"] == "interrupted by SIGINT"
    code, out, err = bench(*options, "--seeds", 2, "--resume", environment=WELL)
    assert code == 0, err
    assert "out.json has 2 of 4 runs; 2 are left" in err
    found = document(tmp_path)
    assert found["ended"] == "complete"
    assert keys(found) == [(1, "none"), (1, "int4"), (2, "none"), (2, "int4")]
    assert found["rows"][:2] == kept["rows"]
    assert found["resumed"][0]["ended"] == "interrupted by SIGINT"
    assert len(found["curves"]) == 4
    # Nothing is left to do: it says the same once more, and a link more is a longer sweep.
    code, _, err = bench(*options, "--seeds", 2, "--resume", environment=WELL)
    assert (code, "0 are left" in err) == (0, True), err
    more = [*options, "--seeds", 2, "--links", "50mbit,none", "--resume"]
    code, _, err = bench(*more, environment=WELL)
    assert (code, "has 4 of 8 runs; 4 are left" in err) == (0, True), err
    links = [row["link"] for row in document(tmp_path)["rows"]]
    assert links == ["50mbit", "50mbit", "none", "none"] * 2  # as asked for, whenever made
    more = [*more, "--batch-size", "64,32"]  # a training more, at its own rate
    code, _, err = bench(*more, environment=WELL)
    assert (code, "has 8 of 16 runs; 8 are left" in err) == (0, True), err


def test_another_job_is_refused_with_the_setting_and_both_values(options, tmp_path):
    code, _, err = bench(*options, environment=WELL)
    assert code == 0, err
    before = (tmp_path / "out.json").read_bytes()
    for words, says in [
        (("--epochs", 7), "its epochs is 20, here it is 7; expected the same job"),
        (("--hidden", "8"), "its hidden is [512, 512, 512, 512, 512], here it is [8]"),
        (("--batch-size", 8), "has the run 'mlp, sgd:momentum=0.8,nesterov=1, batch 64: none on none"),
        (("--methods", "int4"), "has the run 'mlp, sgd:momentum=0.8,nesterov=1, batch 64: none on none"),
    ]:
        code, out, err = bench(*options, *words, "--resume", environment=WELL)
        assert (code, out) == (2, ""), words
        assert says in err
    assert (tmp_path / "out.json").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no JSON"),
        ("[]", "its schema is None, expected 'gradwire-bench/1'"),
        ('{"schema": "gradwire-bench/9"}', "its schema is 'gradwire-bench/9'"),
        ('{"schema": "gradwire-bench/1", "rows": [1], "curves": []}', "with a curve each"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, text, says):
    file = tmp_path / "former.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        resume._read(file)


def test_a_file_to_resume_must_be_named_and_there(options, tmp_path):
    code, _, err = bench("--resume", "--trainer", FAKE)
    assert (code, "--resume: names no file, expected" in err) == (2, True), err
    code, _, err = bench(*options, "--resume", tmp_path / "gone.json")
    assert (code, "gone.json: No such file" in err) == (2, True), err
    code, _, err = bench(*options, "--resume", environment=WELL)  # of --json: nothing yet to skip
    assert code == 0, err


def test_a_run_that_fails_is_recorded_and_the_others_go_on_when_asked(options, tmp_path):
    fails = dict(fake(rank=1, do="crash"), GRADWIRE_FAKE_ONLY="method=none")
    code, _, err = bench(*options, environment=fails)
    assert code == 1
    found = document(tmp_path)
    assert found["rows"] == [] and "was killed by SIGSEGV" in found["ended"]
    assert [(f["method"], f["seed"]) for f in found["failures"]] == [("none", 1)]
    code, out, err = bench(*options, "--keep-going", environment=fails)
    assert code == 1
    found = document(tmp_path)
    assert keys(found) == [(1, "int4")]
    assert "was killed by SIGSEGV" in found["failures"][0]["error"]
    assert found["ended"].startswith("1 of 2 runs failed, the first: none on unshaped links")
    assert "failed: none on unshaped links" in out
    code, _, err = bench(*options, "--resume", environment=WELL)  # what failed is made again
    assert code == 0, err
    found = document(tmp_path)
    assert keys(found) == [(1, "none"), (1, "int4")] and "failures" not in found


def test_three_failures_in_a_row_end_even_a_sweep_that_keeps_going(options, tmp_path):
    code, _, err = bench(*options, "--keep-going", "--seeds", 3, environment=fake(do="crash"))
    assert code == 1, err
    assert len(document(tmp_path)["failures"]) == 3


def test_a_full_disk_leaves_the_former_report_and_is_told(options, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("a file system of one page needs root")
    small = tmp_path / "small"
    small.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(small)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("this machine mounts no tmpfs")
    try:
        file = small / "out.json"
        file.write_text('{"former": true}\n')
        (small / "ballast").write_bytes(bytes(8192))  # what is left holds no whole report
        code, out, err = bench(*options, "--json", file, environment=WELL)
        assert code == 1
        found = json.loads(file.read_text())  # what was there, or the first row; never half
        assert found == {"former": True} or len(found["rows"]) == 1
        assert sorted(each.name for each in small.iterdir()) == ["ballast", "out.json"]
        assert err.count("goes on, and tries again after the next run") == 1
        assert "out.json: No space left on device" in err.strip().splitlines()[-1]
        assert "int4" in out
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_device_is_written_to_once_and_a_full_one_is_told(options):
    code, out, err = bench(*options, "--json", "/dev/full", environment=WELL)
    assert code == 1
    assert err.count("No space left on device") == 1
    assert "int4" in out


def test_a_pipe_gets_one_document(options, tmp_path):
    words = [sys.executable, "-c", bench_support._MAIN, *map(str, options), "--json", "/dev/stdout"]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=120, env=dict(os.environ, **WELL)
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"schema"') == 1


def test_what_is_kept_on_the_way_is_whole(tmp_path):
    class Growing:
        def write(self, path):
            raise OSError(28, "No space left on device")

    keep = ending.keeper(Growing(), tmp_path / "out.json")
    keep(), keep()  # told once, and no error
    ending.keeper(Growing(), None)()
