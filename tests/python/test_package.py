"""What the package holds and says: errors, registries, files, and the command `gradwire`."""

import importlib.metadata
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gradwire
from gradwire import cli, facts, paths

ROOT = Path(__file__).resolve().parents[2]


def run_module(*arguments):
    return subprocess.run([sys.executable, "-m", "gradwire", *arguments], capture_output=True,
                          text=True, timeout=120)


def test_errors_are_also_pythons_own_kinds():
    assert issubclass(gradwire.InvalidArgument, (gradwire.Error,))
    assert issubclass(gradwire.InvalidArgument, ValueError)
    assert issubclass(gradwire.NonFiniteGradient, gradwire.InvalidArgument)
    assert issubclass(gradwire.DeviceError, gradwire.Error)
    assert issubclass(gradwire.DeviceError, RuntimeError)
    assert issubclass(gradwire.TransportError, gradwire.Error)
    assert issubclass(gradwire.TransportError, ConnectionError)
    with pytest.raises(ValueError, match="unknown name 'nope'.*, known: "):
        gradwire.parse_spec("nope")


def test_a_transport_error_carries_its_peer_through_pickle():
    error = pickle.loads(pickle.dumps(gradwire.TransportError("rank 3 went away", 3)))
    assert (str(error), error.peer) == ("rank 3 went away", 3)
    assert gradwire.TransportError("nobody knows").peer == -1


def test_the_version_is_that_of_cmake_and_of_the_distribution():
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert gradwire.__version__ == re.search(r"project\(gradwire VERSION ([0-9.]+)", cmake).group(1)
    try:
        installed = importlib.metadata.version("gradwire")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("gradwire runs from a folder, it is not installed as a distribution")
    assert gradwire.__version__ == installed


def test_it_requires_numpy_and_what_checks_a_schema_and_all_else_is_extra():
    try:
        wanted = importlib.metadata.requires("gradwire")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("gradwire runs from a folder, it is not installed as a distribution")
    always = [line for line in wanted if "extra ==" not in line]
    assert [re.match(r"[\w-]+", line)[0] for line in always] == ["numpy", "fastjsonschema"]
    extras = {name: {re.match(r"[\w-]+", line)[0] for line in wanted if f"'{name}'" in line.replace(
        '"', "'")} for name in ("torch", "bench")}
    assert extras == {"torch": {"torch"}, "bench": {"scikit-learn", "matplotlib", "rich", "tomli"}}


