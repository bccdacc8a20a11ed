"""`gradwire doctor`: does what was installed work on this machine, and what mends the rest?

Its parts: facts.py (what was built), surroundings.py (what the machine has), self_check.py (does it
run). Each finding is judged here.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from . import facts, paths, registries, self_check, surroundings
from .self_check import Failed
from .torch_missing import TORCH_COMMAND

__all__ = ["TESTED_TORCH", "Finding", "document", "examine", "is_well", "lines"]

TESTED_TORCH = ("2.13.0",)  #: what the project's tests run with
_QUICK_S = 10.0  # the deadline of what takes a moment
_TORCH_S = 120.0  # a cold import of torch reads gigabytes
_BENCH_EXTRA = {"scikit-learn": "sklearn", "matplotlib": "matplotlib", "rich": "rich"}
_REINSTALL = "in a checkout: pip install --force-reinstall --no-deps ."
_PACKAGES = {"gloo": "libgloo-dev", "mpi": "libopenmpi-dev"}
_CUDA_HOME = "https://developer.nvidia.com/cuda-downloads"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: str  #: "ok", "off" (the rest works without it) or "failed" (it should work)
    detail: str  #: what was seen, or why it is off
    mend: str = ""  #: the command that changes that, empty where all is well


def examine() -> Iterator[Finding]:
    """Looks at one thing after another; every look has a deadline."""
    built = facts.build_facts()
    yield _package(built)
    yield _cpu(built)
    yield _live("compress", self_check.round_trip)
    yield _live("in_process", lambda: self_check.between_threads(_QUICK_S))
    reasons = {row.name: row.unavailable_reason for row in registries.transports()}
    for transport in ("gloo", "mpi"):
        yield _plugin(transport, bool(built["features"][transport]), reasons[transport])
    gpus = surroundings.find_gpus(_QUICK_S)
    yield _gpu(gpus)
    yield _cuda(built, gpus)
    yield _nccl(bool(built["features"]["nccl"]), reasons["nccl"], gpus)
    yield _trainer(built)
    yield _bench_extra()
    yield _torch()
    yield _links()


def is_well(findings: Sequence[Finding]) -> bool:
    """Whether everything that should work does; what is off is optional."""
    return all(finding.status != "failed" for finding in findings)


def document(findings: Sequence[Finding]) -> Dict[str, Any]:
    """What `--json` prints."""
    return {
        "ok": is_well(findings),
        "build": facts.build_facts(),
        "findings": [asdict(finding) for finding in findings],
    }


def lines(finding: Finding) -> List[str]:
    """The finding as the terminal shows it."""
    shown = [f"{finding.status:<7} {finding.name:<11} {finding.detail}"]
    return shown + ([f"{'':<20}mend: {finding.mend}"] if finding.mend else [])


def _live(name: str, check: Callable[[], str], mend: str = _REINSTALL) -> Finding:
    """A check of something that is there, and so must work."""
    try:
        return Finding(name, "ok", check())
    except Exception as error:  # whatever it is, the other findings are wanted too
        return Finding(name, "failed", _one_line(error), mend)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, Failed) else f"{type(error).__name__}: {text}"


def _package(built: Dict[str, Any]) -> Finding:
    commit, dirty, _ = built["commit"].partition("-dirty")
    commit = f"commit {commit[:12] or 'unknown'}{dirty}"
    features = ", ".join(f"{name} {'on' if on else 'off'}" for name, on in built["features"].items())
    said = (
        f"gradwire {built['version']}, {commit}, {built['compiler']}, Python {built['python']}, "
        f"NumPy {importlib.metadata.version('numpy')}; {features}; in {built['package']}"
    )
    installed = _version("gradwire")
    if installed not in (None, built["version"]):
        why = f"its compiled module is {built['version']}, its Python files {installed}: {said}"
        return Finding("package", "failed", why, _REINSTALL)
    return Finding("package", "ok", said)


def _cpu(built: Dict[str, Any]) -> Finding:
    from .bench.machine import machine

    here = machine()
    return Finding(
        "cpu", "ok", f"{here['cpu']}, {here['cores']} cores, loops in {built['vector_level']}"
    )


def _plugin(transport: str, is_built: bool, reason: str) -> Finding:
    package = _PACKAGES[transport]
    if not is_built:
        option = f"-C cmake.define.GRADWIRE_{transport.upper()}=ON"
        mend = f"apt-get install {package}; {_REINSTALL} {option}"
        why = f"not built: GRADWIRE_{transport.upper()} was OFF, or its library was not there"
        return Finding(transport, "off", why, mend)
    if reason:
        is_there = paths.plugin(transport) is not None
        return Finding(
            transport, "failed", reason, f"apt-get install {package}" if is_there else _REINSTALL
        )
    library = surroundings.loaded_library("libgloo" if transport == "gloo" else "libmpi", _QUICK_S)
    if transport == "mpi":
        root = " --allow-run-as-root" if os.geteuid() == 0 else ""  # Open MPI refuses without it
        tried = f"loaded; mpirun{root} -n 2 gradwire check --transport mpi tries it"
        return Finding(transport, "ok", f"{tried}; {library}")
    return _live(
        transport,
        lambda: f"{self_check.between_processes(transport, _QUICK_S)}; {library}",
        "as root: ip link set lo up, and let the firewall pass what stays on lo",
    )


def _gpu(gpus: surroundings.Gpus) -> Finding:
    if gpus.names and gpus.driver:
        return Finding("gpu", "ok", f"driver {gpus.driver}: {', '.join(gpus.names)}")
    if gpus.on_bus:
        why = f"{gpus.on_bus} NVIDIA GPU(s) on the PCI bus, but no driver answers"
        return Finding("gpu", "off", why, "apt-get install nvidia-driver (of non-free), reboot")
    if gpus.driver:
        why = f"driver {gpus.driver}, but it shows no GPU here"
        return Finding("gpu", "off", why, "give the container its GPUs: docker run --gpus all")
    return Finding("gpu", "off", "no NVIDIA GPU", "none: it takes a machine that has one")


def _cuda(built: Dict[str, Any], gpus: surroundings.Gpus) -> Finding:
    if not built["features"]["cuda"]:
        if not gpus.names:
            mend = "none: it takes a machine with a GPU (GRADWIRE_CUDA=ON builds it all the same)"
            return Finding("cuda", "off", "not built: this machine has no GPU", mend)
        mend = f"{_REINSTALL} -C cmake.define.GRADWIRE_CUDA=ON"
        if shutil.which("nvcc") is None:
            mend = f"install the CUDA toolkit ({_CUDA_HOME}); {mend}"
        return Finding("cuda", "off", "not built: GRADWIRE_CUDA was OFF, or there was no toolkit", mend)
    if built["cuda_devices"]:
        return Finding("cuda", "ok", f"{built['cuda_devices']} usable device(s)")
    mend = "none: it takes a machine with a GPU"
    if gpus.names:
        mend = "unset CUDA_VISIBLE_DEVICES, or take a newer driver: apt-get install nvidia-driver"
    return Finding("cuda", "off", f"built, but {built['cuda_unavailable_reason']}", mend)


def _nccl(is_built: bool, reason: str, gpus: surroundings.Gpus) -> Finding:
    library, missing = surroundings.find_nccl(_QUICK_S)
    found = f"NCCL {library.version} in {library.path}" if library else f"no library: {missing}"
    if is_built and not reason:
        return Finding("nccl", "ok", found)
    if not is_built:
        return Finding(
            "nccl", "off", f"not built: it goes with cuda; {found}", "what mends cuda mends this"
        )
    mend = "what mends cuda mends this"
    if not gpus.names:
        mend = "none: it takes a machine with a GPU"
    elif library is None:
        mend = "pip install nvidia-nccl-cu13"
    elif not library.by_loader:
        mend = f"export LD_LIBRARY_PATH={os.path.dirname(library.path)}"
    return Finding("nccl", "off", f"built, but {reason}; {found}", mend)


def _trainer(built: Dict[str, Any]) -> Finding:
    if not built["features"]["trainer"]:
        mend = f"apt-get install libopenblas-dev zlib1g-dev; {_REINSTALL}"
        return Finding("trainer", "off", "not built: OpenBLAS or zlib was not there", mend)
    program = built["trainer"]
    if program is None:
        return Finding("trainer", "failed", "built, but its file is gone", _REINSTALL)

    def starts() -> str:
        self_check.output_of([program, "--help"], _QUICK_S)
        return f"{program} starts"

    return _live("trainer", starts, "apt-get install libopenblas0 zlib1g")


def _bench_extra() -> Finding:
    missing = [name for name, module in _BENCH_EXTRA.items() if not _is_there(module)]
    if missing:
        uses = "`gradwire bench` draws with matplotlib, has its own data from scikit-learn"
        why = f"{', '.join(missing)} not installed: {uses}, progress from rich"
        return Finding("bench", "off", why, f"pip install {' '.join(missing)}")
    return Finding("bench", "ok", ", ".join(f"{name} {_version(name)}" for name in _BENCH_EXTRA))


def _torch() -> Finding:
    tested = ", ".join(TESTED_TORCH)
    if not _is_there("torch"):
        return Finding("torch", "off", "not installed: gradwire.torch needs it", TORCH_COMMAND)
    ask = "import torch, gradwire.torch; print(torch.__version__)"
    try:
        version = self_check.output_of([sys.executable, "-c", ask], _TORCH_S)
    except Failed as error:
        why = f"installed, but gradwire.torch cannot use it: {error}"
        return Finding("torch", "off", why, f"pip install --force-reinstall torch=={tested}")
    if version.partition("+")[0] in TESTED_TORCH:
        return Finding("torch", "ok", f"{version}, a version that is tested")
    return Finding(
        "torch", "ok", f"{version}, not a version that is tested", f"pip install torch=={tested}"
    )


def _links() -> Finding:
    from .bench.arguments import Link
    from .bench.netns import Namespaces, Unavailable

    try:
        namespaces = Namespaces(1)
        try:
            namespaces.shape(Link("10mbit", 10_000_000))
        finally:
            namespaces.close()
    except Unavailable as error:
        mends = {"not root": "sudo gradwire bench ..."}
        mend = mends.get(str(error), "docker run --privileged, or another machine")
        if "not found" in str(error):
            mend = "apt-get install iproute2 util-linux"
        why = f"links of `gradwire bench` are paced, not shaped by the kernel: {error}"
        return Finding("links", "off", why, mend)
    return Finding("links", "ok", "`gradwire bench` can have the kernel shape its links")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _version(distribution: str) -> Optional[str]:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
