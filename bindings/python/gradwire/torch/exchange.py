"""Gradients of torch parameters through a Reducer: what DDP's hook and attach() share."""

import logging
import threading
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import torch
import torch.distributed as dist

from .. import _core
from .._core import make_plan
from ..errors import InvalidArgument, NonFiniteGradient
from ..reducer import Reducer
from .auto import Auto, parse_auto
from .checkpoint import States, state_of
from .checks import (
    DTYPES,
    check_options,
    common_device,
    common_dtype,
    plain_name,
    refuse_steps_in_backward,
    refuse_unfrozen,
)
from .figures import Shown
from .joining import check_joining, join
from .live import live, refuse_exchanged
from .loading import load_states
from .meeting import check_group
from .norms import specs_of
from .ordering import Scale, work_on
from .refused import RefusedByAll
from .scaling import Scaler, check_scaler, find_scaler, is_enabled, own_scaler
from .uncompressed import Uncompressed, without_compressor
from .updates import warns_of_two_momenta

__all__ = ["DTYPES", "GradientExchange", "Named", "RefusedByAll"]

Named = Iterable[Tuple[str, torch.Tensor]]

_MIB = 1 << 20
_LOOK_FOR_SCALERS = 2  # steps at whose begin other GradScalers and optimizers in backward are looked for

_log = logging.getLogger("gradwire")


