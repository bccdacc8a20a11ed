"""Optimizer steps for arrays that nobody may change, as those of JAX."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import numpy as np

from ._core import DeviceArray, device_copy
from .arrays import gpu_of, viewed
from .device_streams import handle_of
from .errors import InvalidArgument
from .optim import Optimizer, ParamGroup
from .registries import optimizers

__all__ = ["FunctionalOptimizer"]


class FunctionalOptimizer:
    """An optimizer whose update() returns new arrays and leaves those it is given alone.

        leaves, tree = jax.tree.flatten(params)
        optimizer = gradwire.FunctionalOptimizer("lamb", leaves, lr=1e-3, convert=jax.numpy.asarray)
        params = jax.tree.unflatten(tree, optimizer.update(jax.tree.leaves(gradients)))

    It keeps the parameters' values beside its state: a step has the bits of an Optimizer's, and every
    update() hands out copies. With parameters in the memory of a GPU all of it is there, enqueued on
    the `stream` that calls are given (see Optimizer; None: the current one of the gradients' library),
    and copies are DeviceArrays, which `convert` makes arrays of a library (cupy.from_dlpack,
    jax.dlpack.from_dlpack); check() waits and raises what has kept steps from being made.

    Args:
        spec: name and settings, as of Optimizer.
        parameters: arrays to begin with, float32, or float16 or bfloat16 (ml_dtypes, or uint16 holding
            its bits), in memory of the CPU or of one GPU; copied.
        lr: learning rate of updates that are given none.
        groups, names, threads: as of Optimizer.
        convert: what update() passes each new NumPy array, or DeviceArray, through; None leaves it.
        stream: of parameters in GPU memory.

    Raises:
        InvalidArgument: for a bad spec, and for arrays that cannot be viewed.
    """

    def __init__(
        self,
        spec: str,
        parameters: Sequence[Any],
        lr: float,
        *,
        groups: Sequence[Union[ParamGroup, Dict[str, Any]]] = (),
        names: Optional[Sequence[str]] = None,
        threads: int = 1,
        convert: Optional[Callable[[Any], Any]] = None,
        stream: Any = None,
    ) -> None:
        name = spec.split(":")[0]
        if any(row.name == name and not row.steps_on_gradients for row in optimizers()):
            raise InvalidArgument(
                f"spec: is {spec!r}, must be of an optimizer that steps on gradients alone: this one's "
                "prepare() writes to them"
            )
        self._gpu = gpu_of(parameters[0]) if len(parameters) else None
        self._stream = stream
        self._values: List[Any] = []
        for i, p in enumerate(parameters):
            if self._gpu is None:
                self._values.append(np.array(viewed(p, f"parameters[{i}]")))
            else:
                self._values.append(device_copy(p, self._stream, f"parameters[{i}]"))
                self._stream = self._values[0].__gradwire_stream__
        self._convert = convert
        # update() says where gradients are.
        self._optimizer = Optimizer(
            spec, self._values, [None] * len(self._values), lr, groups=groups, names=names,
            threads=threads, stream=self._stream,
        )  # fmt: skip

    @property
    def spec(self) -> str:
        """The canonical spec text."""
        return self._optimizer.spec

    @property
    def lr(self) -> float:
        """Learning rate of updates that are given none; may be set."""
        return self._optimizer.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self._optimizer.lr = value

    def update(
        self,
        gradients: Sequence[Any],
        lr: Optional[float] = None,
        *,
        gradient_scale: float = 1.0,
        known_finite: bool = False,
        stream: Any = None,
    ) -> List[Any]:
        """Steps, and returns the parameters' new values.

        Args:
            gradients: one array per parameter, of its size and of any dtype that parameters may have;
                read where they are.
            lr, gradient_scale, known_finite, stream: as of Optimizer.step().

        Returns:
            New arrays, shaped as the parameters, through `convert`.

        Raises:
            NonFiniteGradient, InvalidArgument: as Optimizer.step(), or an array does not fit; nothing
                was changed.
        """
        if len(gradients) != len(self._values):
            raise InvalidArgument(
                f"gradients: holds {len(gradients)} arrays, must hold {len(self._values)}, one per parameter"
            )
        views = list(gradients)
        if self._gpu is None:
            views = [viewed(g, f"gradients[{i}]") for i, g in enumerate(gradients)]
        elif views:
            stream = self._stream = handle_of(stream, views[0], self._gpu)
        self._optimizer.step_on(
            views, lr, gradient_scale=gradient_scale, known_finite=known_finite, stream=stream)
        return self.parameters()

    def __repr__(self) -> str:
        return f"FunctionalOptimizer('{self.spec}', lr={self.lr})"

    def parameters(self) -> List[Any]:
        """Copies of the parameters' values as they are, through `convert`; on a GPU on the stream of
        the last update."""
        copies = self._copies()
        return copies if self._convert is None else [self._convert(copy) for copy in copies]

    def check(self, stream: Any = None) -> None:
        """As Optimizer.check()."""
        self._optimizer.check(self._stream if stream is None else stream)

    def state_dict(self) -> Dict[str, Any]:
        """Copies in CPU memory of everything a checkpoint needs, the parameters' values included."""
        values = [c.to_numpy() if isinstance(c, DeviceArray) else c for c in self._copies()]
        return {**self._optimizer.state_dict(), "values": values}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what state_dict() returned.

        Raises:
            InvalidArgument: the state is of another spec or of other parameters; nothing was changed.
        """
        values = state.get("values")
        if values is None or [v.shape for v in values] != [tuple(v.shape) for v in self._values]:
            raise InvalidArgument("state['values']: must hold an array of each parameter, shaped as it is")
        for i, (saved, value) in enumerate(zip(values, self._values)):
            mine = value.to_numpy().dtype if isinstance(value, DeviceArray) else value.dtype
            if saved.dtype != mine:
                raise InvalidArgument(f"state['values'][{i}]: dtype is {saved.dtype}, must be {mine}")
        self._optimizer.load_state_dict({k: v for k, v in state.items() if k != "values"})
        for saved, value in zip(values, self._values):
            if isinstance(value, DeviceArray):
                value.assign(saved)
            else:
                value[...] = saved

    def _copies(self) -> List[Any]:
        if self._gpu is None:
            return [v.copy() for v in self._values]
        copies = [device_copy(v, self._stream) for v in self._values]
        self._optimizer.follow(self._stream)  # the next step, on whichever stream, writes there
        return copies
