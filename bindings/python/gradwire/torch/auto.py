"""The spec 'auto': steps are measured, and the planner's pilot says what gradients travel as."""

import json
import logging
import math
import statistics
import struct
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .. import _core
from .._core import make_plan, parse_spec, probe_link
from ..errors import Error, InvalidArgument
from .norms import StepNorms, square

if TYPE_CHECKING:
    from .exchange import GradientExchange

__all__ = ["Auto", "AutoOptions", "parse_auto"]

_log = logging.getLogger("gradwire")

_SETTLING_STEPS = 3  # DDP makes its buckets anew behind the first, and plans follow behind the second
_KEPT_STEPS = 200  # with the plan of a checkpoint, before anything is measured
_CODECS_BYTES = 1 << 16  # that rank 0 may say of compressors
_LINK_SHARE = 0.1  # of the budget: three exchanges of a size longer than that are the last ones
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
        return _core.parse_seconds(text)
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
        self._pilot = self._make_pilot()
        self._kept: Optional[_core.Plan] = None  # of a checkpoint
        self._settling = _SETTLING_STEPS  # left before anything is measured
        self._began = 0  # steps before that
        self._codecs: Dict[str, Any] = {}  # by canonical spec, as of measure_codecs()
        self._said: List[Dict[str, Any]] = []  # decisions that are not the pilot's
        self._told = 0  # of the pilot's
        self._losses: List[float] = []
        self._last_end = 0.0
        self._step_s: List[float] = []
        self._skipped = 0
        self._norms: Optional[StepNorms] = None  # of the step in progress
        self._window_norms: List[float] = []
        self._means: Dict[int, float] = {}  # squared norms, added up over the window

    @property
    def plan(self) -> Optional[_core.Plan]:
        """What it wants to run; None: no compression, in the buckets that there are."""
        if self._kept is not None:
            return self._kept
        if self._settling > 0 or (self._pilot.spec == "none" and self._exchange._given_buckets):
            return None  # which costs no copies
        plan: _core.Plan = self._pilot.plan
        return plan

    def decisions(self) -> List[Dict[str, Any]]:
        own = [{**row, "step": row["step"] + self._began} for row in self._pilot.log()]
        return sorted(self._said + own, key=lambda row: int(row["step"]))

    def note_loss(self, loss: float) -> None:
        self._losses.append(float(loss))

    def state(self) -> Dict[str, Any]:
        """What a checkpoint keeps of it: the plan in force, in words that JSON has."""
        plan = self._exchange.plan
        specs: Dict[int, str] = {}
        for row in plan.layout:
            for group in row["groups"]:
                specs.update(dict.fromkeys(group["parameters"], group["spec"]))
        return {
            "spec": self._exchange.spec,
            "buckets": [
                [p for group in row["groups"] for p in group["parameters"]] for row in plan.layout
            ],
            "exchanges": [row["exchange"] for row in plan.layout],
            "specs": [specs[i] for i in range(len(plan.parameters))],
        }

    def resume(self, state: Optional[Dict[str, Any]]) -> None:
        """Goes on with the plan of a checkpoint, and measures anew some steps later."""
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
        self._pilot, self._settling, self._told = self._make_pilot(), _KEPT_STEPS, 0
        self._begin_window()
        exchange._spec = state["spec"]
        exchange._plan_to_set = self._kept
        self._say("resume", f"a checkpoint's plan, kept for {_KEPT_STEPS} steps")

    # What a step tells.

    def begin_step(self) -> None:
        pilot, self._norms = self._pilot, None
        last = len(self._step_s) + 1 == pilot.window_steps
        if pilot.wants_norms and last and self._settling == 0:
            self._norms = StepNorms(self._exchange)

    def sees(self, parameters: Sequence[int], values: torch.Tensor) -> None:
        """Gradients of this rank, one after another, before they leave."""
        if self._norms is not None:
            self._norms.add(parameters, values)

    def sees_means(self, parameters: Sequence[int], values: torch.Tensor) -> None:
        """Means of all ranks, likewise: of all steps of a window, since those of one are noisy."""
        if self._settling > 0 or not self._pilot.wants_norms:
            return
        begin, scale = 0, self._exchange._scale.value
        flat = values.detach().reshape(-1)
        for i in parameters:
            end = begin + self._exchange._named[i][1].numel()
            self._means[i] = self._means.get(i, 0.0) + square(flat[begin:end]) / scale**2
            begin = end

    def end_step(self, committed: bool) -> None:
        """When the means are there. Collective where a window ends."""
        now = time.perf_counter()
        if self._settling > 0:
            self._settling -= 1
            if self._settling == 0:
                self._began = self._exchange._begun_steps
                if self._kept is not None:
                    self._kept = None
                    self._adopt()
        else:
            self._step_s.append(now - self._last_end)
            self._skipped += int(not committed)
            if self._norms is not None:
                self._window_norms, self._norms = self._norms.found(), None
            if len(self._step_s) == self._pilot.window_steps:
                self._collective(self._end_window)
        self._last_end = time.perf_counter()  # what it took is no part of a step

    def _collective(self, call: Any) -> None:
        try:
            call()
        except BaseException as error:
            self._exchange._tell_peers(error)
            raise

    # What is measured, and what follows.

    def _make_pilot(self) -> _core.Pilot:
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
            **{k: v for k, v in words.items() if k not in ("buckets", "bucket_bytes")},
            **tuning,
        )

    def _end_window(self) -> None:
        pilot, transport = self._pilot, self._exchange._transport
        assert transport is not None
        shared = self._agreed(transport)
        changed = pilot.end_window(
            shared.step_s,
            exchange_s=shared.exchange_s,
            loss=shared.loss,
            skipped=self._skipped,
            norms=shared.norms,
        )
        self._begin_window()
        if pilot.wants_costs:
            costs = {spec: self._codecs_of(transport).get(spec, _UNPRICED) for spec in pilot.specs}
            link = self._link(transport)
            changed = pilot.set_costs(self._ready(transport), link, costs) or changed
        self._tell()
        if changed:
            self._adopt()

    def _codecs_of(self, transport: _core.Transport) -> Dict[str, Any]:
        """What compressors cost, measured once: on rank 0, while the others leave it the cores. Its
        machine stands for all."""
        if not self._codecs:
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
        from ..codec_cache import cached_codecs

        began = time.perf_counter()
        specs = list(self._pilot.specs)
        found = cached_codecs(specs, self._exchange._threads, budget_s=self.asked.budget_s)
        return found, time.perf_counter() - began

    def _link(self, transport: _core.Transport) -> _core.LinkCosts:
        link = probe_link(transport, budget=max(self.asked.budget_s * _LINK_SHARE, 1e-3))
        rate = f"{1e-6 / link.beta_s_per_byte:.1f} MB/s" if link.beta_s_per_byte > 0 else "any rate"
        self._say(
            "probe",
            f"a message takes {link.alpha_s * 1e6:.0f} us and travels at {rate}",
            alpha_s=link.alpha_s,
            s_per_byte=link.beta_s_per_byte,
        )
        return link

    def _begin_window(self) -> None:
        self._step_s, self._losses, self._window_norms, self._skipped = [], [], [], 0
        self._means = {}

    def _adopt(self) -> None:
        """The pilot's plan, from the next step on."""
        exchange, pilot = self._exchange, self._pilot
        assert exchange._reducer is not None
        exchange._spec = pilot.spec
        plan = exchange._make_plan()
        if exchange._plan_to_set is not None or str(plan) != str(exchange._reducer.plan):
            exchange._plan_to_set = plan

    def _agreed(self, transport: _core.Transport) -> "_Shared":
        count = len(self._step_s)
        rows = self._exchange._reducer.trace()[-count:] if self._exchange._reducer else []
        transfers = [row["transfer_us"] * 1e-6 for row in rows]
        if len(transfers) != count:
            transfers = [math.nan] * count
        norms = self._window_norms or [math.nan] * (4 * len(self._exchange._named))
        loss = statistics.fmean(self._losses) if self._losses else math.nan
        values = [*self._step_s, *transfers, float(len(self._losses)), loss, *norms]
        words = struct.pack(f"<{len(values)}d", *values)
        told = [
            struct.unpack(f"<{len(values)}d", bytes(each))
            for each in transport.all_gather(words, what="auto: a window")
        ]
        means = [self._means.get(i, 0.0) / count for i in range(len(self._exchange._named))]
        return _Shared(told, count, means)

    def _ready(self, transport: _core.Transport) -> List[float]:
        """When gradients are there, on the slowest rank; one that never was: with the last one."""
        reducer = self._exchange._reducer
        assert reducer is not None
        found = {row["parameter"]: row["ready_s"] for row in reducer.gradient_timings()}
        latest = max(found.values(), default=0.0)
        own = [found.get(i, latest) for i in range(len(self._exchange._named))]
        words = struct.pack(f"<{len(own)}d", *own)
        told = transport.all_gather(words, what="auto: gradients")
        everyone = [struct.unpack(f"<{len(own)}d", bytes(each)) for each in told]
        return [max(0.0, *times) for times in zip(*everyone)]  # means may be a little below 0

    def _say(self, what: str, reason: str, **numbers: float) -> None:
        spec = self._exchange.spec
        row = {
            "step": self._exchange._begun_steps,
            "what": what,
            "from": spec,
            "to": spec,
            "reason": reason,
            "numbers": numbers,
        }
        self._said.append(row)
        self._write(row)

    def _tell(self) -> None:
        rows = self._pilot.log()
        for row in rows[self._told :]:
            self._write({**row, "step": row["step"] + self._began})
        self._told = len(rows)

    def _write(self, row: Dict[str, Any]) -> None:
        transport = self._exchange._transport
        if transport is not None and transport.rank == 0:
            way = row["to"] if row["from"] == row["to"] else f"{row['from']} -> {row['to']}"
            _log.info("gradwire: auto, step %d, %s: %s: %s", row["step"], row["what"], way, row["reason"])


class _Shared:
    """What all ranks' windows say together."""

    def __init__(self, told: List[Tuple[float, ...]], steps: int, means: List[float]) -> None:
        columns = list(zip(*told))
        self.step_s = [max(each) for each in columns[:steps]]
        exchange_s = [min(each) for each in columns[steps : 2 * steps]]
        unknown = any(math.isnan(x) for rank in told for x in rank[steps : 2 * steps])
        self.exchange_s = [] if unknown else exchange_s
        counts, losses = columns[2 * steps], columns[2 * steps + 1]
        known = [loss for count, loss in zip(counts, losses) if count > 0]
        self.loss = statistics.fmean(known) if known else None
        flat = columns[2 * steps + 2 :]
        # A step whose gradients were not finite tells nothing of what compressors leave out.
        if any(not math.isfinite(x) for each in flat for x in each):
            flat = []
        sums = [math.fsum(column) for column in flat]
        # A window with steps that were left out has no mean norm either: 0 says so.
        self.norms: List[Any] = [
            (*sums[4 * i : 4 * i + 4], means[i] if math.isfinite(means[i]) else 0.0)
            for i in range(len(flat) // 4)
        ]
