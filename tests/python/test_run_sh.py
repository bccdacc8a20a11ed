"""run.sh: what it says and where it installs, with programs in the place of those that take minutes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fakes(tmp_path):
    """Programs that note how they were called; all packages are there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    calls = tmp_path / "calls"
    for name, body in [("dpkg-query", "printf installed"),
                       ("cmake", f'echo "cmake $*" >> {calls}; echo "-- gradwire: GLOO on"'),
                       ("failing", "echo what went wrong; exit 3")]:
        program = folder / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    return folder


def run(fakes, *words, cwd=None, script=ROOT / "run.sh", **variables):
    environment = {**os.environ, "PATH": f"{fakes}:{os.environ['PATH']}", **variables}
    return subprocess.run(["sh", str(script), *words], env=environment, text=True,
                          capture_output=True, timeout=120, cwd=cwd)


def test_install_says_what_it_does_and_where_the_library_is(fakes, tmp_path):
    done = run(fakes, "install", "prefix of mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[1] for call in calls] == ["-S", "--build", "--install"]
    assert "-DGRADWIRE_PYTHON=OFF" in calls[0]
    assert calls[2].endswith(f"--prefix {tmp_path}/prefix of mine")
    stages = re.findall(r"^run\.sh: \[ *\d+ s\] (.*)$", done.stderr, re.M)
    assert [stage.split()[0] for stage in stages] == ["configuring", "building", "installing", "done:"]
    assert f"are in {tmp_path}/prefix of mine" in stages[-1]
    assert f"-DCMAKE_PREFIX_PATH={tmp_path}/prefix of mine" in done.stderr
    assert "-- gradwire: GLOO on" in done.stderr


def test_install_compiles_with_the_compiler_of_the_package(fakes, tmp_path):
    checkout = tmp_path / "checkout"
    for build, compiler in [("py", "/usr/bin/g++"), ("cpp", "/usr/bin/c++")]:
        (checkout / "build" / build).mkdir(parents=True)
        cache = checkout / "build" / build / "CMakeCache.txt"
        cache.write_text(f"CMAKE_CXX_COMPILER:FILEPATH={compiler}\n")
    shutil.copy(ROOT / "run.sh", checkout)
    done = run(fakes, "install", cwd=tmp_path, script=checkout / "run.sh")
    assert done.returncode == 0, done.stderr
    configured = (tmp_path / "calls").read_text().splitlines()[0]
    assert configured.endswith(" -DCMAKE_CXX_COMPILER=/usr/bin/g++")
    assert not cache.exists(), "CMake would begin anew without what it is told"


def test_a_stage_that_fails_shows_its_last_lines(fakes, tmp_path):
    (fakes / "cmake").write_text("#!/bin/sh\necho what went wrong\nexit 3\n")
    done = run(fakes, "install", cwd=tmp_path)
    assert done.returncode == 1
    assert "what went wrong" in done.stderr and "run.sh: this failed: cmake -S ." in done.stderr
    assert "done:" not in done.stderr


def test_setup_ends_with_what_there_is_and_how_to_use_it(fakes, tmp_path):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    real = f'*) exec {sys.executable} "$@" ;;'
    python.write_text(f'#!/bin/sh\ncase "$2" in pip) echo pip "$*" ;; {real} esac\n')
    python.chmod(0o755)
    done = run(fakes, "setup", GRADWIRE_VENV=str(venv))
    assert done.returncode == 0, done.stderr
    stages = re.findall(r"^run\.sh: \[ *\d+ s\] (.*)$", done.stderr, re.M)
    assert [stage.split()[0] for stage in stages] == ["fetching", "building", "done:"]
    assert re.fullmatch(rf"done: gradwire \S+ for Python is in {venv}", stages[-1])
    assert f"{venv}/bin/gradwire info|doctor|bench" in done.stderr and "./run.sh install" in done.stderr
    again = run(fakes, "setup", GRADWIRE_VENV=str(venv))  # nothing to do, and it says so
    assert re.findall(r"\] (.*)$", again.stderr, re.M) == [stages[-1]]


def test_words_that_are_too_many_are_refused(fakes):
    done = run(fakes, "install", "a", "b")
    assert done.returncode == 1 and "install takes one folder at most" in done.stderr
    done = run(fakes, "--help")
    assert done.returncode == 0 and "./run.sh install [DIR]" in done.stdout
    assert done.stdout.rstrip().endswith("for the virtual environment.")


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture
def bare(fakes, tmp_path):
    """PATH of a machine like this one, without a browser; apt-get notes how it was called."""
    tools, calls = tmp_path / "tools", tmp_path / "calls"
    tools.mkdir()
    calls.touch()
    hidden = {*BROWSERS, "sudo", "apt-get", "apt-cache"}
    for folder in os.environ["PATH"].split(":"):
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if name not in hidden and not os.path.lexists(tools / name):
                (tools / name).symlink_to(Path(folder) / name)
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    fake(venv / "bin" / "python", f'case "$2" in pip) ;; *) exec {sys.executable} "$@" ;; esac')
    fake(fakes / "apt-cache", "exit 0")
    fake(fakes / "apt-get", f'echo "apt-get $*" >> {calls}')
    fake(fakes / "id", "echo 0")
    # The tests themselves stop before they begin.
    fake(fakes / "cmake", "exit 3")
    return {"PATH": f"{fakes}:{tools}", "GRADWIRE_VENV": str(venv), "GRADWIRE_CHROMIUM": "",
            "GRADWIRE_PRESET": "none"}


def fake(path, body):
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def asked_of_apt(tmp_path):
    lines = (tmp_path / "calls").read_text().splitlines()
    return [line for line in lines if line.startswith("apt-get")]


INSTALLED = "apt-get install -y -qq --no-install-recommends chromium-headless-shell"


@pytest.mark.parametrize("name, body, calls, says", [
    ("apt-cache", "exit 0", [INSTALLED], None),
    ("apt-cache", "exit 100", ["apt-get update -qq"], "this system has no package of that name"),
    ("apt-get", 'echo "apt-get $*" >> "$CALLS"; exit 100', [INSTALLED], "it could not be installed"),
    ("id", "echo 1000", [], "no package can be installed here without asking"),
    *((browser, "exit 0", [], None) for browser in BROWSERS),
])
def test_the_tests_take_a_browser_where_there_is_a_package(
    bare, fakes, tmp_path, name, body, calls, says
):
    fake(fakes / name, body)
    done = run(fakes, "test", **bare, CALLS=str(tmp_path / "calls"))
    assert asked_of_apt(tmp_path) == calls
    assert "configuring failed" in done.stderr, done.stderr  # it went on, whatever became of that
    if says:
        assert f"no chromium-headless-shell: {says}; the tests of reports" in done.stderr
    else:
        assert "skipped" not in done.stderr.replace("the tests that need torch will be skipped", "")


def test_nobody_but_the_tests_installs_a_browser(bare, fakes, tmp_path):
    done = run(fakes, "setup", **bare)
    assert done.returncode == 0, done.stderr
    assert asked_of_apt(tmp_path) == []


def test_a_disk_that_is_nearly_full_is_said_before_anything_is_built(fakes, tmp_path):
    (fakes / "df").write_text("#!/bin/sh\necho header\necho /dev/x 9000000 8000000 1024000 89% /\n")
    (fakes / "du").write_text("#!/bin/sh\necho 200 build\necho 300 total\n")
    for name in ("df", "du"):
        (fakes / name).chmod(0o755)
    done = run(fakes, "test", cwd=tmp_path)
    assert done.returncode == 1
    assert f"run.sh: {ROOT}: 1000 MB are free, building and testing take 9700 more" in done.stderr
    assert not (tmp_path / "calls").exists()
