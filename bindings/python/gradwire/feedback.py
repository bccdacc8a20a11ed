"""Error feedback for one gradient: a compressor together with what its payloads left out."""

from typing import Any, Dict, List, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from ._core import Compressor, DeviceArray, parse_spec
from .errors import InvalidArgument, NonFiniteGradient

__all__ = ["Feedback"]

_IDENTITY = ("spec", "numel", "dtype", "seed", "rank")


class Feedback:
    """Compresses one gradient per step and keeps what each payload left out for the next one.

    Transactional: compress() writes a second residual buffer, commit() makes it the current one,
    rollback() forgets it. A step that fails in between costs nothing. Arguments are those of
    Compressor; a spec without error feedback keeps no residual and only counts steps. With one
    buffer in place of two, and no rollback but by restore(): Compressor.compress_accumulated().

    With ef21 what decompress() returns is the gradient's estimate: what it was after the last
    commit(), the same on every rank, plus the mean of the payloads. Each rank calls it, between
    compress() and commit(), with scale 1 / world_size; the gradient is float32.

    So does powersgd with shapes: what decompress() of all ranks' payloads returned last is what the
    next step begins with. With rounds=2 a step is compress(), take_first(), compress_second(),
    decompress(), commit().

    With start= or warmup= the compressor is another one in the first steps, from commit to commit, and
    residual, velocity and estimate go from one to the next; on a GPU compress() waits in those steps.

    With device "cuda" all arrays and the residuals are in the memory of that GPU, and calls are
    enqueued on the `stream` they are given, as Compressor's; commit() decides there, and check() says
    what stopped it: with ef21 also an estimate that overflowed.

    Sources: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; ef21: Richtarik et
    al., arXiv:2106.05203; with an eta: Fatkhullin et al., arXiv:2305.15155.
    """

    def __init__(
        self,
        spec: str,
        numel: int,
        dtype: Any = "float32",
        seed: int = 0,
        rank: int = 0,
        threads: int = 1,
        world_size: int = 1,
        *,
        shapes: Optional[Sequence[Sequence[int]]] = None,
        device: str = "cpu",
    ) -> None:
        self._spec = parse_spec(spec)
        if self._spec.residual != "float32":
            raise InvalidArgument(
                f"spec: is '{spec}', must be one with float32 residuals, all that Feedback keeps")
        self._arguments = (numel, dtype, seed, rank, threads, world_size)
        self._options: Dict[str, Any] = {"shapes": shapes, "device": device}
        self._changes_at = self._spec.next_change(0)
        now = str(self._spec.in_step(0))
        self.compressor = Compressor(now, *self._arguments, **self._options)
        self._on_gpu = self.compressor.device != "cpu"
        # On a GPU they keep their places, and its parity says which is the committed one.
        self._committed, self._next = self._new_residual(), self._new_residual()
        self._pending = False
        # Of powersgd: whether what the next step begins with is known.
        self._learns = shapes is not None and parse_spec(now).rank > 0
        self._learned = False
        # Of ef21: the committed estimate, and what the last decompress() made of it, as the residuals.
        self._estimate: Any = None
        self._next_estimate: Any = None
        self._estimated = False  # in the step that is pending
        if self._spec.ef21:
            if self.compressor.dtype != "float32":
                raise InvalidArgument(
                    f"dtype: is {self.compressor.dtype}, must be float32 with ef21")
            self._estimate, self._next_estimate = self._new_floats(), self._new_floats()

    @property
    def step(self) -> int:
        """Commits so far."""
        return self.compressor.step

    @property
    def residual(self) -> Any:
        """The committed residual, read-only, or None when the spec keeps none. On a GPU a DeviceArray
        until the next commit(); waits."""
        if self._committed is None:
            return None
        if self._on_gpu:
            return self._of_parity(self._committed, self._next)
        view: npt.NDArray[np.float32] = self._committed.view()
        view.flags.writeable = False
        return view

    def compress(self, gradient: Any, out: Any = None, *, stream: Any = None) -> Any:
        """Returns the payload of gradient + residual; commit() or rollback() comes next, with two
        rounds take_first().

        Called again before that, it starts over: the same gradient gives the same bytes.

        Raises:
            InvalidArgument: for an array of another dtype or size, or one that is not contiguous.
        """
        self.rollback()
        self._begin_stage()
        payload = self.compressor.compress(
            gradient, self._committed, self._next, out, stream)
        self._pending = self.compressor.rounds == 1
        return payload

    def take_first(
        self, payloads: Union[Any, List[Any]], scale: float = 1.0, *, stream: Any = None
    ) -> None:
        """Between two rounds: takes all ranks' first payloads, as Compressor.take_first does."""
        self.compressor.take_first(payloads, scale, stream)

    def compress_second(self, gradient: Any, out: Any = None, *, stream: Any = None) -> Any:
        """Returns the payload of the second round, of the gradient that compress() was given.

        Raises:
            InvalidArgument: as of compress(); there is one round; there was no take_first().
        """
        self.rollback()
        payload = self.compressor.compress_second(
            gradient, self._committed, self._next, out, stream)
        self._pending = True
        return payload

    def decompress(
        self, payloads: Union[Any, List[Any]], scale: float = 1.0, out: Any = None, *,
        stream: Any = None,
    ) -> Any:
        """Returns scale * (sum of the payloads), as Compressor.decompress does; with ef21 the
        estimate plus that. A sum that overflows raises NonFiniteGradient, on the CPU at once."""
        array = self.compressor.decompress(payloads, scale, out, stream)
        if self._estimate is not None:
            self.compressor.add_estimate(array, self._estimate, self._next_estimate, stream)
            self._estimated = True
        self._learned = self._pending
        return array

    def commit(self, *, stream: Any = None, skip: bool = False) -> None:
        """Makes the residual of the last compress() the current one; on a GPU it is enqueued.

        Args:
            stream, skip: on a GPU, as of Compressor.commit(); None: the stream of the last call.

        Raises:
            NonFiniteGradient: the gradient held NaN or infinity, the sum of the payloads overflowed,
                or with ef21 the estimate; nothing was committed.
            InvalidArgument: there was no compress() since the last commit() or rollback(), with two
                rounds no compress_second(); no decompress() of a step that needs one.
        """
        if not self._pending:
            last = "compress()" if self.compressor.rounds == 1 else "compress_second()"
            raise InvalidArgument(f"commit: nothing is pending, must follow a {last}")
        if self._estimate is not None and not self._estimated:
            raise InvalidArgument(
                "commit: with ef21 the estimate is pending, must follow a decompress() of the step")
        if self._learns and not self._learned:
            raise InvalidArgument(
                f"commit: '{self.compressor.spec}' learns from the payloads of all ranks, must "
                "follow a decompress() of the step")
        if self._estimate is not None and not self._on_gpu and not np.isfinite(self._next_estimate).all():
            raise NonFiniteGradient(
                f"'{self.compressor.spec}', step {self.step}: the estimate of ef21 overflows float32, "
                "expected finite values; nothing was committed")
        self.compressor.commit(stream, skip)
        if not self._on_gpu:
            self._committed, self._next = self._next, self._committed
            self._estimate, self._next_estimate = self._next_estimate, self._estimate
        self.rollback()

    def check(self, stream: Any = None) -> None:
        """On a GPU waits, and raises what stopped commits, as Compressor.check() does."""
        self.compressor.check(stream)

    def rollback(self) -> None:
        """Forgets the last compress(); the committed residual stays as it was."""
        self._pending = False
        self._learned = False
        self._estimated = False

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint needs: the identity, the committed step, what the compressor learned in
        such steps, and copies of the residual, the velocity and, with ef21, the estimate."""
        self._begin_stage()
        state: Dict[str, Any] = {name: getattr(self.compressor, name) for name in _IDENTITY}
        state["spec"] = str(self._spec)
        if self.compressor.shapes is not None:
            state["shapes"] = self.compressor.shapes
        state["step"] = self.step
        state["learned"] = self.compressor.state
        state["residual"] = _copy(self.residual)
        if self._estimate is not None:
            state["estimate"] = _copy(self._of_parity(self._estimate, self._next_estimate))
        velocity = self.compressor.velocity
        if velocity is not None:
            state["velocity"] = velocity
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what state_dict() returned; what is pending is forgotten.

        Raises:
            InvalidArgument: the state is of another spec, size, dtype, seed or rank, of other shapes,
                or is cut short; nothing was changed.
        """
        if self._spec.next_change(0) is not None:
            self._load_in_stage(state)
            return
        velocity = self.compressor.velocity
        options = (("estimate", self._estimate), ("velocity", velocity))
        more = [name for name, mine in options if mine is not None]
        for name in (*_IDENTITY, "step", "learned", "residual", *more):
            if name not in state:
                raise InvalidArgument(f"state['{name}']: is missing, must be there")
        for name in _IDENTITY:
            mine = getattr(self.compressor, name)
            if state[name] != mine:
                raise InvalidArgument(f"state['{name}']: is {state[name]!r}, must be {mine!r}")
        c = self.compressor
        if state.get("shapes") != c.shapes:
            raise InvalidArgument(
                f"state['shapes']: is {state.get('shapes')!r}, must be {c.shapes!r}")
        kept = {}
        for name, mine in (("residual", self._committed), *options):
            if mine is None:
                continue
            given = kept[name] = np.asarray(state[name])
            if given.dtype != np.float32 or given.shape != tuple(mine.shape):
                raise InvalidArgument(
                    f"state['{name}']: is {given.dtype} of shape {given.shape}, "
                    f"must be float32 of shape {mine.shape}"
                )
            if not np.isfinite(given).all():
                raise InvalidArgument(f"state['{name}']: holds NaN or infinity, must be finite")
        trial = Compressor(
            c.spec, c.numel, c.dtype, c.seed, c.rank, 1, c.world_size, shapes=c.shapes,
            device=c.device)
        for compressor in (trial, c):  # what the first one takes, the other takes as well
            compressor.step = state["step"]
            try:
                compressor.state = [] if self._on_gpu else state["learned"]  # there it searches anew
            except TypeError:
                raise InvalidArgument(
                    f"state['learned']: is {state['learned']!r}, must be a list of integers from 0"
                ) from None
            except InvalidArgument as error:
                raise InvalidArgument(f"state['learned']: {error}") from None
        for name, pair in (("residual", (self._committed, self._next)),
                           ("estimate", (self._estimate, self._next_estimate))):
            if name in kept and self._on_gpu:
                self._of_parity(*pair).assign(kept[name])
            elif name in kept:
                pair[0][:] = kept[name]
        if velocity is not None:
            c.velocity = kept["velocity"]
        self.rollback()

    def _load_in_stage(self, state: Dict[str, Any]) -> None:
        """load_state_dict() of a spec that is another one in its first steps."""
        if state.get("spec") != str(self._spec):
            raise InvalidArgument(f"state['spec']: is {state.get('spec')!r}, must be {str(self._spec)!r}")
        step = state.get("step")
        if not isinstance(step, int) or not 0 <= step < 1 << 32:
            raise InvalidArgument(f"state['step']: is {step!r}, must be a number of steps from 0")
        stage = self._stage(step)
        stage.load_state_dict({**state, "spec": stage.compressor.spec})
        self._adopt(stage, step)

    def _begin_stage(self) -> None:
        """Between steps: where as many are committed as the compressor stays the same for, the next one."""
        if self._changes_at is None or self.step < self._changes_at:
            return
        step, stage = self.step, self._stage(self.step)
        state = {**stage.state_dict(), "step": step}
        kept = {
            "residual": _copy(self.residual),
            "velocity": self.compressor.velocity,
            "estimate": _copy(self._of_parity(self._estimate, self._next_estimate)),
        }
        state.update((name, mine) for name, mine in kept.items()
                     if mine is not None and state.get(name) is not None)  # fmt: skip
        stage.load_state_dict(state)
        self._adopt(stage, step)

    def _stage(self, step: int) -> "Feedback":
        """What compresses behind so many commits, with nothing kept yet."""
        return Feedback(str(self._spec.in_step(step)), *self._arguments, **self._options)

    def _adopt(self, stage: "Feedback", step: int) -> None:
        self.compressor, self._learns = stage.compressor, stage._learns
        self._committed, self._next = stage._committed, stage._next
        self._estimate, self._next_estimate = stage._estimate, stage._next_estimate
        self._changes_at = self._spec.next_change(step)
        self.rollback()

    def _new_residual(self) -> Any:
        return self._new_floats() if self.compressor.keeps_residual else None

    def _new_floats(self) -> Any:
        c = self.compressor
        return DeviceArray("float32", [c.numel], c.device) if self._on_gpu else np.zeros(c.numel, np.float32)

    def _of_parity(self, first: Any, second: Any) -> Any:
        """Which of the two is committed; on a GPU it waits."""
        return (first, second)[self.compressor.parity]

    def __repr__(self) -> str:
        c = self.compressor
        return f"Feedback('{self._spec}', {c.numel}, '{c.dtype}')"


def _copy(kept: Any) -> Any:
    """In CPU memory; None stays None."""
    return None if kept is None else kept.to_numpy() if isinstance(kept, DeviceArray) else kept.copy()
