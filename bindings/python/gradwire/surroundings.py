"""What of the machine `gradwire doctor` looks at: GPUs and their driver, and shared libraries."""

import glob
import importlib.util
import os
import re
import shutil
import sys
from dataclasses import dataclass
from typing import List, Optional, Tuple

from .self_check import Failed, output_of

__all__ = ["Gpus", "Nccl", "find_gpus", "find_nccl", "loaded_library"]

_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI class: VGA and 3D controllers
_NCCL = "libnccl.so.2"
# In a process of its own: what is loaded stays loaded, and a broken library may crash.
_ASK_NCCL = """
import ctypes, sys
library, version = ctypes.CDLL(sys.argv[1]), ctypes.c_int()
assert library.ncclGetVersion(ctypes.byref(version)) == 0, "ncclGetVersion failed"
path = next((l.split(None, 5)[5] for l in open("/proc/self/maps") if "libnccl" in l), sys.argv[1])
print(version.value, path.strip())
"""


@dataclass(frozen=True)
class Gpus:
    """NVIDIA GPUs as the driver or, without one, the PCI bus shows them."""

    names: List[str]
    driver: str  #: its version, empty without one
    on_bus: int  #: display controllers of NVIDIA


@dataclass(frozen=True)
class Nccl:
    """A libnccl.so.2 that can be opened."""

    version: str  #: as 2.28.9
    path: str
    by_loader: bool  #: dlopen("libnccl.so.2") finds it; else only its path does


def find_gpus(deadline_s: float) -> Gpus:
    """Asks nvidia-smi where there is one, else /sys and /proc."""
    on_bus = 0
    for vendor in glob.glob("/sys/bus/pci/devices/*/vendor"):
        kind = os.path.join(os.path.dirname(vendor), "class")
        on_bus += _first_line(vendor) == _NVIDIA and _first_line(kind).startswith(_DISPLAY)
    names: List[str] = []
    driver = _first_line("/sys/module/nvidia/version")
    smi = shutil.which("nvidia-smi")
    if smi:
        fields = "--query-gpu=name,memory.total,driver_version"
        try:
            out = output_of([smi, fields, "--format=csv,noheader"], deadline_s)
        except Failed:  # left behind by a driver that is gone: the rest says what there is
            out = ""
        for line in out.splitlines():
            name, memory, driver = (part.strip() for part in line.rsplit(",", 2))
            names.append(f"{name} ({memory})")
    return Gpus(names or _proc_gpus(), driver, on_bus)


def _proc_gpus() -> List[str]:
    names = []
    for file in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
        names.append(_first_line(file).partition(":")[2].strip())
    return names


def find_nccl(deadline_s: float) -> Tuple[Optional[Nccl], str]:
    """The library that the loader finds, else that of pip's nvidia-nccl; and why there is none."""
    why = ""
    for file in [_NCCL, *_pip_nccl()]:
        try:
            out = output_of([sys.executable, "-c", _ASK_NCCL, file], deadline_s)
        except Failed as error:
            why = why or str(error)
            continue
        number, _, path = out.partition(" ")
        version = ".".join(str(part) for part in _parts(int(number)))
        return Nccl(version, path, file == _NCCL), ""
    return None, why


def _parts(version: int) -> Tuple[int, int, int]:
    return version // 10000, version // 100 % 100, version % 100


def _pip_nccl() -> List[str]:
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return []
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [os.path.join(folder, "lib", _NCCL) for folder in folders]
    return [file for file in files if os.path.isfile(file)]


def loaded_library(name: str, deadline_s: float) -> str:
    """Where this process has ``name`` (as "libgloo") from, with its package's version if known."""
    pattern = re.compile(rf"(/\S*/{re.escape(name)}[-.]\S*)$")
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found = next((m[1] for m in map(pattern.search, map(str.rstrip, maps)) if m), None)
    if found is None:
        return f"{name} is not among the libraries of this process"
    version = _package_of(found, deadline_s)
    return f"{found} ({version})" if version else found


def _package_of(file: str, deadline_s: float) -> str:
    query = shutil.which("dpkg-query")
    if not query:
        return ""
    try:
        owner = output_of([query, "-S", file], deadline_s).partition(": ")[0]
        return output_of([query, "-W", "-f", "${Package} ${Version}", owner], deadline_s)
    except Failed:  # inside a wheel, or built by hand: no package has it
        return ""


def _first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""