class GradientExchange(Shown):
    """Parameters of a model, and the Reducer that averages their gradients over ranks.

    Made by register() and attach(), whose arguments these are. State is kept by parameter, so that
    nothing is lost when gradients travel in other buckets. In a group of one rank there is nothing
    to exchange: gradients stay as they are.
    """

    _given_buckets = False  # whether gradients appear in buckets of others
    _settled_by = "the exchange was made"  # which parameters it has

    def __init__(
        self,
        named: Named,
        spec: str,
        *,
        process_group: Any = None,
        carrier: str = "auto",
        timeout: float = 1800.0,
        scaler: Scaler = None,
        on_nonfinite: Optional[str] = None,
        unused: str = "error",
        threads: Optional[int] = None,
        streams: int = 1,
        launch_order: str = "plan",
        trace_steps: int = 64,
        bucket_bytes: int = 25 * _MIB,
        **plan: Any,
    ) -> None:
        check_group(process_group)
        check_options(spec, plan)
        filled = [(name, p) for name, p in named if p.numel() > 0]
        trained = [(name, p) for name, p in filled if self._takes(p)]
        self._left_out = [(name, p) for name, p in filled if not self._takes(p)]
        check_scaler(scaler, [p for _, p in trained])
        refuse_steps_in_backward(trained)
        self._work = work_on(common_device(trained))
        if unused != "error" and not self._work.waits:
            raise InvalidArgument(
                f"unused: is '{unused}', must be 'error' for gradients on {self._work.device}, where "
                "every backward has to reach all parameters"
            )
        self._process_group: Any = process_group or dist.group.WORLD
        self._world_size = dist.get_world_size(process_group)
        wide = without_compressor(trained)
        self._uncompressed = Uncompressed(wide, self._process_group, self._world_size) if wide else None
        self._named = [each for each in trained if each[1].dtype in DTYPES]
        self._dtype = common_dtype(self._named) if self._named else "float32"
        if self._uncompressed is not None:
            self._named.insert(0, self._uncompressed.flag)
        self._ids = {id(p): i for i, (_, p) in enumerate(self._named)}
        self._exchanged = trained  # all, also those that are not in the plan
        self._names = {id(p): name for name, p in trained}
        self._spec = spec
        self._options = dict(plan)
        self._streams = streams
        self._unused = unused
        self._threads = torch.get_num_threads() if threads is None else threads
        self._bucket_bytes = bucket_bytes
        self._buckets = self._first_buckets()  # None: filled to bucket_bytes
        self._plan_to_set: Optional[_core.Plan] = None
        # One that is not enabled scales nothing, and skips nothing.
        self._scaler: Any = scaler if is_enabled(scaler) else None
        self._look_for_scalers = scaler is None
        self._warned = False  # of two momenta
        self._scale = Scale(1.0)  # of the gradients of the step in progress
        self._begun_steps = 0
        self._steps_before = 0  # as far as a checkpoint of 'auto' says
        self._thread: Optional[int] = None  # that has begun a step
        self._closed = False
        self.seconds = 0.0  # spent in the last step handing over and taking back, not waiting
        self._auto: Optional[Auto] = None
        self._choose(spec)
        self._in_use = self._wanted()
        made = self._make_plan()
        self._transport: Optional[_core.Transport] = None
        self._reducer: Optional[Reducer] = None
        check_joining(carrier, timeout, self._work.device)
        if self._world_size == 1:
            _log.warning("world size 1, gradwire exchanges nothing: gradients stay as they are")
            return
        refuse_exchanged(
            [p for _, p in trained],
            "expected one (its set_spec() changes the compressor, close() ends it)",
        )
        self._transport = join(process_group, carrier, timeout, self._work.device)
        self._reducer = Reducer(
            made,
            self._transport,
            on_nonfinite=on_nonfinite or ("skip" if self._scaler else "error"),
            unused=unused,
            threads=self._threads, streams=streams,
            launch_order=launch_order, trace_steps=trace_steps,
            **self._work.reducer_options(),
        )
        live.add(self)
        if self._uncompressed is not None:
            self._uncompressed.say()
        if self._auto is not None:
            self._auto.start()

    @property
    def spec(self) -> str:
        """Of the compressor, as it was given last; with 'auto' the lossiest in force: other parameters may
        travel as another, which `plan` and decisions() say."""
        return self._spec

    @property
    def plan(self) -> _core.Plan:
        """Of the next step: which parameters travel together, and how."""
        if self._plan_to_set is not None or self._reducer is None:
            return self._plan_to_set or self._make_plan()
        return self._reducer.plan

    @property
    def transport(self) -> Optional[_core.Transport]:
        """What carries the exchange; None in a group of one rank."""
        return self._transport

    def set_spec(self, spec: str, **plan: Any) -> None:
        """Another compressor from the next step on. On all ranks behind the same step.

        Residuals are carried over by parameter, into the next gradient where the new compressor
        keeps none. On a GPU it waits for the steps so far.

        Args:
            spec, **plan: as of register(); what is not given stays. 'auto' begins to measure; any
                other ends that.

        Raises:
            InvalidArgument: the plan cannot be made so; nothing has changed. When all ranks ask,
                but for different plans, the next backward raises it on all, and the compressor
                stays. When some have not asked the next backward raises a TransportError: the
                group is finished.
        """
        check_options(spec, plan)
        before = self._spec, self._options, self._auto
        self._spec, self._options = spec, {**self._options, **plan}
        try:
            self._choose(spec)
            self._plan_to_set = self._make_plan()
        except BaseException:
            self._spec, self._options, self._auto = before
            raise

    def decisions(self) -> List[Dict[str, Any]]:
        """What 'auto' has decided, oldest first; empty with any other spec. The same on all ranks.

        Returns:
            dicts of 'step' (how many came before it), 'what' ('probe', 'choose', 'tighten', ...), 'from'
            and 'to' (plans by name), 'reason' (a sentence) and 'numbers' (what it rests on, seconds and
            shares).
        """
        return [] if self._auto is None else self._auto.decisions()

    def note_loss(self, loss: Union[float, torch.Tensor]) -> None:
        """Tells 'auto' this rank's loss of a step, so that it sees what compression spoils. Optional. A
        tensor of one element on a GPU is read when the window ends: loss.item() would wait."""
        if self._auto is not None:
            self._auto.note_loss(loss)

    def synchronize(self) -> None:
        """On a GPU: blocks until the steps so far are over. Behind the same step on all ranks.

        On the CPU the end of backward has told all: does nothing.

        Raises:
            NonFiniteGradient: on_nonfinite is 'error' and a gradient of some rank was not finite. No
                step since has been committed; the next will be.
            TransportError: a rank was lost.
        """
        if self._reducer is not None:
            self._reducer.synchronize()

    def residual(self, name: str) -> Optional[torch.Tensor]:
        """A copy of what a parameter's gradients on this rank still owe; None without feedback.

        On the CPU; where gradients are on a GPU it waits for that.
        """
        if self._reducer is None or (self._uncompressed is not None and self._uncompressed.has(name)):
            return None
        kept = self._reducer.residual(self._index_of(name))
        return None if kept is None else torch.from_numpy(kept)

    def state_dict(self) -> Dict[str, Any]:
        """What this rank keeps between steps, for its checkpoint: residuals and counters.

        Plain tensors and numbers, for torch.save() and weights_only loading. Between steps. With
        'auto' the plan it has chosen is there too.
        """
        state = state_of(self._reducer, self._transport, self._buckets)
        if self._auto is not None and self._reducer is not None:
            state["auto"] = self._auto.state()
        return state

    def load_state_dict(self, states: States) -> None:
        """Continues where state_dict() was called. Collective, between steps.

        Args:
            states: what this rank's state_dict() returned, where the world size is the same;
                else those of all ranks that there were: a list by rank, a dict, or a function of
                the rank, called for the ranks this one takes over (None: there was no such rank).
                A group of one rank keeps nothing, and loads the state of such a group alone.

        Raises:
            InvalidArgument: on every rank, when one finds a state missing, damaged, of other
                parameters or of another step; nothing has changed then.
        """
        load_states(self, states)

    def close(self) -> None:
        """Leaves the group; steps after it raise. Nothing when closed already."""
        self._closed = True
        live.discard(self)
        if self._transport is not None:
            self._transport.close()

    def __deepcopy__(self, memo: Dict[int, Any]) -> "GradientExchange":
        return self  # a copied model, as averages of weights are kept in, exchanges nothing itself

    def __reduce__(self) -> Any:
        raise InvalidArgument(
            "gradwire: an exchange cannot be pickled; expected its state_dict(), beside the model's or the "
            "model, whose copy comes back without an exchange"
        )

    # What a step is made of.

    def _takes(self, parameter: torch.Tensor) -> bool:
        """Whether its gradients are exchanged; settled when the exchange is made."""
        return parameter.requires_grad

    def _first_buckets(self) -> Optional[List[List[int]]]:
        """Which parameters travel together at first, by their numbers."""
        return None

    def _wanted(self) -> Tuple[Any, ...]:
        return self._spec, self._options, self._buckets

    def _tell_peers(self, error: BaseException) -> None:
        """They would wait for this rank until their deadline. Ends the group."""
        if self._transport is not None and not self._closed:
            self._transport.abort(f"{type(error).__name__}: {error}")

    def _choose(self, spec: str) -> None:
        """'auto', or a compressor that stays."""
        asked = parse_auto(spec)
        self._auto = None if asked is None else Auto(asked, self)
        if asked is not None:
            self._spec = "none"

    def _make_plan(self) -> _core.Plan:
        chosen = None if self._auto is None else self._auto.plan
        if chosen is not None:
            return chosen
        how = self._plan_words()
        if self._buckets is None:
            how["bucket_bytes"] = self._bucket_bytes
        else:
            how["buckets"] = self._buckets
        return make_plan(self._shapes(), self._spec, **how)

    def _shapes(self) -> List[Tuple[str, Tuple[int, ...]]]:
        return [(plain_name(name), tuple(p.shape)) for name, p in self._named]

    def _plan_words(self) -> Dict[str, Any]:
        """Of all plans: what make_plan() is told besides the spec and buckets."""
        return {**self._options, "dtype": self._dtype}

    def _begin(self) -> Reducer:
        """At the first gradient of a step."""
        if self._closed:
            raise InvalidArgument("gradwire: the exchange has been closed, must be open")
        assert self._reducer is not None
        self._begun_steps += 1
        self._thread = threading.get_ident()
        refuse_unfrozen(self._left_out, self._settled_by)
        if self._begun_steps <= _LOOK_FOR_SCALERS:
            refuse_steps_in_backward(self._exchanged)
            own_scaler(self._scaler)
            if self._look_for_scalers:
                find_scaler(p for _, p in self._exchanged)
            if not self._warned:
                specs = dict.fromkeys(specs_of(self.plan).values())
                self._warned = warns_of_two_momenta(specs, self._names)
        self._set_waiting_plan()
        self._scale = self._work.scale_of(self._scaler)
        self.seconds = 0.0
        if self._auto is not None:
            self._auto.begin_step()
        return self._reducer

    def _begin_plainly(self) -> None:
        """_begin(), where what all ranks refuse may be raised at once."""
        try:
            self._begin()
        except RefusedByAll as refused:
            raise refused.error from None

    def _set_waiting_plan(self) -> None:
        if self._plan_to_set is not None and self._reducer is not None:
            plan, self._plan_to_set = self._plan_to_set, None
            try:
                self._reducer.set_plan(plan)
            except NonFiniteGradient as error:  # of a step before, of which a GPU has told only now
                self._plan_to_set = plan
                raise RefusedByAll(error) from error
            except InvalidArgument as error:
                self._spec, self._options, self._buckets = self._in_use
                raise RefusedByAll(error) from error
            self._in_use = self._wanted()
            self._forget_places()

    def _forget_places(self) -> None:
        """Parameters lie elsewhere in the plan from now on."""

    def _travel_in(self, buckets: Optional[List[List[int]]]) -> None:
        """From the next step on parameters travel together as here. The same on all ranks."""
        if buckets != self._buckets:
            self._buckets = buckets
            self._plan_to_set = self._make_plan()

    def _mean(self, i: int) -> torch.Tensor:
        assert self._reducer is not None
        with self._work.behind_backward():
            mean = torch.empty(self._named[i][1].numel(), device=self._work.device)
            self._reducer.write_means([i], mean.data_ptr(), "float32")
        self._work.before_caller()
        return mean

    def _index_of(self, name: str) -> int:
        for i, (known, _) in enumerate(self._named):
            if name in (known, plain_name(known)):
                return i
        raise InvalidArgument(f"name: '{name}' is no parameter that is exchanged")
