"""What this build can do, as rows: one per compressor, exchange, optimizer and transport."""

from dataclasses import dataclass
from typing import Dict, List, Tuple

from . import _core

__all__ = [
    "CompressorRow",
    "ExchangeRow",
    "OptimizerRow",
    "TransportRow",
    "compressors",
    "exchanges",
    "optimizers",
    "transports",
]


@dataclass(frozen=True)
class CompressorRow:
    """A compressor."""

    name: str
    summary: str
    example: str  #: a spec that uses it
    selector: bool  #: takes a density and a value codec, as in "topk:1%,int4"
    error_feedback: bool  #: keeps a residual unless the spec says "noef"
    takes_rounding: bool  #: takes "nearest" or "stochastic"
    takes_block: bool  #: takes "block=N"
    takes_levels: bool  #: takes a number of levels, as in "qsgd:7"
    takes_width: bool  #: takes "width=W"
    on_gpu: bool  #: arrays of a GPU are compressed there; else they are refused by name
    source: str  #: paper or definition


@dataclass(frozen=True)
class ExchangeRow:
    """How the payloads of all ranks become one mean gradient."""

    name: str
    summary: str
    bytes_formula: str  #: sent per rank
    latency_formula: str


@dataclass(frozen=True)
class OptimizerRow:
    """What a step does to parameters."""

    name: str
    summary: str
    formula: str
    settings: Tuple[str, ...]  #: keys of its spec, as in "sgd:momentum=0.9"
    presets: Dict[str, str]  #: by name, the settings each stands for: "lamb:preset=apex"
    source: str
    steps_on_gradients: bool  #: alone; else prepare() writes what is to be exchanged to them


@dataclass(frozen=True)
class TransportRow:
    """How bytes cross between ranks."""

    name: str
    summary: str
    unavailable_reason: str  #: empty when usable here

    @property
    def available(self) -> bool:
        """Whether ranks can be joined with it on this machine."""
        return not self.unavailable_reason


def compressors() -> List[CompressorRow]:
    """The compressors, in the registry's order."""
    return [CompressorRow(**row) for row in _core.compressors()]


def exchanges() -> List[ExchangeRow]:
    """The exchanges, in the registry's order."""
    return [ExchangeRow(**row) for row in _core.exchanges()]


def optimizers() -> List[OptimizerRow]:
    """The optimizers, in the registry's order."""
    return [OptimizerRow(**row) for row in _core.optimizers()]


def transports() -> List[TransportRow]:
    """The transports, in the registry's order, each with why it is unusable here, if so."""
    return [TransportRow(**row) for row in _core.transports()]
