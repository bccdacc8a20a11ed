"""The kernels that stream gradients, the rules for what nvcc makes of them, and what is still to come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict

LEAST_KB = 40  # on their way to a multiprocessor


@dataclass(frozen=True)
class Measured:
    """One kernel's numbers."""

    registers: int
    blocks: int  # resident on a multiprocessor
    wide: int  # loads of 16 bytes in flight
    in_flight: int  # bytes of a thread
    kilobytes: int  # on their way to a multiprocessor
    byte_loads: int
    fences: int
    atomics: int  # in global memory
    local: int


@dataclass(frozen=True)
class Row:
    name: str
    source: str
    kernel: str  # a pattern of its demangled name, up to the parenthesis
    wide: int  # loads of 16 bytes before the first is waited for
    payloads: bool = False  # it reads payloads, which begin at any byte
    threads: int = 256
    atomics: int | None = None  # at most
    to_come: dict[str, str] = field(default_factory=dict)  # rule: the design that will keep it

    def designs(self) -> list[tuple[str, str]]:
        """(design, its rules)."""
        return [(design, ", ".join(rule for rule in RULES if self.to_come.get(rule) == design))
                for design in dict.fromkeys(self.to_come.values())]


# name: whether a row's numbers keep it.
RULES: Dict[str, Callable[[Row, Measured], bool]] = {
    "16 bytes at a time": lambda row, found: found.wide >= row.wide,
    "no single bytes": lambda row, found: found.byte_loads == 0 or row.payloads,
    "one fence": lambda row, found: found.fences <= 1,
    "few atomics": lambda row, found: row.atomics is None or found.atomics <= row.atomics,
    "no local memory": lambda row, found: found.local == 0,
    "enough in flight": lambda row, found: found.kilobytes >= LEAST_KB,
}


def _code(bits: int) -> str:
    return rf"gradwire::Code<{bits}, \(gradwire::CodeFormat\)0, false>"


# What keeps the rules that a row breaks.
TAIL = "top-k tail"
SUM = "sparse mean"
LAMB = "LAMB's first pass"
POWER = "PowerSGD's products"


def _to_come(design: str, *rules: str) -> dict[str, str]:
    return dict.fromkeys(rules, design)


_WIDE, _BYTES, _FENCE, _ATOMICS, _LOCAL, _ENOUGH = RULES
_ROWS = [
    Row("int8, nearest", "quantize_cuda.cu", rf"quantize_kernel<float, {_code(8)}, false, false>", 4),
    Row("int8, stochastic", "quantize_cuda.cu", rf"quantize_kernel<float, {_code(8)}, true, false>", 4),
    Row("int4, nearest", "quantize_cuda.cu", rf"quantize_kernel<float, {_code(4)}, false, false>", 4),
    Row("int4, blocks over 256", "quantize_cuda.cu", rf"quantize_kernel<float, {_code(4)}, false, true>", 4),
    Row("mean of int8", "quantize_cuda.cu", rf"dequantize_kernel<float, {_code(8)} ?>", 0, payloads=True),
    Row("mean of int4", "quantize_cuda.cu", rf"dequantize_kernel<float, {_code(4)} ?>", 0, payloads=True),
    Row("1bit", "signs_cuda.cu", r"encode_signs_kernel<float, false>", 4),
    Row("mean of 1bit", "signs_cuda.cu", r"sum_signs_kernel<float>", 0, payloads=True),
    Row("bf16", "cast_cuda.cu", r"encode_cast_kernel<float, gradwire::bfloat16>", 4),
    Row("mean of bf16", "cast_cuda.cu", r"sum_cast_kernel<float, gradwire::bfloat16>", 2, payloads=True),
    Row("feedback", "feedback_cuda.cu", r"add_decayed_kernel<float>", 4),
    Row("velocity", "velocity_cuda.cu", r"accelerate_kernel<float>", 4),
    Row("top-k: mark", "select_cuda.cu", r"mark_kernel<float>", 4),
    Row("top-k: rank", "select_cuda.cu", r"::rank_kernel", 1, threads=1024,
        to_come=_to_come(TAIL, _WIDE, _BYTES, _ENOUGH)),
    Row("top-k: trim", "select_cuda.cu", r"::trim_kernel", 1,
        to_come=_to_come(TAIL, _WIDE, _BYTES, _ENOUGH)),
    Row("top-k: encode", "sparse_cuda.cu", r"encode_sparse_kernel<\(gradwire::cuda::SparseStorage\)6, "
        r"\(gradwire::cuda::SparseIndices\)0>", 1, atomics=4,  # of one thread: the call's flags and status
        to_come=_to_come(TAIL, _WIDE, _BYTES, _ENOUGH)),
    Row("chunk top-k", "select_cuda.cu", r"select_in_chunks_kernel<float>", 4),
    Row("sparse mean", "sparse_add_cuda.cu", r"add_sparse_kernel<float, \(gradwire::cuda::SparseStorage\)6, "
        r"\(gradwire::cuda::SparseIndices\)0>", 1, payloads=True, to_come=_to_come(SUM, _WIDE)),
    Row("PowerSGD: left", "lowrank_cuda.cu", r"multiply_left_kernel<float>", 1,
        to_come=_to_come(POWER, _WIDE)),
    Row("PowerSGD: right", "lowrank_cuda.cu", r"multiply_right_kernel<float>", 1,
        to_come=_to_come(POWER, _WIDE)),
    Row("SGD and LARS", "step_cuda.cu", r"momentum_kernel<false, false>", 6),
    Row("Adam and LAMB", "step_cuda.cu", r"adam_kernel<false, false>", 6),
    Row("LAMB: first pass", "step_cuda.cu", r"measure_kernel<\(gradwire::cuda::Change\)3, false, false>", 4,
        to_come=_to_come(LAMB, _WIDE, _BYTES)),
]


def rows() -> list[Row]:
    return _ROWS
