"""The spec 'auto': steps are measured, and the planner's pilot says what gradients travel as."""

import json
import logging
import re
import statistics
import struct
import time
import zlib
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .. import _core
from .._core import make_plan, parse_spec, probe_link
from ..errors import Error, InvalidArgument
from .norms import specs_of
from .updates import agreed_updates
from .window import Window

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["Auto", "AutoOptions", "parse_auto"]

_log = logging.getLogger("gradwire")

_SETTLING_STEPS = 3  # DDP makes its buckets anew behind the first, and plans follow behind the second
_KEPT_STEPS = 200  # with the plan of a checkpoint, before anything is measured
_MOST_SAID = 1000  # decisions that are kept, as many as the pilot's
_CODECS_BYTES = 1 << 16  # that rank 0 may say of compressors
_LINK_SHARE = 0.1  # of the budget: three exchanges of a size longer than that are the last ones
_FIRST_LOOK = 0.1  # of that, before the first step: that a link is slow shows at once
# Later ones take no longer than so many steps did; nor are they worth it where that is at most so many
# times as long as the first.
_STEPS_OF_PROBE, _LONGER = 10, 2
_UNPRICED = (1e3, 0.0, 1e3, 0.0)  # of a compressor that was not timed: not worth a trial


class AutoOptions(NamedTuple):
    """What 'auto:budget=1s,window=20,specs=int8|topk:1%,int4' asks for."""

    budget_s: float = 2.0  #: of probes before the first choice: compressors, and the link
    window: int = 20  #: steps that are judged together once the choice is made
    specs: Tuple[str, ...] = ("int8", "int4", "topk:1%,int4")  #: besides none and bf16


def parse_auto(spec: str) -> Optional[AutoOptions]:
    """The options in such a text; None for any other spec.

    'specs' comes last: its compressors are separated by '|' and have commas of their own.

    Raises:
        InvalidArgument: an unknown or malformed option, or a build without the planner.
    """
    name, _, words = spec.strip().partition(":")
    if re.match(r"\s*auto\s*,", spec):
        raise InvalidArgument(
            f"spec: is '{spec}', options of 'auto' must follow a ':', as in 'auto:{_EXAMPLES['specs']}'")
    if name.strip() != "auto":
        return None
    if _core.planner_unavailable_reason:
        raise Error(f"auto: {_core.planner_unavailable_reason}; expected a compressor by name")
    found: Dict[str, Any] = {}
    while words:
        key, equals, rest = words.partition("=")
        key = key.strip()
        if key not in AutoOptions._fields and key != "budget":
            raise InvalidArgument(f"auto: unknown option '{key}', known: budget, window, specs")
        value, _, words = (rest, "", "") if key == "specs" else rest.partition(",")
        if not equals or not value.strip():
            raise InvalidArgument(f"auto: '{key}' has no value, expected e.g. {_EXAMPLES[key]}")
        found["budget_s" if key == "budget" else key] = _value(key, value.strip())
    return AutoOptions(**found)


_EXAMPLES = {"budget": "budget=500ms", "window": "window=20", "specs": "specs=int8|topk:1%,int4"}


def _value(key: str, text: str) -> Any:
    if key == "budget":
        try:
            return _core.parse_seconds(text)
        except InvalidArgument as error:
            raise InvalidArgument(f"auto: budget: {error}") from None
    if key == "specs":
        specs = tuple(part.strip() for part in text.split("|"))
        for each in specs:
            parse_spec(each)
        return specs
    if not text.isdecimal() or not 2 <= int(text) <= 1000:
        raise InvalidArgument(f"auto: window is '{text}', must be a number of steps from 2 to 1000")
    return int(text)


