"""Files that are either whole or absent, whatever else writes in their folder."""

import contextlib
import os
import secrets
import stat
from typing import BinaryIO, Iterator, Union

__all__ = ["replacing"]

_MOST_NAME = 200  # bytes of the name that the temporary one begins with: 255 is the longest


@contextlib.contextmanager
def replacing(path: Union[str, bytes, "os.PathLike[str]"]) -> Iterator[BinaryIO]:
    """A new file, which takes the path's place when the block ends, on the disk; when the block raises
    it goes away, and what was there stays.

    It has a name beside the path that nobody can know before, and what is found under that name, a
    link or a pipe, is not touched. Its permissions are those that open() would give.

    Raises:
        OSError: it cannot be written.
    """
    target = os.fsencode(path)
    folder, name = os.path.split(target)
    partial = os.path.join(folder, name[:_MOST_NAME] + b".%s.partial" % secrets.token_hex(8).encode())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(partial, flags, 0o666)
    try:
        with open(handle, "wb") as out:
            _keep_permissions(handle, target)
            yield out
            out.flush()
            os.fsync(handle)
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
        raise


def _keep_permissions(handle: int, target: bytes) -> None:
    """Those of the file whose place it takes, as where open() writes over it."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(target)
        if stat.S_ISREG(found.st_mode):
            os.fchmod(handle, stat.S_IMODE(found.st_mode) & 0o777)
