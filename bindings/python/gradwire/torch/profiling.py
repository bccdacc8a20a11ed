"""What a training step takes, layer by layer: the profile that the planner reads."""

import contextlib
import json
import platform
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union

import torch
from torch.optim import optimizer as _optimizers

from ..errors import InvalidArgument
from .checks import DTYPES
from .exchange import GradientExchange

__all__ = ["StepProfile", "profile"]

_FORMAT, _VERSION = "gradwire.profile", 1
_clock = time.perf_counter


def profile(
    step_fn: Callable[[Any], Any],
    loader: Iterable[Any],
    *,
    model: torch.nn.Module,
    batch: int,
    name: Optional[str] = None,
    warmup: int = 3,
    steps: int = 10,
    exchange: Optional[GradientExchange] = None,
) -> "StepProfile":
    """Measures training steps layer by layer. The steps are real ones: parameters move.

        profile = gradwire.torch.profile(train_step, loader, model=model, batch=64)
        print(profile.table())
        profile.save("run.json")                    # docs/profile-format.md

    Times are medians over the steps. Forward is measured per module that has parameters of its own,
    backward by when each gradient is there. Where several parameters belong to one module its first
    one carries the forward time. What else happens before backward (modules without parameters, the
    loss, copies to the device inside of step_fn) is step.other_s.

    Args:
        step_fn: takes what the loader gives and makes one step: forward, one backward, update.
        loader: batches; begun anew when it ends early.
        model: whose layers are measured; the one that step_fn trains. Under DDP the gradients'
            times hold what the exchange costs the processor.
        batch: samples per step and worker.
        name: of the model, by default its class's.
        warmup: steps before the measured ones, at least 1.
        steps: measured, at least 1.
        exchange: what register() or attach() returned for this model: the profile then has the
            times of compression, exchange and decompression by bucket, each at the bucket's last
            gradient. Its trace_steps must hold the steps. Of gradients on the CPU.

    Raises:
        InvalidArgument: no gradient came, several backward passes in a step, an empty loader, or a
            number out of range. The steps until then have been made.
    """
    if batch < 1 or warmup < 1 or steps < 1:
        raise InvalidArgument(
            f"profile: batch, warmup, steps are {batch}, {warmup}, {steps}, must be at least 1"
        )
    if exchange is not None and exchange._reducer is not None and not exchange._work.waits:
        raise InvalidArgument(
            f"exchange: is of gradients on {exchange._work.device}, of which no host knows the times, "
            "must be None there"
        )
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise InvalidArgument("model: has 0 parameters that require a gradient, expected some")
    watch = _Watch(model, named)
    batches = _endless(loader)
    measured: List[_Step] = []
    with watch.watching():
        for i in range(warmup + steps):
            step = watch.begin()
            data = next(batches)
            step.mark("loaded")
            step_fn(data)
            step.mark("end")
            if i >= warmup:
                measured.append(step)
            watch.check(step)
    seen = [step.seconds() for step in measured]
    world = 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world = torch.distributed.get_world_size()
    document = _document(watch, seen)
    if exchange is not None:
        _add_exchange(document["layers"], watch, exchange, steps)
    return StepProfile(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "model": name or type(model).__name__,
            "machine": _machine(named[0][1].device),
            "source": f"gradwire.torch.profile, {steps} steps behind {warmup}, torch "
            f"{torch.__version__}",
            "batch": batch,
            "ranks": world,
            **document,
        }
    )


