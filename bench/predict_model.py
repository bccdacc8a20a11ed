"""What predict.py expects of a step: pure functions of profiles, probes and codec times.

The form was fixed before a step with an exchange was looked at, and nothing in it is fitted to one:

  computing    the profile of this model and batch with as many ranks computing at once; between
               profiled numbers of ranks in a straight line, beyond them in proportion to ranks a core.
               Its constant is what makes a step without exchange take what it took
  buckets      DDP's rule: 1 MiB, then 25 MiB, in the order in which gradients appear
  a bucket     compressed on the processor, exchanged, decompressed on the processor. The exchange is
               messages * time of a message, by the library's formulas and the payload's bytes
  codecs       what coding took while as many ranks did, in straight lines between sizes; between and
               beyond those numbers of ranks like computing. Where owners add slices up (dense, two_shot)
               each decodes a bucket in slices, encodes its own region anew and decodes the sums
  link         what messages of several sizes took there, straight lines between them; where nobody
               probed, the nearest rate: its start-up, and the rest by the nominal rates; between probed
               numbers of ranks in a straight line, like computing, beyond them as there
  processors   what messages of several sizes took of them beside ranks that compute, of the same
               probes; r ranks have c / r of the cores each, and share them by max-min fairness
               (planner/cluster.h), a computing thread each
  handing over what gradwire's hook took for a bucket, of backward, of the same probes
  the step     planner.simulate(), schedule wfbp: one exchange at a time, beside backward; the update
               comes behind the last one
"""

import copy
import json
import math
import statistics
from dataclasses import dataclass
from typing import Collection, Dict, List, Sequence, Tuple

import gradwire
from gradwire import planner

DDP_CAPS = (1 << 20, 25 << 20)
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
    cpu: Line  # of a rank's processor, for a message sent and the one received
    hand_over_s: float = 0.0  # of a bucket


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


NOTHING = Line(((0.0, 0.0), (1.0, 0.0)))


@dataclass(frozen=True)
class Codec:
    """What coding takes, by bytes of dense float32 gradient."""

    encode: Line = NOTHING
    decode: Line = NOTHING


def codec_at(codecs: Dict[int, Codec], ranks: int, cores: int) -> Codec:
    """Of so many ranks at once, from those measured; as profile_at() has it."""
    shares = shares_at(codecs, ranks, cores)

    return Codec(*(blended([(getattr(codecs[r], kind), share) for r, share in shares])
                   for kind in ("encode", "decode")))


def blended(parts: Sequence[Tuple[Line, float]]) -> Line:
    """The sum of lines, each times its share."""
    sizes = sorted({size for line, _ in parts for size, _ in line.points})
    return Line(tuple((size, sum(share * line.seconds(size) for line, share in parts)) for size in sizes))


def shares_at(measured: Collection[int], ranks: int, cores: int) -> List[Tuple[int, float]]:
    """As neighbours(), but beyond the measured numbers of ranks in proportion to ranks a core."""
    return [(r, share * (ranks_per_core(ranks, cores) / ranks_per_core(r, cores) if share == 1.0 else 1.0))
            for r, share in neighbours(measured, ranks)]


def neighbours(measured: Collection[int], ranks: int) -> List[Tuple[int, float]]:
    """Of which measured numbers of ranks how much to take: in a straight line between two of them."""
    if ranks in measured:
        return [(ranks, 1.0)]
    below = [r for r in measured if r < ranks]
    above = [r for r in measured if r > ranks]
    if below and above:
        low, high = max(below), min(above)
        share = (ranks - low) / (high - low)
        return [(low, 1 - share), (high, share)]
    return [(max(below) if below else min(above), 1.0)]


def ranks_per_core(ranks: int, cores: int) -> float:
    """How much longer work of one thread a rank takes than alone."""
    return max(1.0, ranks / cores)


