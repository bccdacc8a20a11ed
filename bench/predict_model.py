"""What predict.py expects of a step: pure functions of profiles, probes and codec times.

The form was fixed before a step with an exchange was looked at, and nothing in it is fitted to one:

  computing    the profile of this model and batch with as many ranks computing at once; between
               profiled numbers of ranks in a straight line, beyond them in proportion to ranks a core.
               Its constant is what makes a step without exchange take what it took
  buckets      DDP's rule: 1 MiB, then 25 MiB, in the order in which gradients appear
  a bucket     compressed on the processor, exchanged, decompressed on the processor. The exchange is
               messages * time of a message, by the library's formulas and the payload's bytes
  codecs       timed alone, and so much longer as ranks share a core
  link         what messages of several sizes took there, straight lines between them; where nobody
               probed, the nearest probe: its start-up, and the rest by the nominal rates
  the step     planner.simulate(), schedule wfbp: one exchange at a time, beside backward; the update
               comes behind the last one
"""

import copy
import json
import math
import statistics
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

import gradwire
from gradwire import planner

DDP_CAPS = (1 << 20, 25 << 20)
# A payload is decoded so often: by gather every rank's; else its slices by their owners, and the sum.
_DECODINGS = {"gather": lambda ranks: ranks}
_TIMES = ("forward_s", "backward_s", "ready_s", "update_s")


@dataclass(frozen=True)
class Case:
    """A step whose time is asked for."""

    model: str
    batch: int
    method: str
    link: str
    ranks: int


@dataclass(frozen=True)
class Line:
    """What a message takes: straight lines between points, and beyond the last one as before it."""

    points: Tuple[Tuple[float, float], ...]  # bytes growing, seconds never falling

    def seconds(self, size: float) -> float:
        for (low, low_s), (high, high_s) in zip(self.points, self.points[1:]):
            if size <= high or high == self.points[-1][0]:
                return low_s + (high_s - low_s) * max(size - low, 0.0) / (high - low)
        raise AssertionError("a line has two points at least")


@dataclass(frozen=True)
class Probe:
    """What messages took on a link of so many bits a second, among so many ranks."""

    ranks: int
    bits_per_s: float
    line: Line


