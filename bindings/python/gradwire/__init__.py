"""gradwire: gradient compression and large-batch optimizers for data-parallel training.

    feedback = gradwire.Feedback("topk:1%", gradient.size)
    payload = feedback.compress(gradient)      # uint8: send it to the other ranks
    mean = feedback.decompress(payloads, 1 / len(payloads))
    feedback.commit()

Arrays are NumPy arrays or what has the buffer protocol or DLPack (CPU tensors of PyTorch, arrays of
JAX), viewed in place: where they are written, immutable ones are refused. `gradwire info`
shows what this build can do, `gradwire bench` measures it on real training.
"""

from . import starting  # isort: skip  # first: it answers Ctrl-C during the imports below
from ._core import (
    Compressor,
    CompressorSpec,
    CosineSchedule,
    GroupPayloads,
    LargeBatch,
    LinkCosts,
    NoiseScale,
    Plan,
    PolynomialSchedule,
    Rebuilt,
    Transport,
    build_info,
    from_environment,
    large_batch,
    make_carrier_transport,
    make_in_process_group,
    make_plan,
    make_transport,
    parse_spec,
    payload_info,
    probe_link,
    scale_by_root,
    scale_linearly,
    warmup,
)
from .carrier import Carrier
from .errors import DeviceError, Error, InvalidArgument, NonFiniteGradient, TransportError
from .feedback import Feedback
from .functional import FunctionalOptimizer
from .local_steps import DiLoCo
from .onebit import OneBitAdam, OneBitLAMB
from .optim import LAMB, LARC, LARS, SGD, AdamW, Optimizer, ParamGroup, make_optimizer
from .reducer import Reducer
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
    "LARC",
    "LARS",
    "SGD",
    "AdamW",
    "Carrier",
    "Compressor",
    "CompressorRow",
    "CompressorSpec",
    "CosineSchedule",
    "DeviceError",
    "DiLoCo",
    "Error",
    "ExchangeRow",
    "Feedback",
    "FunctionalOptimizer",
    "GroupPayloads",
    "InvalidArgument",
    "LargeBatch",
    "LinkCosts",
    "NoiseScale",
    "NonFiniteGradient",
    "OneBitAdam",
    "OneBitLAMB",
    "Optimizer",
    "OptimizerRow",
    "ParamGroup",
    "Plan",
    "PolynomialSchedule",
    "Rebuilt",
    "Reducer",
    "Transport",
    "TransportError",
    "TransportRow",
    "build_info",
    "compressors",
    "exchanges",
    "from_environment",
    "large_batch",
    "make_carrier_transport",
    "make_in_process_group",
    "make_optimizer",
    "make_plan",
    "make_transport",
    "optimizers",
    "parse_spec",
    "payload_info",
    "probe_link",
    "scale_by_root",
    "scale_linearly",
    "transports",
    "warmup",
]
