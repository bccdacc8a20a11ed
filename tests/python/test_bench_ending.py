"""Results are told however a benchmark ends: full disks, closed streams, signals while writing."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading

import bench_support
import pytest
from bench_support import FAKE, bench, fake
from test_bench_report import report
from test_bench_summary import row

from gradwire.bench import ending
from gradwire.bench.errors import Interrupted, RunError, UsageError
from gradwire.bench.files import write_whole
from gradwire.bench.signals import held, interruptible

pytest.importorskip("matplotlib", reason="the benchmark draws plots")


@pytest.fixture
def options(tmp_path):
    pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
    return [
        *("--trainer", FAKE, "--json", tmp_path / "out.json", "--output", tmp_path / "plots"),
        *("--workers", 2, "--links", "none", "--methods", "none", "--link-mode", "pacing"),
    ]


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "out.json"
    link.symlink_to(tmp_path / "real" / "file.json")
    for text in ("first", "second"):  # dangling, then not
        write_whole(link, text)
        assert link.is_symlink()
        assert (tmp_path / "real" / "file.json").read_text() == text


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(OSError, match="No such device"):
        write_whole(path, "nobody reads")
    found = []
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reading, True)
    text = "x" * 200_000  # more than a pipe holds

    def read():
        while part := os.read(reading, 65536):
            found.append(part)

    keeper = os.open(path, os.O_WRONLY)  # so that the reader's first read waits
    reader = threading.Thread(target=read)
    reader.start()
    write_whole(path, text)
    os.close(keeper)
    reader.join(20)
    os.close(reading)
    assert b"".join(found).decode() == text
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_the_null_device_stays_a_device(tmp_path):
    link = tmp_path / "null"  # a copy would need the right to make devices
    link.symlink_to("/dev/null")
    write_whole(link, "text")
    assert link.is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_places_that_cannot_be_written_are_refused_before_anything_runs(tmp_path, monkeypatch):
    ending.check_folder(tmp_path / "new" / "folder")
    ending.check_json(tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == [tmp_path / "new"]
    with pytest.raises(UsageError, match="--json .*: a folder"):
        ending.check_json(tmp_path)

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(ending.tempfile, "NamedTemporaryFile", refuse)
    with pytest.raises(UsageError, match=r"--output .*: Read-only file system, expected"):
        ending.check_folder(tmp_path)
    with pytest.raises(UsageError, match=r"--json .*: Read-only file system, expected"):
        ending.check_json(tmp_path / "out.json")


def test_a_folder_that_takes_no_file_ends_with_code_2(options):
    code, out, err = bench(*options, "--output", "/sys")
    assert (code, out) == (2, "")
    assert err.startswith("gradwire bench: --output /sys: ")


def work():
    """Nothing is left to do."""


def test_one_file_that_fails_costs_neither_the_table_nor_the_other_files(tmp_path, capfd):
    made = report([row("none", 2.0)])
    with pytest.raises(RunError, match=r"could not write .*gone/out\.json: No such file"):
        ending.conclude(work, made, tmp_path / "gone" / "out.json", tmp_path)
    out = capfd.readouterr().out
    assert "no compression" in out
    assert (tmp_path / "accuracy-50mbit.svg").exists()
    with pytest.raises(RunError, match=r"could not write .*gone/accuracy-50mbit\.svg: No such"):
        ending.conclude(work, made, tmp_path / "out.json", tmp_path / "gone")
    assert json.loads((tmp_path / "out.json").read_text())["ended"] == "complete"


def test_the_error_of_the_run_is_not_masked_by_one_of_writing(tmp_path, capfd):
    def fail():
        raise RunError("worker 1 was lost")

    made = report([row("none", 2.0)])
    with pytest.raises(RunError, match="^worker 1 was lost$"):
        ending.conclude(fail, made, tmp_path / "gone" / "out.json", tmp_path)
    assert "could not write" in capfd.readouterr().err
    assert made.ended == "worker 1 was lost"


def test_a_signal_while_results_are_written_waits(tmp_path, monkeypatch):
    made = report([row("none", 2.0)])
    write = made.write

    def interrupted_write(path):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        write(path)

    monkeypatch.setattr(made, "write", interrupted_write)
    with pytest.raises(Interrupted, match="^SIGTERM$"), interruptible():
        ending.conclude(work, made, tmp_path / "out.json", tmp_path)
    assert json.loads((tmp_path / "out.json").read_text())["ended"] == "complete"
    assert (tmp_path / "accuracy-50mbit.svg").exists()


def test_a_signal_just_before_results_are_written_does_not_lose_them(tmp_path, monkeypatch):
    def late():
        os.kill(os.getpid(), signal.SIGINT)
        return held()

    monkeypatch.setattr(ending, "held", late)
    made = report([row("none", 2.0)])
    with pytest.raises(Interrupted), interruptible():
        ending.conclude(work, made, tmp_path / "out.json", tmp_path)
    assert json.loads((tmp_path / "out.json").read_text())["ended"] == "interrupted by SIGINT"


def test_an_empty_word_is_refused_and_stands_for_no_default(options):
    for name in ("--links", "--methods", "--json", "--optimizer", "--data"):
        code, out, err = bench(*options, name, "")
        assert (code, out) == (2, ""), name
        assert err.startswith(f"gradwire bench: {name}: '' is empty")


def shell(redirection, options, environment):
    """Runs it under a shell that closes or redirects its streams."""
    words = [sys.executable, "-c", bench_support._MAIN, *map(str, options)]
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirection}', "sh", *words],
        capture_output=True, text=True, timeout=120, env=dict(os.environ, **environment),
    )  # fmt: skip


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_closed_streams_harm_nothing(options, tmp_path, redirection):
    done = shell(redirection, options, fake(step=1000, rank=9))
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert len(json.loads((tmp_path / "out.json").read_text())["rows"]) == 1


def test_a_full_standard_output_is_told_after_the_files_are_written(options, tmp_path):
    done = shell(">/dev/full", options, fake(step=1000, rank=9))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == "gradwire bench: could not write standard output: No space left on device"
    assert json.loads((tmp_path / "out.json").read_text())["ended"] == "complete"
    assert (tmp_path / "plots" / "accuracy-none.svg").exists()


# The command as its script starts it; one import says that it has begun, and takes its time.
_SLOW_IMPORT = """
import sys, time, importlib.abc
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "{slow}":
            print("importing", flush=True)
            time.sleep(20)
sys.meta_path.insert(0, Slow())
sys.argv = ["/usr/bin/gradwire", "bench", "--help"]
from gradwire.cli import main
sys.exit(main())
"""


def test_ctrl_c_during_the_imports_is_one_line():
    import gradwire

    if not hasattr(gradwire, "parse_spec"):
        pytest.skip("the compiled module is not built: there is no command gradwire")
    for slow in ("gradwire._core", "gradwire.bench.command"):
        process = subprocess.Popen(
            [sys.executable, "-c", _SLOW_IMPORT.format(slow=slow)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # Whoever runs the tests in the background may have told them to ignore it.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (130, "gradwire: interrupted\n")
