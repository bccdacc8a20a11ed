"""What a training step will take elsewhere, how its gradients should travel, what to rent for it.

    >>> from gradwire import planner
    >>> bert = planner.profile_of_model("bert-large", flops_per_s=50e12, batch=8)
    >>> cluster = planner.Cluster(workers=64, link="25gbit", gpus_per_node=8)
    >>> step = planner.simulate(bert, cluster, schedule="wfbp")
    >>> step["step_s"] > step["compute_s"]  # the rest is exchange that nothing hides
    True

A profile is the JSON text of docs/profile-format.md. Nothing here runs on a device or a network;
measure_codecs() alone measures, on this machine's CPU. The equations and where they are from:
docs/simulate.md and docs/planner.md. A build without the planner raises Error, naming why, from all
but Cluster and SCHEDULES.

Steps: read_profile, profile_of_model, calibrated, Cluster, simulate, scaling, sensitivities, trace,
    beside_measured.
Links and costs: PlannedLink, link_presets, exchange_seconds, measure_codecs, spec_traffic, fit_line.
Bucket plans: gradients_of_profile, plan_buckets, BucketPlan.
Breakdown: StepDemand, Hardware, break_down, what_if, moves_from.
Stalls: find_stalls, fit_stalls, extrapolate_ring_stall; stragglers: sampled_straggler_factor,
    measured_straggler_factor.
What to rent: recommend, Recommendation, Configuration, Instance, default_instances, read_instances,
    epoch_seconds.
Quantities: parse_rate, parse_seconds, parse_bytes, seconds_text.
"""

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from . import _core, json_input
from .cnns import CNNS
from .errors import Error, InvalidArgument
from .models import MODELS, layers

__all__ = [
    "EXCHANGES",
    "SCHEDULES",
    "Cluster",
    "beside_measured",
    "calibrated",
    "profile_of_model",
    "read_profile",
    "scaling",
    "sensitivities",
    "simulate",
    "trace",
]

if not _core.planner_unavailable_reason:
    from . import planning
    from .planning import *  # noqa: F403

    __all__ += planning.__all__
elif not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Error(f"planner.{name}: {_core.planner_unavailable_reason}")


#: Names of the schedules: what of a step may go on at the same time.
SCHEDULES: Sequence[str] = tuple(_core.planner_schedules())

#: Names of the exchanges of a predicted step.
EXCHANGES: Sequence[str] = tuple(_core.planner_exchanges())

_MOST_BYTES = 1 << 30  # of a file, unpacked

FORMATS = ("profile", "columns", "b-caffe", "b-caffe-merged", "kineto", "chakra", "pipedream")


_OF_CHAKRA = ("COMM_COLL_NODE", '"workload_graph"', '"data_deps"', '"dataDeps"')


@dataclass(frozen=True)
class Cluster:
    """The machines a step runs on, and what travels between them.

    None keeps what the link says. link, intra: a preset (pcie3, pcie4, nvlink, 10gbe, 25gbe, 100gbe,
    infiniband) or a rate such as "25gbit" or "1.2GB/s". Raises InvalidArgument, when used, for values
    out of range.
    """

    workers: int = 1
    link: str = "10gbit"  #: between machines
    gpus_per_node: int = 1  #: workers that share a machine and its link
    intra: Optional[str] = None  #: inside a machine; None: 12 GB/s
    alpha_s: Optional[float] = None  #: start-up of a message between machines, in seconds
    bytes_per_s: Optional[float] = None
    efficiency: Optional[float] = None  #: what of the bandwidth can be had at all, in (0, 1]
    stream_bytes_per_s: Optional[float] = None  #: the most that one stream gets
    streams: int = 2  #: of the schedule multi-stream
    jitter: float = 0.0  #: standard deviation of a worker's computing time over its mean
    seed: int = 1
    compression: float = 1.0  #: dense bytes over bytes sent
    bucket_bytes: Sequence[float] = ()  #: caps of buckets, the last one repeats; (): by the schedule
    measured_exchanges: bool = False  #: the profile's own exchange times instead of the link
    #: ring, tree, rabenseifner, two_shot, gather (every worker decodes all payloads), parameter_server
    exchange: str = "ring"
    servers: int = 1  #: of parameter_server: machines of their own, each with a part of all bytes
    #: cores of a machine over the workers on it, which exchanges and computing share; 0: enough
    cores_per_worker: float = 0.0
    threads: float = 1.0  #: with which a worker computes
    #: a worker's processor time of a message it sends and the one it receives; None: the link's, 0
    message_cpu_s: Optional[float] = None
    cpu_bytes_per_s: Optional[float] = None  #: and so many of their bytes a second; 0: no time
    hand_over_s: Optional[float] = None  #: of computing, for each bucket; None: the profile's
    #: of a compressor, as measure_codecs() has them; None: compressing takes no time
    codec: Optional[Tuple[float, float, float, float]] = None
    #: () or one per worker: how many times longer than in the profile its (computing, input, messages)
    #: take; an exchange goes as fast as its slowest worker
    uneven: Sequence[Tuple[float, float, float]] = ()