class Auto:
    """Of a GradientExchange: begins with no compression, and changes its plan between steps.

    All ranks hand the pilot the same numbers, from one small message per window of steps, so all of
    them change to the same plan behind the same step.
    """

    def __init__(self, asked: AutoOptions, exchange: "GradientExchange") -> None:
        self.asked = asked
        self._exchange = exchange
        self._window = Window(exchange)
        self._pilot = self._make_pilot(_SETTLING_STEPS)
        self._kept: Optional[_core.Plan] = None  # of a checkpoint
        self._kept_choice = False  # and it was chosen, not a trial
        self._settling = _SETTLING_STEPS  # left before anything is measured
        self._began = 0  # steps before that
        self._chose = 0  # and before the pilot was asked what to begin with
        self._codecs: Dict[str, Any] = {}  # by canonical spec, as of measure_codecs()
        self._first_link: Optional[_core.LinkCosts] = None  # until costs are wanted for the first time
        self._said: List[Dict[str, Any]] = []  # decisions that are not the pilot's
        self._told: Tuple[Any, ...] = ()  # the pilot's last that was written
        self._last_end: Any = None  # a mark

    @property
    def plan(self) -> Optional[_core.Plan]:
        """What it wants to run; None: the exchange's own spec, in the buckets that there are."""
        if self._kept is not None:
            return self._kept
        wide = self._pilot.spec in ("none", "bf16")  # of all parameters alike
        if self._settling > 0 or (wide and self._exchange._given_buckets):
            return None  # which costs no copies
        plan: _core.Plan = self._pilot.plan
        return plan

    def decisions(self) -> List[Dict[str, Any]]:
        own = [self._of_exchange(row) for row in self._pilot.log()]
        return sorted(self._said + own, key=lambda row: int(row["step"]))

    def _of_exchange(self, row: Dict[str, Any]) -> Dict[str, Any]:
        """A decision of the pilot's, its step counted from the exchange's first."""
        return {**row, "step": row["step"] + self._began if row["step"] > 0 else self._chose}

    def note_loss(self, loss: Any) -> None:
        self._window.note_loss(loss)

    def state(self) -> Dict[str, Any]:
        """What a checkpoint keeps of it: the plan in force, in words that JSON has."""
        plan = self._exchange.plan
        specs = specs_of(plan)
        kept = self._kept is not None
        return {
            "spec": self._exchange.spec,
            "buckets": [
                [p for group in row["groups"] for p in group["parameters"]] for row in plan.layout
            ],
            "exchanges": [row["exchange"] for row in plan.layout],
            "specs": [specs[i] for i in range(len(plan.parameters))],
            "age": self._job_age(),
            "chosen": self._kept_choice if kept else self._settling == 0 and self._pilot.phase == "cruise",
        }

    def resume(self, state: Optional[Dict[str, Any]]) -> None:
        """Goes on with the plan of a checkpoint, and measures anew some steps later: at once where that
        was on trial."""
        exchange = self._exchange
        if state is None:  # of a run with a spec of its own
            return
        shapes, how = exchange._shapes(), exchange._plan_words()
        how.update(
            buckets=state["buckets"],
            exchanges=state["exchanges"],
            rules=[{"name": n, "spec": s} for (n, _), s in zip(shapes, state["specs"])],
        )
        self._kept = make_plan(shapes, "none", **how)
        self._kept_choice = bool(state.get("chosen", True))
        steps = _KEPT_STEPS if self._kept_choice else _SETTLING_STEPS
        exchange._steps_before = int(state.get("age", 0)) - exchange._begun_steps
        self._pilot, self._settling, self._told = self._make_pilot(steps), steps, ()
        self._window = Window(exchange)
        exchange._spec = state["spec"]
        exchange._plan_to_set = self._kept
        self._say("resume", f"a checkpoint's plan, kept for {steps} steps")

    def start(self) -> None:
        """Before the first step, collective: on a slow link it begins with what is fast there."""
        try:
            self._collective(self._begin)
        except BaseException:  # nobody has the exchange that would close it
            self._exchange.close()
            raise

    def _begin(self) -> None:
        exchange, pilot = self._exchange, self._pilot
        transport = exchange._transport
        assert transport is not None
        self._chose = exchange._begun_steps
        # Ranks that were asked for something else would begin with something else.
        transport.all_gather(b"?", fingerprint=self._fingerprint(), what="auto: what it may choose")
        link = self._first_link = self._link(transport, self._link_budget() * _FIRST_LOOK)
        if not pilot.begins_slowly(link):
            return
        pilot.updates = agreed_updates(exchange, transport)
        if pilot.begin(link, self._prices(transport)):
            exchange._spec = pilot.spec  # in the buckets that there are, until DDP has settled on others
            exchange._plan_to_set = exchange._make_plan()
            self._tell()

    # What a step tells.

    def begin_step(self) -> None:
        pilot = self._pilot
        if self._settling > 0:
            return
        left = pilot.window_steps - self._window.steps - 1
        # Of a window of a few steps half stay as they are: their faster half counts.
        spared = pilot.phase == "measure" and left % 2 == 1
        self._window.begin_step(left, pilot.wants_norms and not spared)

    def sees(self, parameters: Sequence[int], values: torch.Tensor) -> None:
        """Gradients of this rank, one after another, before they leave."""
        self._window.sees(parameters, values)

    def sees_means(self, parameters: Sequence[int], values: torch.Tensor) -> None:
        """Means of all ranks, likewise."""
        self._window.sees_means(parameters, values)

    def end_step(self, committed: bool) -> None:
        """When the means are there, or all ranks know that there are none. Collective where a window
        ends."""
        now = self._exchange._work.mark()
        if self._settling > 0:
            self._settling -= 1
            if self._settling == 0:
                self._began = self._exchange._begun_steps
                self._window = Window(self._exchange)
                self._window.begin()
                resumed, self._kept = self._kept is not None, None
                if resumed:
                    self._collective(self._begin)
                if resumed or self._pilot.spec != "none":
                    self._adopt()
        else:
            self._window.end_step(self._last_end, now, committed)
            if self._window.steps == self._pilot.window_steps:
                self._collective(self._end_window)
        self.forget_step()  # what it took is no part of a step

    def forget_step(self) -> None:
        """The next one begins now: that in progress was none."""
        self._last_end = self._exchange._work.mark()

    def _collective(self, call: Any) -> None:
        try:
            call()
        except BaseException as error:
            self._exchange._tell_peers(error)
            raise

    # What is measured, and what follows.

    def _job_age(self) -> int:
        """Steps that the job has run."""
        return int(self._exchange._steps_before + self._exchange._begun_steps)

    def _make_pilot(self, begins_in: int) -> _core.Pilot:
        """One that begins so many steps from now."""
        exchange = self._exchange
        words = exchange._plan_words()
        if words.pop("exchange", "auto") != "auto":
            raise InvalidArgument(
                "exchange: is given together with the spec 'auto', which chooses it; expected 'auto'"
            )
        # Buckets that are not DDP's are copied: their sizes are not tried there.
        tuning: Dict[str, Any] = {"tuning_turns": 0} if exchange._given_buckets else {}
        return _core.Pilot(
            exchange._shapes(),
            exchange._world_size,
            specs=list(self.asked.specs),
            streams=exchange._streams,
            window_steps=self.asked.window,
            bucket_bytes=exchange._bucket_bytes,
            device=self._window.measured.device,
            age=self._job_age() + begins_in,
            **{k: v for k, v in words.items() if k not in ("buckets", "bucket_bytes")},
            **tuning,
        )

    def _end_window(self) -> None:
        pilot, transport = self._pilot, self._exchange._transport
        assert transport is not None
        window, self._window = self._window, Window(self._exchange)
        self._window.begin()
        shared = window.shared(transport, self._fingerprint())
        changed = pilot.end_window(
            shared.step_s,
            exchange_s=shared.exchange_s,
            exposed_s=shared.exposed_s,
            loss=shared.loss,
            skipped=window.skipped,
            norms=shared.norms,
        )
        if pilot.wants_costs:
            budget = min(self._link_budget(), _STEPS_OF_PROBE * statistics.median(shared.step_s))
            link = self._first_link
            if link is None or budget > _LONGER * _FIRST_LOOK * self._link_budget():
                link = self._link(transport, budget)
            self._first_link = None
            ready_s = self._ready(transport, window)
            pilot.updates = agreed_updates(self._exchange, transport)
            changed = pilot.set_costs(ready_s, link, self._prices(transport)) or changed
        self._tell()
        if changed:
            self._adopt()

    def _prices(self, transport: _core.Transport) -> Dict[str, Any]:
        codecs = self._codecs_of(transport)
        return {spec: codecs.get(spec, _UNPRICED) for spec in self._pilot.specs}

    def _codecs_of(self, transport: _core.Transport) -> Dict[str, Any]:
        """What compressors cost: measured on rank 0, while the others leave it the cores. Its machine
        stands for all. Once, but those for which the time was over, whenever costs are wanted."""
        if any(spec not in self._codecs for spec in self._pilot.specs):
            words = b""
            if transport.rank == 0:
                words = json.dumps(self._codecs_here()).encode()
            told = transport.all_gather(words, capacity=_CODECS_BYTES, what="auto: compressors")
            self._codecs, seconds = json.loads(bytes(told[0]))
            left_out = [spec for spec in self._pilot.specs if spec not in self._codecs]
            self._say(
                "probe",
                f"{', '.join(self._codecs) or 'nothing'} can be priced"
                + (f"; no time or no law for {', '.join(left_out)}" if left_out else ""),
                seconds=seconds,
            )
        return self._codecs

    def _codecs_here(self) -> Tuple[Dict[str, Any], float]:
        began = time.perf_counter()
        found = self._window.measured.codecs(list(self._pilot.specs), self.asked.budget_s)
        return found, time.perf_counter() - began

    def _fingerprint(self) -> int:
        """Of what was asked for, which must be the same on all ranks."""
        return zlib.crc32(repr(self.asked).encode())

    def _link_budget(self) -> float:
        return max(self.asked.budget_s * _LINK_SHARE, 1e-2)

    def _link(self, transport: _core.Transport, budget_s: float) -> _core.LinkCosts:
        link = probe_link(transport, budget=budget_s)
        rate = f"{1e-6 / link.beta_s_per_byte:.1f} MB/s" if link.beta_s_per_byte > 0 else "any rate"
        self._say(
            "probe",
            f"a message takes {link.alpha_s * 1e6:.0f} us and travels at {rate}",
            alpha_s=link.alpha_s,
            s_per_byte=link.beta_s_per_byte,
        )
        return link

    def _adopt(self) -> None:
        """The pilot's plan, from the next step on."""
        exchange, pilot = self._exchange, self._pilot
        assert exchange._reducer is not None
        exchange._spec = pilot.spec
        plan = exchange._make_plan()
        if exchange._plan_to_set is not None or str(plan) != str(exchange._reducer.plan):
            exchange._plan_to_set = plan

    def _ready(self, transport: _core.Transport, window: Window) -> List[float]:
        """When gradients are there, on the slowest rank; one that never was: with the last one."""
        found = window.measured.ready_s()
        latest = max(found.values(), default=0.0)
        own = [found.get(i, latest) for i in range(len(self._exchange._named))]
        words = struct.pack(f"<{len(own)}d", *own)
        told = transport.all_gather(words, what="auto: gradients")
        everyone = [struct.unpack(f"<{len(own)}d", bytes(each)) for each in told]
        return [max(0.0, *times) for times in zip(*everyone)]  # means may be a little below 0

    def _say(self, what: str, reason: str, **numbers: float) -> None:
        spec = self._exchange.spec
        step = self._exchange._begun_steps
        row = {"step": step, "what": what, "from": spec, "to": spec, "reason": reason}
        row["numbers"] = numbers
        # Another list: a load that fails goes back to the one before.
        self._said = [*self._said, row][-_MOST_SAID:]
        self._write(row)

    def _tell(self) -> None:
        rows = self._pilot.log()  # the last thousand: their count does not say which are new
        new = len(rows)
        while new > 0 and _words_of(rows[new - 1]) != self._told:
            new -= 1
        for row in rows[new:]:
            self._write(self._of_exchange(row))
        self._told = _words_of(rows[-1]) if rows else ()

    def _write(self, row: Dict[str, Any]) -> None:
        transport = self._exchange._transport
        if transport is not None and transport.rank == 0:
            way = row["to"] if row["from"] == row["to"] else f"{row['from']} -> {row['to']}"
            _log.info("auto, step %d, %s: %s: %s", row["step"], row["what"], way, row["reason"])


def _words_of(row: Dict[str, Any]) -> Tuple[Any, ...]:
    return row["step"], row["what"], row["from"], row["to"], row["reason"]
