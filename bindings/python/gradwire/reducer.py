"""The Reducer, with checkpoints in files."""

import contextlib
import io
import os
from typing import BinaryIO, Callable, Optional, Union

from . import _core
from .errors import InvalidArgument

__all__ = ["Checkpoint", "Reducer"]

# What holds a rank's checkpoint: a path, its bytes, or an object with read(most_bytes) -> bytes.
Checkpoint = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, BinaryIO]


class Reducer(_core.Reducer):
    __doc__ = _core.Reducer.__doc__

    def save(self, file: Union[str, "os.PathLike[str]", BinaryIO]) -> None:
        """Writes what this rank keeps between steps: residuals, counters, what compressors learned.

        Between steps, or after a TransportError. Parameters and optimizer state are the caller's.
        The format is that of comm/CHECKPOINT_FORMAT.md: one file per rank.

        Args:
            file: a path, which is replaced as a whole once all is written to PATH.partial and on
                the disk; or an object with write(bytes) -> int, which is not flushed.

        Raises:
            InvalidArgument: a step has begun, or write() does not say how many bytes it took.
            OSError: the file cannot be written; what was at the path is still there.
        """
        if hasattr(file, "write"):
            super().save(file)
            return
        path = os.fspath(file)
        partial = f"{path}.partial"
        try:
            with open(partial, "wb") as out:
                super().save(out)
                out.flush()
                os.fsync(out.fileno())
            os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
            raise

    def load(self, open: Callable[[int], Optional[Checkpoint]]) -> None:
        """Continues where save() was called. Collective, between steps.

        With as many ranks bit for bit. With another number of them rank j takes over the residuals
        of the old ranks i with i % world_size == j, times new / old world size, so that the mean
        update that waits stays what it was. Arrays of gradient() stay valid.

        Args:
            open: open(rank) returns what that rank saved: a path, bytes, or an object with
                read(most_bytes) -> bytes; None, or a path where there is no file, when there was
                no such rank. It is called for the ranks whose checkpoints this one needs, once
                each, and may not call the reducer.

        Raises:
            InvalidArgument: on every rank, when one finds its checkpoint missing, damaged, of
                other parameters or of another step than rank 0's; nothing has changed then.
            TransportError: the group is finished.
            What open() or read() raise, on their rank; the others get InvalidArgument.
        """
        with contextlib.ExitStack() as opened:
            super().load(lambda rank: _readable(open(rank), opened))


def _readable(found: Optional[Checkpoint], opened: contextlib.ExitStack) -> Optional[BinaryIO]:
    if found is None:
        return None
    if isinstance(found, (bytes, bytearray, memoryview)):
        return io.BytesIO(found)
    if isinstance(found, (str, os.PathLike)):
        try:
            return opened.enter_context(open(found, "rb"))
        except FileNotFoundError:
            return None
    if not hasattr(found, "read"):
        raise InvalidArgument(
            f"open: returned a {type(found).__name__}, must be a path, bytes, an object with read() "
            "or None"
        )
    return found