class StepProfile:
    """A profile as docs/profile-format.md has it."""

    def __init__(self, document: Dict[str, Any]) -> None:
        self.document = document

    @property
    def layers(self) -> List[Dict[str, Any]]:
        """In the order of the forward pass."""
        layers: List[Dict[str, Any]] = self.document["layers"]
        return layers

    @property
    def step_s(self) -> float:
        """Seconds of the measured step, loading included."""
        return float(self.document["step"]["measured_s"])

    def to_json(self) -> str:
        return json.dumps(self.document, indent=1) + "\n"

    def save(self, path: Union[str, Path]) -> None:
        Path(path).write_text(self.to_json(), encoding="utf-8")

    def table(self, most: int = 20) -> str:
        """Text: the step, and its `most` longest layers, in milliseconds."""
        step, layers = self.document["step"], self.layers
        forward, backward, update = (
            sum(layer.get(key, 0.0) for layer in layers)
            for key in ("forward_s", "backward_s", "update_s")
        )
        lines = [
            f"{self.document['model']}, batch {self.document['batch']}, {self.document['ranks']} "
            f"rank(s): {1e3 * self.step_s:.2f} ms a step",
            f"  loading {1e3 * step['io_s']:.2f}, forward {1e3 * forward:.2f}, other before backward "
            f"{1e3 * step['other_s']:.2f}, backward {1e3 * backward:.2f}, update {1e3 * update:.2f}",
            f"  {sum(layer['numel'] for layer in layers):,} elements of {len(layers)} gradients",
            f"{'gradient':<40} {'elements':>12} {'forward':>9} {'backward':>9} {'ready':>9}",
        ]
        longest = sorted(layers, key=lambda x: -(x["forward_s"] + x["backward_s"]))[:most]
        for layer in (layer for layer in layers if layer in longest):
            lines.append(
                f"{layer['name'][-40:]:<40} {layer['numel']:>12,} {1e3 * layer['forward_s']:>9.3f} "
                f"{1e3 * layer['backward_s']:>9.3f} {1e3 * layer.get('ready_s', 0.0):>9.3f}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<gradwire.torch.StepProfile of {self.document['model']}: {len(self.layers)} gradients, "
            f"{1e3 * self.step_s:.2f} ms a step>"
        )


def _now(gpu: Optional[torch.device]) -> Any:
    """A moment: of the host, or one that the GPU's stream will pass."""
    if gpu is None:
        return _clock()
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(gpu))  # another GPU may be the current one
    return event


def _between(begin: Any, end: Any) -> float:
    return float(begin.elapsed_time(end)) / 1e3 if hasattr(begin, "elapsed_time") else end - begin


class _Step:
    """The moments of one step."""

    def __init__(self, gpu: Optional[torch.device]) -> None:
        self.gpu = gpu
        self.marks: Dict[str, Any] = {}
        self.forward: List[Tuple[int, bool, Any]] = []  # module, entered, when
        self.ready: Dict[int, Any] = {}
        self.backwards = 0
        self.updates: List[Any] = []
        self.mark("begin")

    def mark(self, name: str) -> None:
        self.marks[name] = _now(self.gpu)

    def seconds(self) -> Dict[str, Any]:
        if self.gpu is not None:
            torch.cuda.synchronize(self.gpu)
        own: Dict[int, float] = defaultdict(float)
        open_modules: List[List[Any]] = []  # module, begin, seconds of those inside
        for module, entered, when in self.forward:
            if entered:
                open_modules.append([module, when, 0.0])
                continue
            _, begin, inside = open_modules.pop()
            whole = _between(begin, when)
            own[module] += max(whole - inside, 0.0)
            if open_modules:
                open_modules[-1][2] += whole
        pairs = zip(self.updates[::2], self.updates[1::2])
        return {
            "io": _between(self.marks["begin"], self.marks["loaded"]),
            "before": _between(self.marks["loaded"], self.marks["backward"]),
            "forward": own,
            "ready": {i: _between(self.marks["backward"], t) for i, t in self.ready.items()},
            "update": sum(_between(a, b) for a, b in pairs),
            "step": _between(self.marks["begin"], self.marks["end"]),
        }


