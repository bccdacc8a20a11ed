"""Bucket plans, costs, breakdowns, stalls and recommendations; use them through gradwire.planner."""

import math
import time
from functools import partial
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from . import _core
from .errors import Error
from .feedback import Feedback

try:
    from ._core import (
        BucketPlan,
        Configuration,
        Hardware,
        Instance,
        PlannedLink,
        Recommendation,
        StepDemand,
        break_down,
        default_instances,
        epoch_seconds,
        exchange_seconds,
        extrapolate_ring_stall,
        find_stalls,
        fit_line,
        fit_stalls,
        gradients_of_profile,
        link_presets,
        measured_straggler_factor,
        moves_from,
        parse_bytes,
        parse_rate,
        parse_seconds,
        plan_buckets,
        read_instances,
        recommend,
        sampled_straggler_factor,
        seconds_text,
        spec_traffic,
        what_if,
    )
except ImportError:
    raise Error(f"planner: {_core.planner_unavailable_reason}") from None

__all__ = [
    "BucketPlan", "Configuration", "Hardware", "Instance", "PlannedLink", "Recommendation",
    "StepDemand", "break_down", "default_instances", "epoch_seconds", "exchange_seconds",
    "extrapolate_ring_stall", "find_stalls", "fit_line", "fit_stalls", "gradients_of_profile",
    "link_presets", "measure_codecs", "measured_straggler_factor", "moves_from", "parse_bytes",
    "parse_rate", "parse_seconds", "plan_buckets", "read_instances", "recommend",
    "sampled_straggler_factor", "seconds_text", "spec_traffic", "what_if",
]

Codec = Tuple[float, float, float, float]  #: encode floor s, encode bytes/s, decode floor s, decode bytes/s

Shapes = Optional[List[Tuple[int, int]]]
Times = Tuple[List[float], List[float]]

_PROBE_NUMELS = (1 << 14, 1 << 16, 1 << 18, 1 << 20)


def measure_codecs(specs: Sequence[str], threads: int = 1, repeats: int = 5) -> Dict[str, Codec]:
    """What compressing and decompressing take on this machine's CPU, for plan_buckets(codecs=...).

    Compresses normal float32 gradients of 64 KiB to 4 MiB with every spec, takes the fastest of
    `repeats` calls of each size and fits floor + bytes / rate. Takes some tenths of a second a spec.
    Raises InvalidArgument where times follow no such law: measure again on a quiet machine.
    """
    return {
        spec: fit_codec(spec, _PROBE_NUMELS, partial(_times, spec, threads, repeats)) for spec in specs
    }


def fit_codec(
    spec: str, numels: Sequence[int], time_calls: Callable[[int, Shapes], Times]
) -> Codec:
    """Floors and rates of a compressor.

    Args:
        time_calls: of a size, and of the shape where the spec wants one, seconds of calls that encode
            and of those that decode, of which the first ones do not count.

    Raises:
        InvalidArgument: times follow no such law.
    """
    encode: List[Tuple[float, float]] = []
    decode: List[Tuple[float, float]] = []
    for numel in numels:
        side = math.isqrt(numel)  # of powersgd, which wants a matrix: what it costs hardly depends on shapes
        shapes = [(side, side)] if _core.parse_spec(spec).rank > 0 else None
        for fits, seconds in zip((encode, decode), time_calls(numel, shapes)):
            counted = seconds[1:]  # the first call makes its buffers
            if shapes:  # of powersgd a step costs something else than the next: the mean of two
                counted = [(a + b) / 2 for a, b in zip(counted, counted[1:])]
            fits.append((4.0 * numel, min(counted)))
    encode_floor, encode_rate, _ = fit_line(encode)
    decode_floor, decode_rate, _ = fit_line(decode)
    return encode_floor, encode_rate, decode_floor, decode_rate


def _times(spec: str, threads: int, repeats: int, numel: int, shapes: Shapes) -> Times:
    gradient = np.random.default_rng(numel).standard_normal(numel).astype(np.float32)
    out = np.empty(numel, np.float32)
    lasting = str(_core.parse_spec(spec).lasting)
    feedback = Feedback(lasting, numel, threads=threads, shapes=shapes)
    encoding: List[float] = []
    decoding: List[float] = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        payload = feedback.compress(gradient)
        if feedback.compressor.rounds == 2:
            feedback.take_first([payload])
            payload = feedback.compress_second(gradient)
        middle = time.perf_counter()
        feedback.decompress([payload], 1.0, out=out)
        decoding.append(time.perf_counter() - middle)
        encoding.append(middle - begin)
        feedback.commit()
    return encoding, decoding