def _settings(cluster: Cluster) -> Dict[str, Any]:
    _needed()
    return {**asdict(cluster), "bucket_bytes": list(cluster.bucket_bytes), "uneven": list(cluster.uneven)}


def _needed() -> None:
    if _core.planner_unavailable_reason:
        raise Error(_core.planner_unavailable_reason)


def read_profile(
    path: str, format: str = "profile", step: int = 0, batch: int = 1, elements: Sequence[int] = ()
) -> str:
    """The profile in a file, which may be compressed (.gz): "profile" (JSON), "columns" (S-SGD
    traces), "b-caffe" or "b-caffe-merged" (its logs), "kineto" (a torch.profiler trace of DDP on GPUs;
    `step` counts its steps from 0), "chakra" (execution traces in JSON), "pipedream" (its layer graphs);
    these two do not say the batch. `elements`: of kineto and chakra, those of each all-reduce in the
    order in which they leave, for traces that do not say them. Raises InvalidArgument naming file, place
    and value."""
    _needed()
    if format not in FORMATS:
        raise InvalidArgument(f"profile format: unknown name '{format}', known: {', '.join(FORMATS)}")
    if step < 0 or batch < 1:
        raise InvalidArgument(f"{path}: step {step}, batch {batch}, must be at least 0 and 1")
    if not all(0 < count <= 10**13 for count in elements):
        raise InvalidArgument(f"{path}: elements {list(elements)}, must each be from 1 to 1e13")
    text = read_text(path)
    if not text.strip() and format in ("profile", "kineto", "chakra"):
        raise InvalidArgument(f"{json_input.plain(path)}: is empty, expected a {format} in JSON")
    options = {"step": step, "batch": batch, "elements": list(elements)}
    try:
        return _core.planner_profile(format, text, json_input.plain(path), options)
    except InvalidArgument as error:
        other, what = _looks_like(text)
        if other == "pytorch":  # which chakra refuses too, and says what to do
            _core.planner_profile("chakra", text, json_input.plain(path), options)
        if other in ("", "pytorch", format):
            raise
        raise InvalidArgument(
            f"{error}; it looks like {what}, which the format {other} reads (--format {other})"
        ) from None


def _looks_like(text: str) -> Tuple[str, str]:
    """The format that a text seems to have, and what it is; empty where nothing tells."""
    begin = text.lstrip()[:1]
    first = text.lstrip().partition("\n")[0]
    for format, what, likely in (
        ("profile", "a profile of gradwire's", begin == "{" and '"gradwire.profile"' in text),
        ("kineto", "a Chrome trace, as torch.profiler writes it",
         begin in ("{", "[") and '"traceEvents"' in text),
        ("pytorch", "PyTorch's execution trace",
         re.match(r'\s*\{\s*"schema"\s*:', text) is not None and '"nodes"' in text),
        ("chakra", "an execution trace of Chakra's",
         begin in ("{", "[") and any(word in text for word in _OF_CHAKRA)),
        ("columns", "a table of layers",
         {"Forward", "Backward", "Comm"} <= set(first.replace(",", " ").split())),
        ("pipedream", "a layer graph of PipeDream's", " -- " in first and "forward_compute_time=" in text),
        ("b-caffe", "a log of B-Caffe's", first.rstrip().endswith("]") and ".cpp:" in first),
    ):
        if likely:
            return format, what
    return "", ""