def line_through(measured: Sequence[Tuple[float, float]]) -> Line:
    """(bytes, seconds) of messages of two sizes at least: the median of each size, made to never fall
    by taking neighbours that do together (Ayer et al., 1955)."""
    sizes = sorted({size for size, _ in measured})
    blocks: List[Tuple[float, int]] = []  # mean seconds, sizes
    for size in sizes:
        blocks.append((statistics.median(s for b, s in measured if b == size), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (low, m), (high, n) = blocks[-2:]
            blocks[-2:] = [((m * low + n * high) / (m + n), m + n)]
    seconds = [s for s, count in blocks for _ in range(count)]
    return Line(tuple(zip(sizes, seconds)))


def ranks_per_core(ranks: int, cores: int) -> float:
    """How much longer work of one thread a rank takes than alone."""
    return max(1.0, ranks / cores)


def profile_at(profiles: Dict[int, dict], ranks: int, cores: int) -> dict:
    """The profile of so many ranks computing at once; `profiles` are those measured, by ranks."""
    if ranks in profiles:
        return copy.deepcopy(profiles[ranks])
    below = [r for r in profiles if r < ranks]
    above = [r for r in profiles if r > ranks]
    if below and above:
        low, high = max(below), min(above)
        share = (ranks - low) / (high - low)
        return _blended(profiles[low], profiles[high], 1 - share, share, ranks)
    nearest = max(below) if below else min(above)
    longer = ranks_per_core(ranks, cores) / ranks_per_core(nearest, cores)
    return _blended(profiles[nearest], profiles[nearest], longer, 0.0, ranks)


def _blended(one: dict, other: dict, share: float, rest: float, ranks: int) -> dict:
    made = copy.deepcopy(one)
    made["ranks"] = ranks
    for key in made["step"]:
        made["step"][key] = share * one["step"][key] + rest * other["step"][key]
    for layer, a, b in zip(made["layers"], one["layers"], other["layers"]):
        for key in _TIMES:
            if key in a:
                layer[key] = share * a[key] + rest * b[key]
    return made


def buckets_of(profile: dict, caps: Sequence[int] = DDP_CAPS) -> List[List[int]]:
    """Places of the layers that travel together, in the order in which buckets leave."""
    sent = [i for i, layer in enumerate(profile["layers"]) if layer["numel"] > 0]
    sent.sort(key=lambda i: profile["layers"][i]["ready_s"])
    buckets: List[List[int]] = []
    filled = math.inf
    for i in sent:
        if filled >= caps[min(len(buckets), len(caps)) - 1]:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += 4 * profile["layers"][i]["numel"]
    return buckets


def payload_bytes(spec: str, numel: int, found: Dict[Tuple[str, int], int]) -> int:
    """Of a gradient of that many normal elements; `found` keeps what was asked before."""
    import numpy

    if (spec, numel) not in found:
        values = numpy.random.default_rng(numel).standard_normal(numel).astype(numpy.float32)
        found[spec, numel] = len(gradwire.Feedback(spec, numel).compress(values))
    return found[spec, numel]


def line_at(probes: Sequence[Probe], ranks: int, bits_per_s: float) -> Line:
    """The line by the probe that is nearest: in ranks first, then in the rate's logarithm."""
    nearest = min(probes, key=lambda p: (abs(p.ranks - ranks), abs(math.log(p.bits_per_s / bits_per_s))))
    size, least = nearest.line.points[0]
    start_up = max(0.0, least - 8 * size / nearest.bits_per_s)
    slower = nearest.bits_per_s / bits_per_s
    return Line(tuple((b, start_up + slower * max(s - start_up, 0.0)) for b, s in nearest.line.points))


def exchange_seconds(exchange: str, numel: int, payload: int, ranks: int, line: Line) -> float:
    """Messages and bytes by the library's formulas, each message as long as the line says."""
    link = planner.PlannedLink("1GB/s")
    link.alpha_s, link.bytes_per_s = 0.0, 1.0
    sent = planner.exchange_seconds(exchange, numel, payload, ranks, link)
    link.alpha_s = 1.0
    messages = round(planner.exchange_seconds(exchange, numel, payload, ranks, link) - sent)
    return messages * line.seconds(sent / messages)


def expected(
    case: Case,
    bits_per_s: float,
    profiles: Dict[int, dict],
    shapes: Dict[str, Sequence[int]],
    probes: Sequence[Probe],
    codecs: Dict[str, Sequence[float]],
    cores: int,
) -> dict:
    """step_s and its parts, as planner.simulate() has them.

    Args:
        profiles: of this model and batch, by ranks.
        shapes: of the parameters, by the names in the profiles.
        codecs: encode floor s, encode bytes/s, decode floor s, decode bytes/s by spec.
    """
    profile = profile_at(profiles, case.ranks, cores)
    line = line_at(probes, case.ranks, bits_per_s)
    layers = profile["layers"]
    buckets = buckets_of(profile)
    in_turn = [i for i, layer in enumerate(layers) if layer["numel"] > 0]  # of the plan's parameters
    place = {layer: p for p, layer in enumerate(in_turn)}
    spec, _, exchange = case.method.partition("@")
    plan = gradwire.make_plan(
        [(layers[i]["name"], shapes[layers[i]["name"]]) for i in in_turn],
        spec,
        exchange=exchange or "auto",
        buckets=[[place[i] for i in bucket] for bucket in buckets],
    )
    longer = ranks_per_core(case.ranks, cores)
    found: Dict[Tuple[str, int], int] = {}
    for bucket, row in zip(buckets, plan.layout):
        sent, encoding, decoding = 0, 0.0, 0.0
        for group in row["groups"]:
            dense = 4.0 * group["numel"]
            sent += payload_bytes(group["spec"], group["numel"], found)
            encode_floor, encode_rate, decode_floor, decode_rate = codecs[group["spec"]]
            encoding += encode_floor + (dense / encode_rate if encode_rate else 0)
            decoding += decode_floor + (dense / decode_rate if decode_rate else 0)
        times = _DECODINGS.get(row["exchange"], lambda ranks: 2)(case.ranks)
        carrier = layers[bucket[-1]]
        carrier["exchange_s"] = exchange_seconds(
            row["exchange"], row["numel"], sent, case.ranks, line)
        carrier["compress_s"] = longer * encoding
        carrier["decompress_s"] = longer * decoding * times
    _in_turn(profile, layers[buckets[-1][-1]])
    cluster = planner.Cluster(workers=case.ranks, measured_exchanges=True)
    return planner.simulate(json.dumps(profile), cluster, "wfbp")


def _in_turn(profile: dict, last: dict) -> None:
    """Loading is part of the step here, the optimizer begins when all gradients are there, and what
    the profiled step took beyond its parts it takes here too."""
    step, layers = profile["step"], profile["layers"]
    update = sum(layer.get("update_s", 0.0) for layer in layers)
    parts = (sum(step[key] for key in ("io_s", "host_to_device_s", "other_s")) + update
             + sum(layer["forward_s"] for layer in layers)
             + max(layer.get("ready_s", 0.0) for layer in layers))
    step["other_s"] += step["io_s"] + step["host_to_device_s"] + step["measured_s"] - parts
    step["other_s"] = max(step["other_s"], 0.0)  # medians need not add up
    step["io_s"] = step["host_to_device_s"] = 0.0
    for layer in layers:
        layer["update_s"] = 0.0
    last["update_s"] = update
