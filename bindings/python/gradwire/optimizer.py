"""Optimizers by their spec, stepping in place on arrays of the CPU or of one GPU."""

import inspect
from typing import Any, Dict, List, Optional, Sequence, Union

from . import _core
from ._core import GroupPayloads, Transport
from .arrays import refuse_one_array
from .errors import InvalidArgument
from .param_groups import ParamGroup, checked_rate, group_of_dict, near_text, places_of, row_of

__all__ = ["Optimizer"]


class Optimizer:
    """An optimizer by its spec, such as "lamb:weight_decay=0.01" (see gradwire.optimizers()).

    Args:
        spec: name and settings.
        parameters: arrays in C order, changed in place by step(): float32, or float16 or bfloat16
            (ml_dtypes, or uint16 holding its bits), of which the optimizer keeps exact masters.
        gradients: one array per parameter, of the same size and of any of these dtypes; read by
            every step(), so write the next gradient into the same memory.
        lr: learning rate of steps that are given none.
        groups: settings of some parameters, as ParamGroup or dicts of its fields.
        names: of the parameters, for messages and checkpoints; "0", "1", ... by default.
        threads: of the loops; results have the same bits for any number.
        slices: a transport each of whose ranks holds slices of the same parameters, in the same
            order; a slice may be empty. Norms are then those of whole parameters, and a gradient
            that is not finite on one rank leaves the step out on all. step() is collective: the
            ranks call it in one order with all else on the transport. Not for onebit-adam and
            onebit-lamb.
        stream: of arrays in the memory of a GPU, which all of them are in then: the one that they were
            written on (see below). Waited for, since masters are made of what parameters hold.

    On a GPU (arrays of CuPy, torch or JAX, by DLPack) state is there as well, and each call takes the
    `stream` its work is enqueued on: a handle, an object with `cuda_stream`, `ptr` or
    `__cuda_stream__`, or None for the current stream of the parameters' library. Nothing waits but
    what says so.

    Raises:
        InvalidArgument: for a bad spec, a learning rate that is negative or not finite, a setting that
            the optimizer does not have, arrays that cannot be viewed in place, sizes that differ, and
            for parameters in GPU memory arrays elsewhere.
        DeviceError: the GPU cannot be used, and why.
    """

    def __init__(
        self,
        spec: str,
        parameters: Sequence[Any],
        gradients: Sequence[Any],
        lr: float,
        *,
        groups: Sequence[Union[ParamGroup, Dict[str, Any]]] = (),
        names: Optional[Sequence[str]] = None,
        threads: int = 1,
        slices: Optional[Transport] = None,
        stream: Any = None,
        **unknown: Any,
    ) -> None:
        _refuse_unknown(type(self), unknown)
        refuse_one_array("parameters", parameters)
        refuse_one_array("gradients", gradients)
        rows = [g if isinstance(g, ParamGroup) else group_of_dict(g) for g in groups]
        self.lr: float = checked_rate(lr)
        self._core = _core.Optimizer(
            spec,
            list(parameters),
            list(gradients),
            [str(i) for i in range(len(parameters))] if names is None else list(names),
            places_of(rows, len(parameters)),
            [row_of(ParamGroup(()))] + [row_of(g) for g in rows],
            threads,
            stream,
        )
        if slices is not None:
            self._core.set_slices(slices)

    @property
    def spec(self) -> str:
        """The canonical spec text."""
        return self._core.spec

    @property
    def device(self) -> str:
        """Where parameters, gradients and state are: "cpu", or "cuda:" and the number of a GPU."""
        return self._core.device

    @property
    def state_bytes(self) -> int:
        """Memory of all state and masters."""
        return self._core.state_bytes

    @property
    def exchanges(self) -> str:
        """What the next step exchanges: "gradients", or what prepare() writes in their place,
        "momentum" (1-bit Adam and 1-bit LAMB, once v stays) or "moves" (DiLoCo). On a GPU it waits."""
        return self._core.exchanges

    def prepare(self, gradient_scale: float = 1.0, *, stream: Any = None) -> None:
        """Writes to the gradients what is to be exchanged, unless it is these. Once a step.

        Args:
            gradient_scale: what gradients are multiplied by as they are read; step() is to be given
                the same.
            stream: on a GPU.

        Raises:
            InvalidArgument: gradient_scale is not in (0, 1], or of moves not 1.
        """
        self._core.prepare(gradient_scale, stream)

    def step(
        self,
        lr: Optional[float] = None,
        *,
        gradient_scale: float = 1.0,
        known_finite: bool = False,
        payloads: Sequence[GroupPayloads] = (),
        on_nonfinite: str = "error",
        stream: Any = None,
        loss_scale: Any = None,
        found_inf: Any = None,
    ) -> None:
        """Updates all parameters in place from their gradients.

        Args:
            lr: instead of self.lr.
            payloads: groups from Reducer.take_payloads(), of plans whose parameters are this
                optimizer's, or made as GroupPayloads: the gradients of their parameters are read from
                there, a piece at a time, and never lie in memory as a whole. The others' are in memory
                as ever. On a GPU payloads are there too, and stay until the stream has passed the
                step; one that does not decode leaves the step out, and check() raises it.
            gradient_scale: what gradients are multiplied by as they are read, in (0, 1]: 1 over a
                loss scale, or over a number of gradients added up.
            known_finite: no gradient holds NaN or infinity, as after Reducer.wait(); saves SGD and
                AdamW a pass. Where it is not so, state is lost to NaN.
            on_nonfinite: "skip" leaves out a step whose gradients are not finite, and counts it
                (skipped_steps()); "error" raises.
            stream: on a GPU.
            loss_scale, found_inf: on a GPU arrays of one float32 there, read when the step runs: what
                gradients are divided by, and what leaves the step out, and counts it, unless it is 0.

        Raises:
            NonFiniteGradient: a gradient held NaN or infinity; nothing was changed, state included.
                On a GPU check() raises it, and no step changes anything until then.
            InvalidArgument: the learning rate is negative or not finite, gradient_scale is not in
                (0, 1], or payloads do not decode or are of other parameters; nothing was changed.
        """
        rate = self.lr if lr is None else lr
        skip = _skips(on_nonfinite)
        if payloads:
            self._core.step_from(
                list(payloads), rate, gradient_scale, known_finite, skip, stream, loss_scale, found_inf
            )
        else:
            self._core.step(
                rate, gradient_scale, known_finite, skip, stream, loss_scale, found_inf
            )

    def step_on(
        self,
        gradients: Sequence[Any],
        lr: Optional[float] = None,
        *,
        gradient_scale: float = 1.0,
        known_finite: bool = False,
        on_nonfinite: str = "error",
        stream: Any = None,
        loss_scale: Any = None,
        found_inf: Any = None,
    ) -> None:
        """Steps on other gradients than those in memory, this once.

        Args:
            gradients: an array for each parameter, of its size and of any dtype that gradients may
                have; only read, so that they may be immutable. On a GPU their library's stream is
                the one that None means.
            lr, gradient_scale, known_finite, on_nonfinite, stream, loss_scale, found_inf: as of step().

        Raises:
            NonFiniteGradient, InvalidArgument: as step(), or an array does not fit; nothing was
                changed.
        """
        rate = self.lr if lr is None else lr
        self._core.step_on(
            list(gradients), rate, gradient_scale, known_finite, _skips(on_nonfinite), stream,
            loss_scale, found_inf,
        )  # fmt: skip

    def check(self, stream: Any = None) -> None:
        """On a GPU waits, and raises what has kept steps from being made; steps are made again then.

        Call it once in a while. On the CPU steps raise for themselves.

        Raises:
            NonFiniteGradient: naming the first parameter whose gradient held NaN or infinity.
            InvalidArgument: a loss scale that is not finite and above 0, or payloads that did not
                decode.
        """
        self._core.check(stream)

    def skipped_steps(self, stream: Any = None) -> int:
        """How many steps were left out so far; on a GPU it waits."""
        return self._core.skipped_steps(stream)

    def values_changed(self, stream: Any = None) -> None:
        """Takes values of 16 bits as they are for their masters, exactly.

        Steps go on from what others write to parameters (a checkpoint, a broadcast) by themselves; but
        of bfloat16 with `master="remainder"` the other 16 bits stay what they were until this is called.
        """
        self._core.values_changed(stream)

    def follow(self, stream: Any = None) -> None:
        """On a GPU the next call's work goes behind what that stream has by now, such as copies that
        others make of parameters."""
        self._core.follow(stream)

    def state_dict(self) -> Dict[str, Any]:
        """Copies in CPU memory of everything a checkpoint needs besides the parameters; on a GPU it
        waits for the work there."""
        scalars, tensors = self._core.state()
        return {"spec": self.spec, "lr": self.lr, "scalars": scalars, "tensors": tensors}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what state_dict() returned, also by an optimizer that kept its state in the
        other of float32 and 8 bits: it takes the form that this one keeps. Codes become exactly what
        they stand for, and floats the nearest codes. What prepare() wrote before is void.

        Raises:
            InvalidArgument: the state is of another spec but for `state` and `min_8bit_size`, of
                other parameters, or none that an optimizer writes, and nothing was changed.
        """
        for key in ("spec", "lr", "scalars", "tensors"):
            if key not in state:
                raise InvalidArgument(f"state['{key}']: is missing, must be there")
        if not isinstance(state["spec"], str) or _formula(state["spec"]) != _formula(self.spec):
            raise InvalidArgument(f"state['spec']: is {state['spec']!r}, must be {self.spec!r}")
        self._core.load_state(state["scalars"], state["tensors"])
        self.lr = state["lr"]

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.spec}', lr={self.lr})"


def _refuse_unknown(kind: type, unknown: Dict[str, Any]) -> None:
    """Raises InvalidArgument where there is one: of settings that no constructor of the kind takes."""
    known: List[str] = []
    for each in kind.__mro__:
        if "__init__" in vars(each) and each is not object:
            parameters = inspect.signature(vars(each)["__init__"]).parameters.values()
            own = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
            known += [name for name in own if name not in known]
    for name in unknown:
        raise InvalidArgument(
            f"{kind.__name__}: unknown setting '{name}'{near_text(name, known)}, known: {', '.join(known)}"
        )


def _skips(on_nonfinite: str) -> bool:
    if on_nonfinite not in ("error", "skip"):
        raise InvalidArgument(f"on_nonfinite: is {on_nonfinite!r}, must be 'error' or 'skip'")
    return on_nonfinite == "skip"


def _formula(spec: str) -> str:
    """The spec without the form that state is kept in."""
    name, _, keys = spec.partition(":")
    kept = [k for k in keys.split(",") if k.split("=")[0] not in ("state", "min_8bit_size")]
    return f"{name}:{','.join(kept)}"
