"""The Reducer, with steps out of place and checkpoints in files."""

import contextlib
import io
import os
from typing import Any, BinaryIO, Callable, List, Optional, Sequence, Union

import numpy as np

from . import _core
from .arrays import viewed
from .errors import InvalidArgument
from .whole_files import replacing

__all__ = ["Checkpoint", "Reducer"]

# What holds a rank's checkpoint: a path, its bytes, or an object with read(most_bytes) -> bytes.
Checkpoint = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, BinaryIO]


class Reducer(_core.Reducer):
    __doc__ = _core.Reducer.__doc__

    _sizes: Optional[List[int]] = None  # elements of each parameter

    def mean(
        self, gradients: Sequence[Any], *, convert: Optional[Callable[[np.ndarray], Any]] = None
    ) -> Optional[List[Any]]:
        """A whole step out of place, for gradients that exist at once and nobody may change, as JAX's.

            leaves, tree = jax.tree.flatten(gradients)
            gradients = jax.tree.unflatten(tree, reducer.mean(leaves))

        Each is copied once, into its bucket, in backward's order: the last parameter's bucket leaves
        while others are copied.

        Args:
            gradients: an array per parameter of the plan, of its size: float32, float16 or bfloat16
                (ml_dtypes, or uint16 holding its bits), in C order in CPU memory.
            convert: what each mean, a new NumPy array, is passed through, such as jax.numpy.asarray.

        Returns:
            The means of all ranks, each of the shape and dtype of what was given; None for a step
            that was skipped because of gradients that are not finite.

        Raises:
            InvalidArgument: an array does not fit, and nothing has left; or a parameter is ready
                already, and those behind it have been handed over.
            NonFiniteGradient, TransportError: as wait().
        """
        if self.device != "cpu":
            raise InvalidArgument(
                f"mean: gradients are on {self.device}, must be in CPU memory; there are give_from() and "
                "write_means()"
            )
        if self._sizes is None:  # the same for every plan that this one may be given
            self._sizes = [self.gradient(p).size for p in range(len(self.plan.parameters))]
        sizes = self._sizes
        if len(gradients) != len(sizes):
            raise InvalidArgument(
                f"gradients: holds {len(gradients)} arrays, must hold {len(sizes)}, one per parameter"
            )
        views = [viewed(g, f"gradients[{i}]") for i, g in enumerate(gradients)]
        dtypes = [_dtype_of(view, f"gradients[{i}]") for i, view in enumerate(views)]
        for i, (view, size) in enumerate(zip(views, sizes)):
            if view.size != size:
                raise InvalidArgument(
                    f"gradients[{i}]: has {view.size} elements, must have {size}"
                )
        for i in reversed(range(len(views))):
            if views[i].size > 0:
                self.give_from([i], views[i].ctypes.data, dtypes[i])
            else:
                self.grad_ready(i)
        if not self.wait():
            return None
        means = [np.empty_like(view) for view in views]
        for i, (mean, dtype) in enumerate(zip(means, dtypes)):
            if mean.size > 0:
                self.write_means([i], mean.ctypes.data, dtype)
        return means if convert is None else [convert(mean) for mean in means]

    def save(self, file: Union[str, "os.PathLike[str]", BinaryIO]) -> None:
        """Writes what this rank keeps between steps: residuals, counters, what compressors learned.

        Between steps, or after a TransportError. Parameters and optimizer state are the caller's.
        The format is that of comm/CHECKPOINT_FORMAT.md: one file per rank.

        Args:
            file: a path, which is replaced as a whole once all is written and on the disk, by a file
                of another name beside it; or an object with write(bytes) -> int, which is not flushed.

        Raises:
            InvalidArgument: a step has begun, or write() does not say how many bytes it took.
            OSError: the file cannot be written; what was at the path is still there.
        """
        if hasattr(file, "write"):
            super().save(file)
            return
        with replacing(file) as out:
            super().save(out)

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


def _dtype_of(view: np.ndarray, what: str) -> str:
    name = {"uint16": "bfloat16"}.get(view.dtype.name, view.dtype.name)
    if name not in ("float32", "float16", "bfloat16") or not view.dtype.isnative:
        raise InvalidArgument(f"{what}: dtype is {view.dtype}, must be float32, float16 or bfloat16")
    return name


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