def read_text(path: str) -> str:
    """The text of a file, plain or .gz, of at most 1 GiB. Raises InvalidArgument naming it."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise json_input.BadInput(f"it has more than {_MOST_BYTES >> 20} MiB")
        return (json_input.unpacked(data, _MOST_BYTES) if path.endswith(".gz") else data).decode("utf-8")
    except (OSError, json_input.BadInput, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: cannot be read ({error}), expected a text file") from None


def profile_of_model(
    name: str, flops_per_s: float, batch: int = 8, tokens: Optional[int] = None
) -> str:
    """The profile of a model that nobody measured: its matrices' or convolutions' arithmetic at
    flops_per_s operations per second (that are reached, not the data sheet's), backward twice forward.
    Transformers have `tokens` tokens a sample (None: as they were trained), the others images of
    224 x 224. Layers without much arithmetic take next to no time. Raises InvalidArgument for an unknown
    name, and lists the known ones; for tokens of images."""
    _needed()
    options = {"flops_per_s": flops_per_s, "batch": batch, "flops_per_element": 0.0}
    if name in CNNS:
        if tokens is not None:
            raise InvalidArgument(f"tokens: {tokens}, but {name} reads images, expected none")
        table = [f"{tensor},{elements},{flops!r}" for tensor, elements, flops in CNNS[name]()]
        return _core.planner_profile("layers", "\n".join(["tensor,elements,flops", *table]), name, options)
    if name not in MODELS:
        raise InvalidArgument(f"model: unknown name '{name}', known: {', '.join([*MODELS, *CNNS])}")
    model = MODELS[name]
    count = model.tokens if tokens is None else tokens
    if count < 1:
        raise InvalidArgument(f"tokens: {count}, must be at least 1")
    rows = [f"{tensor},{elements}" for tensor, elements in layers(model)]
    options["flops_per_element"] = 2.0 * count
    return _core.planner_profile("layers", "\n".join(["tensor,elements", *rows]), name, options)


def calibrated(profile: str, step_s: float) -> str:
    """The profile with the constant that makes a step on one worker take step_s seconds: what the
    model is fitted with, once per model. Raises InvalidArgument where the layers take longer."""
    _needed()
    return _core.planner_calibrated(profile, step_s)


def simulate(profile: str, cluster: Cluster, schedule: str = "wfbp") -> Dict[str, Any]:
    """A step in the steady state: schedule, workers, step_s (seconds), least_s and most_s (over
    draws of the jitter), compute_s + exposed_s + input_s = step_s (computing; waiting for exchanges;
    waiting for input or for slower workers), exchange_s (hidden or not), exchanges (messages a
    step), samples_per_s, critical_path (kind, what, begin_s, seconds of each task on it)."""
    return _core.planner_simulate(profile, schedule, _settings(cluster))


def scaling(profile: str, cluster: Cluster, schedule: str = "wfbp") -> List[Dict[str, Any]]:
    """For 1, 2, 4, ... workers up to the cluster's: workers, step_s, exposed_s, samples_per_s, speedup
    (times one worker's samples per second), efficiency (speedup over workers)."""
    return _core.planner_scaling(profile, schedule, _settings(cluster))


def sensitivities(profile: str, cluster: Cluster, schedule: str = "wfbp") -> List[Dict[str, Any]]:
    """For every input, the strongest first: input, value, elasticity (-0.5: 1% more of it makes the
    step 0.5% shorter) and no_effect (why a change of it changes nothing, or "")."""
    return _core.planner_sensitivities(profile, schedule, _settings(cluster))


def trace(profile: str, cluster: Cluster, schedule: str = "wfbp") -> str:
    """One predicted step as Chrome/Perfetto JSON (ui.perfetto.dev)."""
    return _core.planner_trace(profile, schedule, _settings(cluster))


def beside_measured(
    predicted: str, measured: str, step: Optional[int] = None, name: str = "measured"
) -> str:
    """trace()'s JSON with a measured step beside it, in processes of its own: of a trace of gradwire's
    Reducer (its first gradient is laid on the predicted one's) or of torch.profiler (its beginning is).
    `step` counts from 0 in the measured trace, None takes the last; `name` of it is for messages.
    Raises InvalidArgument for text that is no such trace, or a step that it does not have."""
    _needed()
    if step is not None and step < 0:
        raise InvalidArgument(f"{name}: step {step}, must be at least 0")
    return _core.planner_beside_measured(predicted, measured, step, json_input.plain(name))


def model_of(profile: str) -> str:
    """The name of the model in a profile."""
    return str(json.loads(profile)["model"])