def profile_at(profiles: Dict[int, dict], ranks: int, cores: int) -> dict:
    """The profile of so many ranks computing at once; `profiles` are those measured, by ranks."""
    parts = [(profiles[r], share) for r, share in shares_at(profiles, ranks, cores)]
    made = copy.deepcopy(parts[0][0])
    made["ranks"] = ranks
    for key in made["step"]:
        made["step"][key] = sum(share * part["step"][key] for part, share in parts)
    for i, layer in enumerate(made["layers"]):
        for key in _TIMES:
            if key in layer:
                layer[key] = sum(share * part["layers"][i][key] for part, share in parts)
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


def probe_at(probes: Sequence[Probe], ranks: int, bits_per_s: float) -> Probe:
    """What a probe there would have found, from those nearest in ranks, and of these in the rate's
    logarithm."""
    parts = []
    for r, share in neighbours({probe.ranks for probe in probes}, ranks):
        there = [probe for probe in probes if probe.ranks == r]
        parts.append((min(there, key=lambda p: abs(math.log(p.bits_per_s / bits_per_s))), share))
    return Probe(
        ranks, bits_per_s, blended([(line_at(probe, bits_per_s), share) for probe, share in parts]),
        blended([(probe.cpu, share) for probe, share in parts]),
        sum(share * probe.hand_over_s for probe, share in parts))


def line_at(nearest: Probe, bits_per_s: float) -> Line:
    """The line of a link of that rate, by the probe that is nearest to it."""
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


def coding_behind(exchange: str, ranks: int) -> Tuple[float, float]:
    """How many buckets a rank decodes and encodes behind an exchange's first messages
    (comm/exchange/README.md)."""
    return (float(ranks), 0.0) if exchange == "gather" else (2.0, 1.0 / ranks)


def beside_computing(alone_s: float, cpu_s: float, ranks: int, cores: int) -> float:
    """Seconds of an exchange beside as many computing threads as ranks or cores, whichever are more:
    the same rule as the planner's, in a line."""
    share = cores / ranks
    threads = max(1, math.ceil(share))
    wants = min(cpu_s / alone_s, share)
    left = max(share - min(threads, share), share / (threads + 1))
    return alone_s * max(1.0, wants / left) if wants > 0 else alone_s


def expected(
    case: Case,
    bits_per_s: float,
    profiles: Dict[int, dict],
    shapes: Dict[str, Sequence[int]],
    probes: Sequence[Probe],
    codecs: Dict[str, Dict[int, Codec]],
    cores: int,
) -> dict:
    """step_s and its parts, as planner.simulate() has them.

    Args:
        profiles: of this model and batch, by ranks.
        shapes: of the parameters, by the names in the profiles.
        codecs: by spec and number of ranks that code at once.
    """
    profile = profile_at(profiles, case.ranks, cores)
    probe = probe_at(probes, case.ranks, bits_per_s)
    profile["step"]["hand_over_s"] = probe.hand_over_s
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
    found: Dict[Tuple[str, int], int] = {}
    for bucket, row in zip(buckets, plan.layout):
        sent, encoding, decoding = 0, 0.0, 0.0
        for group in row["groups"]:
            dense = 4.0 * group["numel"]
            sent += payload_bytes(group["spec"], group["numel"], found)
            codec = codec_at(codecs[group["spec"]], case.ranks, cores)
            encoding += codec.encode.seconds(dense)
            decoding += codec.decode.seconds(dense)
        decodings, encodings = coding_behind(row["exchange"], case.ranks)
        carrier = layers[bucket[-1]]
        for key, of_message in (("exchange_s", probe.line), ("exchange_cpu_s", probe.cpu)):
            carrier[key] = exchange_seconds(row["exchange"], row["numel"], sent, case.ranks, of_message)
        carrier["compress_s"] = encoding
        carrier["decompress_s"] = decoding * decodings + encoding * encodings
    _in_turn(profile, layers[buckets[-1][-1]])
    cluster = planner.Cluster(
        workers=case.ranks, measured_exchanges=True, cores_per_worker=cores / case.ranks)
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
