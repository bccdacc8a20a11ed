"""Text that every machine has."""

from __future__ import annotations

import sysconfig
from pathlib import Path


def standard_library(most_bytes: int) -> bytes:
    """The sources of Python's standard library, one behind the other, up to so many bytes."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = b""
    for file in sorted(folder.glob("*.py")):
        found += file.read_bytes()
        if len(found) >= most_bytes:
            break
    return found[:most_bytes]
