"""Where the compiled files are: in an editable install they are not beside the sources."""

from pathlib import Path
from typing import Optional

from . import _core

__all__ = ["checker", "package", "plugin", "trainer"]

_INSTALLED = Path(_core.__file__).resolve().parent


def package() -> Path:
    """The folder the compiled files were installed to."""
    return _INSTALLED


def trainer() -> Optional[Path]:
    """The program gradwire-trainer, or None when it was not built."""
    path = _INSTALLED / "bin" / "gradwire-trainer"
    return path if path.is_file() else None


def checker() -> Path:
    """The program gradwire-check, which `gradwire check` runs."""
    return _INSTALLED / "bin" / "gradwire-check"


def plugin(transport: str) -> Optional[Path]:
    """The plug-in of a transport such as "gloo", or None when it was not built."""
    path = _INSTALLED / "lib" / f"libgradwire_{transport}.so"
    return path if path.is_file() else None
