"""Where a measurement was made and with what."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Optional

from gradwire.bench.job import cores
from gradwire.bench.types import Document


def load() -> float:
    """Runnable processes over the last minute."""
    return round(os.getloadavg()[0], 2)


def started() -> float:
    """When this process began, on time.monotonic()'s clock: what was loaded since counts, too."""
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        age = 0.0
    # A process that is much older has done other things: then the call began it.
    return time.monotonic() - (age if 0 < age < 60 else 0.0)


def machine() -> Document:
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "load_at_start": load(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "system": _system(),
        "memory_gib": _memory_gib(),
        "torch": _version_of("torch"),
    }


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "not said")
    except (OSError, AttributeError):  # no such file, or Python 3.9
        return "not said"


def _memory_gib() -> Optional[float]:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (OSError, ValueError):
        return None


def _version_of(package: str) -> Optional[str]:
    """Without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def version() -> Optional[str]:
    return _version_of("gradwire")


def commit() -> Optional[str]:
    """Of the build, "-dirty" where it had changes; without the compiled module that of the checkout this
    file lies in, if it does."""
    core = sys.modules.get("gradwire._core")
    if core is not None:
        return core.build_info().get("commit") or None
    folder = Path(__file__).resolve().parent
    if not any((parent / ".git").exists() for parent in folder.parents):
        return None
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or os.uname().machine
