"""gradwire: gradient compression and large-batch optimizers for data-parallel training.

    feedback = gradwire.Feedback("topk:1%", gradient.size)
    payload = feedback.compress(gradient)      # uint8: send it to the other ranks
    mean = feedback.decompress(payloads, 1 / len(payloads))
    feedback.commit()

Arrays are NumPy arrays (or anything with the buffer protocol), viewed in place. `gradwire info`
shows what this build can do, `gradwire bench` measures it on real training.
"""

from . import starting  # isort: skip  # first: it answers Ctrl-C during the imports below
from ._core import Compressor, CompressorSpec, build_info, parse_spec, payload_info
from .errors import DeviceError, Error, InvalidArgument, NonFiniteGradient, TransportError
from .feedback import Feedback
from .optim import LAMB, LARS, SGD, Optimizer, ParamGroup, make_optimizer
from .registries import (
    CompressorRow,
    ExchangeRow,
    OptimizerRow,
    TransportRow,
    compressors,
    exchanges,
    optimizers,
    transports,
)

__version__: str = build_info()["version"]

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "Compressor",
    "CompressorRow",
    "CompressorSpec",
    "DeviceError",
    "Error",
    "ExchangeRow",
    "Feedback",
    "InvalidArgument",
    "NonFiniteGradient",
    "Optimizer",
    "OptimizerRow",
    "ParamGroup",
    "TransportError",
    "TransportRow",
    "build_info",
    "compressors",
    "exchanges",
    "make_optimizer",
    "optimizers",
    "parse_spec",
    "payload_info",
    "transports",
]