def test_every_public_name_exists_and_is_documented():
    for name in gradwire.__all__:
        thing = getattr(gradwire, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for method, member in vars(thing).items():
                public = not method.startswith("_")
                if public and (callable(member) or isinstance(member, property)):
                    assert inspect.getdoc(getattr(thing, method)), f"{name}.{method}"


def test_the_registries_have_rows():
    assert {"none", "fp16", "bf16", "int8", "int4"} <= {r.name for r in gradwire.compressors()}
    assert {"dense", "gather"} <= {r.name for r in gradwire.exchanges()}
    assert {"sgd", "adamw", "lars", "larc", "lamb", "diloco", "onebit-adam", "onebit-lamb"} == {
        r.name for r in gradwire.optimizers()}
    assert "momentum" in next(r for r in gradwire.optimizers() if r.name == "sgd").settings
    for row in gradwire.compressors():
        assert gradwire.parse_spec(row.example).name == row.name
    for row in gradwire.transports():
        assert row.available == (row.unavailable_reason == "")


def test_build_info_says_why_there_is_no_gpu():
    info = gradwire.build_info()
    assert set(info["features"]) == {"cuda", "gloo", "mpi", "nccl", "planner", "trainer"}
    assert (info["cuda_devices"] == 0) == bool(info["cuda_unavailable_reason"])


def test_the_package_is_typed():
    package = Path(gradwire.__file__).parent
    assert (package / "py.typed").is_file() and (package / "_core.pyi").is_file()


def test_the_trainer_is_there_and_starts():
    if not gradwire.build_info()["features"]["trainer"]:
        assert paths.trainer() is None
        pytest.skip("this build has no trainer: OpenBLAS or zlib was not found")
    assert os.access(paths.trainer(), os.X_OK)
    helped = subprocess.run([paths.trainer(), "--help"], capture_output=True, text=True, timeout=60)
    assert helped.returncode == 0 and "--world-size" in helped.stdout


def test_the_gloo_plugin_is_there_and_usable():
    if not gradwire.build_info()["features"]["gloo"]:
        assert paths.plugin("gloo") is None
        pytest.skip("this build has no Gloo plug-in: libgloo was not found")
    assert paths.plugin("gloo").is_file()
    row = next(r for r in gradwire.transports() if r.name == "gloo")
    assert row.available, row.unavailable_reason


def test_the_module_exports_nothing_but_its_entry():
    try:
        listed = subprocess.run(["nm", "-D", "--defined-only", gradwire._core.__file__],
                                capture_output=True, text=True, check=True, timeout=60).stdout
    except FileNotFoundError:
        pytest.skip("nm is not installed")
    ours = [line for line in listed.splitlines() if "gradwire" in line]
    assert not ours, ours[:5]
    assert "PyInit__core" in listed


def test_info_names_every_row_and_why_one_is_off(capsys):
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    for registry in ("compressors", "exchanges", "optimizers", "transports"):
        for row in getattr(gradwire, registry)():
            assert re.search(rf"^  {row.name} +\S", text, re.MULTILINE), row.name
    assert f"gradwire {gradwire.__version__}" in text
    assert gradwire.build_info()["cuda_unavailable_reason"] in text
    for row in gradwire.transports():
        assert row.unavailable_reason in text


def test_info_as_json_is_one_object(capsys):
    assert cli.main(["info", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["version"] == gradwire.__version__
    assert [row["name"] for row in printed["compressors"]] == [r.name for r in gradwire.compressors()]


@pytest.mark.parametrize("registry", ["compressors", "exchanges", "optimizers"])
def test_info_as_markdown_is_a_table(registry, capsys):
    assert cli.main(["info", "--markdown", registry]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = getattr(gradwire, registry)()
    assert len(lines) == len(rows) + 2
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert len(columns) == 1
    assert [line.split("`")[1] for line in lines[2:]] == [row.name for row in rows]


def test_the_module_runs_as_a_program():
    done = run_module("--version")
    assert (done.returncode, done.stdout) == (0, f"gradwire {gradwire.__version__}\n")
    assert run_module("info").returncode == 0


@pytest.mark.parametrize("arguments", [
    [], ["nope"], ["info", "--nope"], ["info", "--markdown", "x"], ["info", "--threads"]])
def test_bad_arguments_exit_with_2_and_a_line(arguments):
    done = run_module(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert "gradwire" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("error, code, line", [
    (gradwire.InvalidArgument("topk: density is 2,\nmust be in (0, 1]"), 2,
     "gradwire info: topk: density is 2, must be in (0, 1]"),
    (gradwire.TransportError("rank 1 went away", 1), 1, "gradwire info: rank 1 went away"),
    (OSError("disk full"), 1, "gradwire info: OSError: disk full"),
    (KeyboardInterrupt(), 130, "gradwire: interrupted"),
])
def test_errors_are_one_line_on_stderr(error, code, line, monkeypatch, capsys):
    def fail():
        raise error

    monkeypatch.setattr(facts, "all_facts", fail)
    assert cli.main(["info"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", line + "\n")


def test_debug_shows_the_traceback(monkeypatch):
    def fail():
        raise gradwire.Error("because")

    monkeypatch.setattr(facts, "all_facts", fail)
    with pytest.raises(gradwire.Error, match="because"):
        cli.main(["info", "--debug"])


def test_the_readme_example_runs_and_has_six_lines():
    source = ROOT / "examples" / "minimal.py"
    region = source.read_text().split("# [readme]\n")[1].split("# [readme-end]")[0]
    assert len(region.splitlines()) == 6
    done = subprocess.run([sys.executable, source], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shapes, says", [
    ([("w", 20)], r"parameters\[0\]: is \('w', 20\), must be a name and a shape"),
    ([("v", (2,)), ("w", (3, -1))], r"parameters\[1\]: is \('w', \(3, -1\)\), must be"),
    ([(20,)], r"parameters\[0\]: is \(20,\), must be"),
    ({"weight": (20,)}, r"parameters\[0\]: is 'weight', must be"),
    ([np.zeros((2, 3))], r"parameters\[0\]: is array\(\[\[0., 0., 0.\],..., must be"),
])
def test_what_is_no_name_with_a_shape_is_refused(shapes, says):
    with pytest.raises(gradwire.InvalidArgument, match=says):
        gradwire.make_plan(shapes)
    assert gradwire.make_plan((s for s in [("w", [2, np.int64(3)])]), "none").layout[0]["numel"] == 6
