"""Files that are either whole or absent, and folders that vanish with the process."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Iterator

from ..whole_files import replacing


def write_whole(path: Path, text: str) -> None:
    """Writes ``text`` under a temporary name and renames it: readers never see half.

    A link is followed. A device or a pipe is written to as it is, never replaced by a file.
    """
    if path.exists() and not path.is_file():
        _write_through(path, text)
        return
    with replacing(os.path.realpath(path)) as file:
        file.write(text.encode())


def _write_through(path: Path, text: str) -> None:
    # Without O_NONBLOCK, opening a pipe that nobody reads would wait for ever.
    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(handle, True)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


# Waits for the end of its standard input, which only the launcher holds open: it comes with the
# launcher's last breath, whatever ended it. Twice, since a dying worker may still create a file.
_SWEEP = 'trap "" INT TERM HUP; cat >/dev/null; rm -rf -- "$1"; sleep 0.2; rm -rf -- "$1"'


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder for logs and the rendezvous, removed even when this process is killed."""
    folder = Path(tempfile.mkdtemp(prefix="gradwire-bench-"))
    sweeper = subprocess.Popen(
        ["/bin/sh", "-c", _SWEEP, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        sweeper.communicate()  # closes its input and waits