class _Watch:
    def __init__(self, model: torch.nn.Module, named: List[Tuple[str, torch.nn.Parameter]]) -> None:
        self.named = named
        first = named[0][1]
        self.gpu = first.device if first.is_cuda else None
        self._places = {id(p): i for i, (_, p) in enumerate(named)}
        # Modules with parameters of their own, by the first of those: where each one's time belongs.
        self._owners: List[Tuple[torch.nn.Module, int]] = []
        for module in model.modules():
            own = [self._places[id(p)] for p in module.parameters(False) if id(p) in self._places]
            if own:
                self._owners.append((module, min(own)))
        self._step: Optional[_Step] = None

    def begin(self) -> _Step:
        self._step = _Step(self.gpu)
        return self._step

    def place_of(self, parameter: torch.Tensor) -> Optional[int]:
        return self._places.get(id(parameter))

    def check(self, step: _Step) -> None:
        if step.backwards != 1 or not step.ready:
            raise InvalidArgument(
                f"step_fn: made {step.backwards} backward passes, which reached {len(step.ready)} "
                f"of {len(self.named)} parameters of the model, expected 1 that reaches some"
            )

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        handles = []
        for module, place in self._owners:
            handles.append(module.register_forward_pre_hook(self._entering(place)))
            handles.append(module.register_forward_hook(self._leaving(place)))
        for _, p in self.named:
            added: Any = p
            handles.append(added.register_post_accumulate_grad_hook(self._gradient))
        handles.append(_optimizers.register_optimizer_step_pre_hook(self._update))
        handles.append(_optimizers.register_optimizer_step_post_hook(self._update))
        backward = torch.autograd.backward

        def watched(*arguments: Any, **options: Any) -> Any:
            if self._step is not None:
                self._step.backwards += 1
                self._step.mark("backward")
            return backward(*arguments, **options)

        # Every backward of a loss, a scaled one too, goes through it.
        torch.autograd.backward = watched
        try:
            yield
        finally:
            torch.autograd.backward = backward
            for handle in handles:
                handle.remove()
            self._step = None

    def _entering(self, place: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if self._step is not None and self._step.backwards == 0:
                self._step.forward.append((place, True, _now(self.gpu)))

        return hook

    def _leaving(self, place: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if self._step is not None and self._step.backwards == 0:
                self._step.forward.append((place, False, _now(self.gpu)))

        return hook

    def _gradient(self, parameter: torch.Tensor) -> None:
        if self._step is not None:
            self._step.ready[self._places[id(parameter)]] = _now(self.gpu)

    def _update(self, *_: Any) -> None:
        if self._step is not None:
            self._step.updates.append(_now(self.gpu))


def _document(watch: _Watch, steps: List[Dict[str, Any]]) -> Dict[str, Any]:
    def median(key: str) -> float:
        return float(statistics.median(step[key] for step in steps))

    layers: List[Dict[str, Any]] = []
    update, numel = median("update"), sum(p.numel() for _, p in watch.named)
    for i, (name, p) in enumerate(watch.named):
        forward = statistics.median(step["forward"].get(i, 0.0) for step in steps)
        layer: Dict[str, Any] = {
            "name": name,
            "numel": 0,
            "forward_s": forward,
            "backward_s": 0.0,
            "update_s": update * p.numel() / numel,
        }
        times = [step["ready"][i] for step in steps if i in step["ready"]]
        if len(times) == len(steps):  # else there is nothing to exchange in every step
            dtype = DTYPES.get(p.grad.dtype if p.grad is not None else p.dtype)
            if dtype is None:
                raise InvalidArgument(
                    f"parameter '{name}': its gradient is {p.dtype}, must be float32, float16 or "
                    "bfloat16"
                )
            layer.update(numel=p.numel(), dtype=dtype, ready_s=statistics.median(times))
        layers.append(layer)
    before = 0.0
    for layer in sorted((x for x in layers if "ready_s" in x), key=lambda x: x["ready_s"]):
        layer["backward_s"], before = layer["ready_s"] - before, layer["ready_s"]
    in_layers = sum(layer["forward_s"] for layer in layers)
    return {
        "step": {
            "io_s": median("io"),
            "host_to_device_s": 0.0,
            "other_s": max(median("before") - in_layers, 0.0),
            "measured_s": median("step"),
        },
        "layers": layers,
    }


def _add_exchange(
    layers: List[Dict[str, Any]], watch: _Watch, exchange: GradientExchange, steps: int
) -> None:
    spans: Dict[Tuple[int, str], List[float]] = defaultdict(list)
    reducer = exchange._reducer
    if reducer is None:
        return  # one rank exchanges nothing
    for event in json.loads(reducer.chrome_trace())["traceEvents"]:
        if event["ph"] != "X" or not event["name"].startswith("bucket "):
            continue
        bucket, lasted = int(event["name"].split()[1]), event["dur"] / 1e6
        if "transfer_us" in event["args"]:
            transfer = event["args"]["transfer_us"] / 1e6
            spans[bucket, "exchange_s"].append(transfer)
            spans[bucket, "decompress_s"].append(max(lasted - transfer, 0.0))
        else:
            spans[bucket, "compress_s"].append(lasted)
    for b, row in enumerate(exchange.plan.layout):
        together = [exchange._named[p][1] for group in row["groups"] for p in group["parameters"]]
        carriers = [layers[i] for i in map(watch.place_of, together) if i is not None]
        carriers = [layer for layer in carriers if layer["numel"] > 0]
        if carriers:
            last = max(carriers, key=lambda layer: layer["ready_s"])
            for key in ("compress_s", "exchange_s", "decompress_s"):
                if spans[b, key]:
                    last[key] = statistics.median(spans[b, key][-steps:])


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for data in loader:
            empty = False
            yield data
        if empty:
            raise InvalidArgument("loader: gave 0 batches, expected at least 1 each time")


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} thread(s)"
