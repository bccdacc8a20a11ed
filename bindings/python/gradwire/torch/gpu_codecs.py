"""What compressors cost on a GPU: timed there by events, kept beside what they cost on CPUs."""

from functools import partial
from typing import Dict, Sequence

import numpy as np

from .. import _core
from ..codec_cache import cached_codecs
from ..feedback import Feedback
from ..planning import Codec, Shapes, Times, fit_codec
from .ordering import OnGpu

__all__ = ["cached_gpu_codecs", "measure_gpu_codec"]

_REPEATS = 5
_NUMELS = (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)  # up to 16 MiB; squares, for powersgd


def cached_gpu_codecs(specs: Sequence[str], work: OnGpu, *, budget_s: float) -> Dict[str, Codec]:
    """cached_codecs() of a GPU, under its name. Between steps: it waits for the GPU."""
    machine = f"{work.gpu_name()}, gradwire {_core.build_info()['version']}"
    return cached_codecs(
        specs, budget_s=budget_s, machine=machine, measure=lambda spec: measure_gpu_codec(spec, work)
    )


def measure_gpu_codec(spec: str, work: OnGpu) -> Codec:
    """What compressing and decompressing take, from when the stream comes there: what launches take
    is in it where kernels are shorter.

    Raises:
        InvalidArgument: times follow no floor and rate, or the compressor is not there on a GPU.
    """
    return fit_codec(spec, _NUMELS, partial(_times, spec, work))


def _times(spec: str, work: OnGpu, numel: int, shapes: Shapes) -> Times:
    device, stream = f"cuda:{work.gpu}", work.handle()
    feedback = Feedback(spec, numel, device=device, shapes=shapes)
    gradient, out = (_core.DeviceArray("float32", [numel], device) for _ in range(2))
    gradient.assign(np.random.default_rng(numel).standard_normal(numel).astype(np.float32))
    once = feedback.compressor.rounds == 1
    room = _core.DeviceArray("uint8", [feedback.compressor.capacity_bytes], device)
    marks = []
    for _ in range(_REPEATS + 1):
        begin = work.mark()
        payload = feedback.compress(gradient, room if once else None, stream=stream)
        if not once:
            feedback.take_first([payload], stream=stream)
            payload = feedback.compress_second(gradient, room, stream=stream)
        middle = work.mark()
        feedback.decompress([payload], 1.0, out=out, stream=stream)
        marks.append((begin, middle, work.mark()))
        feedback.commit(stream=stream)
    feedback.check(stream)
    return ([work.seconds(begin, middle) for begin, middle, _ in marks],
            [work.seconds(middle, end) for _, middle, end in marks])  # fmt: skip
