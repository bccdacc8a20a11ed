"""`gradwire doctor`: what is well, what is off and why, and that what is broken is seen."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gradwire
from gradwire import cli, doctor, facts, paths, self_check, surroundings
from gradwire.torch_missing import torch_missing

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["package", "cpu", "compress", "in_process", "gloo", "mpi", "gpu", "cuda", "nccl", "trainer",
         "bench", "torch", "links"]
HAS_GLOO = gradwire.build_info()["features"]["gloo"]
needs_gloo = pytest.mark.skipif(not HAS_GLOO, reason="this build has no Gloo plug-in")
JUNK = b"\x7fELF, but no library"


@pytest.fixture
def quick(monkeypatch):
    """Without the imports of torch, which take seconds."""
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture
def copied(tmp_path):
    """The installed package in a folder of its own, free to be broken, and its environment."""
    site = tmp_path / "site"
    shutil.copytree(paths.package(), site / "gradwire", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "torch.py").write_text("raise ImportError('libtorch_cpu.so is gone')\n")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    environment.pop("LD_LIBRARY_PATH", None)
    return site, environment


def examined(environment, *options):
    """The doctor as a process of the copied package: exit code, and what it printed as JSON."""
    done = subprocess.run([sys.executable, "-m", "gradwire", "doctor", "--json", *options],
                          env=environment, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    document = json.loads(done.stdout)
    return done.returncode, document, {f["name"]: f for f in document["findings"]}


def test_all_is_well_where_the_tests_run(capsys, quick):
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "All that is needed works; what is off is optional."
    for name in NAMES:
        assert re.search(rf"^(ok|off) +{name} ", text, re.MULTILINE), (name, text)
    assert re.search(r"^ok +in_process +2 ranks exchanged known bytes", text, re.MULTILINE)
    assert gradwire.__version__ in text and facts.build_facts()["vector_level"] in text


def test_json_has_the_documented_shape(capsys, quick):
    assert cli.main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["ok", "build", "findings"] and document["ok"] is True
    assert set(document["build"]) == {
        "version", "commit", "compiler", "features", "vector_level", "cuda_devices",
        "cuda_unavailable_reason", "python", "package", "trainer", "gloo_plugin"}
    assert [finding["name"] for finding in document["findings"]] == NAMES
    for finding in document["findings"]:
        assert list(finding) == ["name", "status", "detail", "mend"]
        assert all(isinstance(value, str) for value in finding.values())
        assert finding["status"] in ("ok", "off", "failed") and finding["detail"]
        assert "\n" not in finding["detail"] + finding["mend"]
        if finding["status"] != "ok":
            assert finding["mend"], finding


def test_what_the_docs_say_of_json_is_what_there_is():
    page = (ROOT / "docs" / "doctor.md").read_text()
    assert [name for name in NAMES if f"| `{name}` |" not in page] == []


def test_info_and_doctor_have_their_facts_from_one_place(capsys):
    assert cli.main(["info", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert facts.build_facts().items() <= known.items()
    commit = known["commit"]
    assert commit == "" or re.fullmatch("[0-9a-f]{40}(-dirty)?", commit)
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if known["vector_level"] == "avx512":
        assert "avx512bw" in flags
    elif known["vector_level"] == "avx2":
        assert "avx2" in flags


@needs_gloo
def test_ranks_that_are_processes_exchange_bytes_and_the_library_is_named(quick):
    (finding,) = [f for f in doctor.examine() if f.name == "gloo"]
    assert finding.status == "ok", finding
    assert re.search(r"2 processes on lo exchanged known bytes by every verb; shift of 8 bytes \d+ us",
                     finding.detail), finding
    library = re.search(r"/\S*/libgloo[-.]\S*", finding.detail)
    assert library and os.path.exists(library[0]), finding


@needs_gloo
def test_a_broken_plug_in_fails_and_says_why(copied):
    site, environment = copied
    (site / "gradwire" / "lib" / "libgradwire_gloo.so").write_bytes(JUNK)
    code, document, findings = examined(environment)
    assert code == 1 and document["ok"] is False
    assert findings["gloo"]["status"] == "failed"
    assert "libgradwire_gloo.so" in findings["gloo"]["detail"]
    assert document["build"]["package"] == str(site / "gradwire")
    assert {n for n, f in findings.items() if f["status"] == "failed"} == {"gloo"}


@needs_gloo
def test_a_plug_in_that_is_gone_fails_and_is_mended_by_installing_anew(copied):
    site, environment = copied
    (site / "gradwire" / "lib" / "libgradwire_gloo.so").unlink()
    code, document, findings = examined(environment)
    assert (code, findings["gloo"]["status"]) == (1, "failed")
    assert "not found, looked for" in findings["gloo"]["detail"]
    assert "pip install --force-reinstall" in findings["gloo"]["mend"]
    assert document["build"]["gloo_plugin"] is None


@needs_gloo
def test_a_library_that_cannot_be_loaded_is_named_with_its_package(copied, tmp_path):
    loaded = surroundings.loaded_library("libgloo", 10)
    name = re.search(r"/\S*/(libgloo\S*?\.so(\.\d+)?)", loaded)  # as its users name it
    if not name or "gradwire.libs" in loaded:
        pytest.skip("this package brings its own libgloo")
    site, environment = copied
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / name[1]).write_bytes(JUNK)
    code, _, findings = examined({**environment, "LD_LIBRARY_PATH": str(hidden)})
    assert (code, findings["gloo"]["status"]) == (1, "failed")
    assert name[1] in findings["gloo"]["detail"], findings["gloo"]
    assert findings["gloo"]["mend"] == "apt-get install libgloo-dev"


def test_a_compiled_module_that_does_not_load_is_one_line(copied):
    site, environment = copied
    (module,) = (site / "gradwire").glob("_core*.so")
    module.write_bytes(JUNK)
    done = subprocess.run([sys.executable, "-m", "gradwire", "doctor"], env=environment,
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("gradwire: its compiled module does not load: ") and module.name in line
    assert line.endswith("pip install --force-reinstall --no-deps .")
    other = subprocess.run([sys.executable, "-c", "import gradwire"], env=environment,
                           capture_output=True, text=True, timeout=120)
    assert "ImportError" in other.stderr, "programs get the exception"


def test_a_trainer_that_does_not_start_fails(copied):
    site, environment = copied
    program = site / "gradwire" / "bin" / "gradwire-trainer"
    if not program.exists():
        pytest.skip("this build has no trainer")
    program.write_text("#!/bin/sh\necho 'libopenblas.so.0: no such file' >&2\nexit 127\n")
    code, _, findings = examined(environment)
    assert (code, findings["trainer"]["status"]) == (1, "failed")
    assert findings["trainer"]["detail"] == "libopenblas.so.0: no such file"


def test_a_torch_that_cannot_be_imported_is_off_and_the_rest_works(copied):
    _, environment = copied
    code, document, findings = examined(environment)
    assert (code, document["ok"]) == (0, True)
    assert findings["torch"]["status"] == "off"
    assert "libtorch_cpu.so is gone" in findings["torch"]["detail"]
    assert "torch==2.13.0" in findings["torch"]["mend"]


def test_without_torch_it_is_off_with_the_command_that_brings_it(quick):
    (finding,) = [f for f in doctor.examine() if f.name == "torch"]
    assert (finding.status, finding.mend) == ("off", "pip install torch")
    page = (Path(__file__).resolve().parents[2] / "docs/from-ddp.md").read_text()
    assert f". .venv/bin/activate && {finding.mend}\n" in page
    assert f"must be: {finding.mend}, in this environment" in torch_missing("x")


@pytest.mark.parametrize("version, said", [
    ("2.13.0+cpu", "2.13.0+cpu, a version that is tested"),
    ("2.12.1", "2.12.1, not a version that is tested")])
def test_the_version_of_torch_is_judged(version, said, monkeypatch):
    monkeypatch.setattr(doctor, "_is_there", lambda name: True)
    monkeypatch.setattr(self_check, "output_of", lambda command, deadline: version)
    finding = doctor._torch()
    assert (finding.status, finding.detail) == ("ok", said)
    assert bool(finding.mend) == ("not" in said)


def test_the_tested_version_of_torch_is_that_of_run_sh_and_of_the_docs():
    (version,) = doctor.TESTED_TORCH
    assert f"torch=={version}+cpu" in (ROOT / "run.sh").read_text()
    assert f"torch {version} (CPU)" in (ROOT / "docs" / "torch.md").read_text()


def test_a_rank_that_hangs_ends_at_the_deadline(tmp_path, monkeypatch):
    program = tmp_path / "gradwire-check"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    monkeypatch.setattr(paths, "checker", lambda: program)
    start = time.monotonic()
    with pytest.raises(self_check.Failed, match=r"rank 0 was not done after 0\.1 s"):
        self_check.between_processes("gloo", 0.1)
    assert time.monotonic() - start < 60


def test_a_rank_that_fails_says_its_reason(tmp_path, monkeypatch):
    program = tmp_path / "gradwire-check"
    program.write_text("#!/bin/sh\necho \"gloo: rank $GRADWIRE_RANK FAILED: no lo\" >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(paths, "checker", lambda: program)
    with pytest.raises(self_check.Failed, match="gloo: rank 0 FAILED: no lo"):
        self_check.between_processes("gloo", 10)


def test_variables_of_a_launcher_are_not_taken_for_the_checks(monkeypatch):
    if not HAS_GLOO:
        pytest.skip("this build has no Gloo plug-in")
    monkeypatch.setenv("GRADWIRE_RANK", "7")
    monkeypatch.setenv("GRADWIRE_LOCAL_RANK", "five")
    assert "2 processes" in self_check.between_processes("gloo", 30)


RealFeedback = gradwire.Feedback


class Wrong:
    """A feedback whose payloads decode to something else."""

    def __init__(self, spec, size):
        self._real = RealFeedback(spec, size)

    def compress(self, gradient):
        return self._real.compress(gradient)

    def decompress(self, payloads, scale):
        values = self._real.decompress(payloads, scale)
        values[17] += 1
        return values


def test_a_wrong_element_fails_the_round_trip(monkeypatch, quick):
    assert "come back as they should" in self_check.round_trip()
    monkeypatch.setattr(self_check.gradwire, "Feedback", Wrong)
    findings = {f.name: f for f in doctor.examine()}
    assert findings["compress"].status == "failed"
    assert findings["compress"].detail.startswith("topk:1%: an element came back wrong by 1")
    assert not doctor.is_well(list(findings.values()))


def test_a_wrong_byte_fails_the_exchange(monkeypatch):
    class Twisted:
        def __init__(self, transport):
            self._transport, self.rank = transport, transport.rank

        def all_gather(self, data):
            return self._transport.all_gather(bytes(reversed(data)))

        def verify(self, **options):
            self._transport.verify(**options)

    real = gradwire.make_in_process_group
    monkeypatch.setattr(gradwire, "make_in_process_group",
                        lambda *a, **k: [Twisted(t) for t in real(*a, **k)])
    with pytest.raises(self_check.Failed, match="other bytes arrived than were sent"):
        self_check.between_threads(10)


def test_ranks_that_are_threads_end_at_the_deadline(monkeypatch):
    class Silent:
        rank, aborted = 0, None

        def all_gather(self, data):
            time.sleep(30)

        def abort(self, reason):
            self.aborted = reason

    group = [Silent(), Silent()]
    monkeypatch.setattr(gradwire, "make_in_process_group", lambda *a, **k: group)
    with pytest.raises(self_check.Failed, match=r"not done after 0\.1 s"):
        self_check.between_threads(0.1)
    assert all("deadline" in transport.aborted for transport in group)


GPU = surroundings.Gpus(["NVIDIA H200 (143771 MiB)"], "580.65.06", 1)


@pytest.mark.parametrize("gpus, status, says", [
    (GPU, "ok", "driver 580.65.06: NVIDIA H200 (143771 MiB)"),
    (surroundings.Gpus([], "", 2), "off", "2 NVIDIA GPU(s) on the PCI bus, but no driver answers"),
    (surroundings.Gpus([], "580.65.06", 0), "off", "it shows no GPU here"),
    (surroundings.Gpus([], "", 0), "off", "no NVIDIA GPU")])
def test_gpus_are_told_as_the_driver_shows_them(gpus, status, says):
    finding = doctor._gpu(gpus)
    assert finding.status == status and says in finding.detail
    assert bool(finding.mend) == (status == "off")


def test_nvidia_smi_is_read(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 580.65.06'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    gpus = surroundings.find_gpus(10)
    assert (gpus.names, gpus.driver) == (["NVIDIA H200 (143771 MiB)"], "580.65.06")


def test_an_nccl_that_pip_brought_is_found_with_its_version(tmp_path, monkeypatch):
    folder = tmp_path / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    source = tmp_path / "nccl.c"
    source.write_text("int ncclGetVersion(int* v) { *v = 22809; return 0; }\n")
    compiler = shutil.which("cc") or pytest.skip("no C compiler to make a stand-in with")
    library = folder / "libnccl.so.2"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    monkeypatch.setattr(surroundings, "_pip_nccl", lambda: [str(library)])
    monkeypatch.setattr(surroundings, "_NCCL", "libnccl_that_nobody_has.so")
    found, why = surroundings.find_nccl(30)
    assert found == surroundings.Nccl("2.28.9", str(library), by_loader=False) and why == ""
    monkeypatch.setattr(surroundings, "_pip_nccl", lambda: [])
    found, why = surroundings.find_nccl(30)
    assert found is None and "libnccl_that_nobody_has.so" in why


def test_shaped_links_are_what_the_machine_allows(monkeypatch):
    from gradwire.bench import netns

    finding = doctor._links()
    assert finding.status in ("ok", "off")
    monkeypatch.setattr(netns, "_find", lambda tool: "")
    finding = doctor._links()
    assert finding.status == "off" and finding.mend
    if os.geteuid() == 0:
        assert finding.mend == "apt-get install iproute2 util-linux"
    monkeypatch.setattr(netns.os, "geteuid", lambda: 1000)
    assert doctor._links().mend == "sudo gradwire bench ..."


@pytest.mark.parametrize("gpus, nvcc, detail, mends", [
    (surroundings.Gpus([], "", 0), "/bin/nvcc", "this machine has no GPU", ["none: it takes a machine"]),
    (GPU, "/bin/nvcc", "GRADWIRE_CUDA was OFF", ["in a checkout: pip install", "GRADWIRE_CUDA=ON"]),
    (GPU, None, "GRADWIRE_CUDA was OFF", ["install the CUDA toolkit", "GRADWIRE_CUDA=ON"])])
def test_cuda_that_was_not_built_has_the_machines_reason(gpus, nvcc, detail, mends, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda tool: nvcc)
    finding = doctor._cuda({"features": {"cuda": False}}, gpus)
    assert finding.status == "off" and detail in finding.detail
    assert all(mend in finding.mend for mend in mends)
    assert nvcc is None or "install the CUDA toolkit" not in finding.mend


@pytest.mark.parametrize("is_built, reason, gpus, library, status, mend", [
    (True, "", GPU, ("2.28.9", "/lib/libnccl.so.2", True), "ok", ""),
    (False, "built without", GPU, None, "off", "what mends cuda mends this"),
    (True, "no GPU", surroundings.Gpus([], "", 0), None, "off", "none: it takes a machine with a GPU"),
    (True, "cannot open", GPU, None, "off", "pip install nvidia-nccl-cu13"),
    (True, "cannot open", GPU, ("2.28.9", "/site/nvidia/nccl/lib/libnccl.so.2", False), "off",
     "export LD_LIBRARY_PATH=/site/nvidia/nccl/lib"),
    (True, "too old a driver", GPU, ("2.28.9", "/lib/libnccl.so.2", True), "off",
     "what mends cuda mends this")])
def test_nccl_is_judged_by_build_machine_and_library(
        is_built, reason, gpus, library, status, mend, monkeypatch):
    found = surroundings.Nccl(*library) if library else None
    monkeypatch.setattr(surroundings, "find_nccl", lambda deadline: (found, "no libnccl.so.2"))
    finding = doctor._nccl(is_built, reason, gpus)
    assert (finding.status, finding.mend) == (status, mend)
    assert (reason in finding.detail or not is_built) and (
        "2.28.9" if library else "no libnccl.so.2") in finding.detail
    assert is_built or "not built" in finding.detail
