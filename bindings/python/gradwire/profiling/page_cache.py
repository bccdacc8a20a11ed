"""Files out of the page cache and into it, without privileges and without touching anyone else's."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Iterable, List, Sequence

from ..errors import InvalidArgument

__all__ = ["evict", "files_under", "read_through", "resident_bytes"]

_CHUNK = 1 << 20


def files_under(places: Iterable[str]) -> List[Path]:
    """The files among these paths and in the folders among them, all the way down.

    Raises InvalidArgument for a path that is not there, and where there is no file at all.
    """
    found: List[Path] = []
    for text in places:
        place = Path(text)
        if not place.exists():
            raise InvalidArgument(f"data: {place} is not there, expected a file or a folder")
        found += sorted(p for p in place.rglob("*") if p.is_file()) if place.is_dir() else [place]
        if not found:
            raise InvalidArgument(f"data: {place} holds no file, expected at least one")
    return found


def evict(files: Sequence[Path]) -> None:
    """Asks the kernel to forget what it has cached of these files: reading them reads the disk.

    It may keep pages (those that a process has mapped, those of file systems in memory):
    resident_bytes() tells.
    """
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.fsync(handle)  # what is not on the disk yet cannot be forgotten
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def read_through(files: Sequence[Path]) -> None:
    """Reads the files once, so that the kernel has them."""
    for file in files:
        with open(file, "rb", buffering=0) as opened:
            while opened.read(_CHUNK):
                pass


def resident_bytes(files: Sequence[Path]) -> int:
    """How many of the files' bytes the kernel has in memory, in whole pages."""
    return sum(_resident(file) for file in files)


def _resident(file: Path) -> int:
    size = file.stat().st_size
    if size == 0:
        return 0
    with open(file, "rb") as opened:
        # Private and writable: ctypes takes no other buffer. Nothing is written, no page is read.
        view = mmap.mmap(opened.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    start = ctypes.c_char.from_buffer(view)
    try:
        address = ctypes.c_void_p(ctypes.addressof(start))
        library = ctypes.CDLL(None, use_errno=True)
        if library.mincore(address, ctypes.c_size_t(size), pages) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), str(file))
    finally:
        del start  # the view cannot be closed while someone points into it
        view.close()
    return sum(page & 1 for page in pages) * mmap.PAGESIZE
