"""gradwire: gradient compression and large-batch optimizers for data-parallel training.

    >>> import gradwire, numpy as np
    >>> gradient = np.array([0.25, -3.0, 0.5, 2.0], np.float32)
    >>> feedback = gradwire.Feedback("topk:50%", gradient.size)  # keeps what is not sent
    >>> payload = feedback.compress(gradient)                    # uint8: send it to the other ranks
    >>> print(feedback.decompress([payload, payload], 1 / 2))    # the mean of two ranks
    [ 0. -3.  0.  2.]
    >>> feedback.commit()                                        # 0.25 and 0.5 go with the next step

Arrays are NumPy arrays or what has the buffer protocol or DLPack (CPU tensors of PyTorch, arrays of
JAX), viewed in place: where they are written, immutable ones are refused. Compressors and optimizers
also take those of CUDA GPUs (CuPy, PyTorch, JAX); DeviceArray is memory that gradwire makes there.

Compressing: parse_spec and CompressorSpec, Feedback, Compressor, payload_info, GroupPayloads.
Between ranks: make_transport, from_environment, make_in_process_group, Transport; Carrier and
    make_carrier_transport for somebody else's; probe_link, LinkCosts.
Overlapped with backward: make_plan, Plan, Reducer, Rebuilt.
Optimizers: SGD, AdamW, LARS, LARC, LAMB, OneBitAdam, OneBitLAMB, DiLoCo; make_optimizer, Optimizer,
    ParamGroup, FunctionalOptimizer. For PyTorch: gradwire.torch.
Large batches: large_batch, LargeBatch, NoiseScale, scale_linearly, scale_by_root, warmup,
    CosineSchedule, PolynomialSchedule.
What a training step takes, layer by layer: profile, of PyTorch scripts.
What this build has: build_info, and compressors, exchanges, optimizers, transports with rows
    CompressorRow, ExchangeRow, OptimizerRow, TransportRow.
Errors: Error, InvalidArgument, NonFiniteGradient, DeviceError, TransportError.

On the command line `gradwire doctor` says whether this installation works, `gradwire info` what it
can do, `gradwire bench` measures it on real training.
"""

from . import starting  # isort: skip  # first: it answers Ctrl-C during the imports below

try:
    from ._core import (
        Compressor,
        CompressorSpec,
        CosineSchedule,
        DeviceArray,
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
except ImportError as error:
    starting.explain(error)
    raise
from .carrier import Carrier
from .errors import DeviceError, Error, InvalidArgument, NonFiniteGradient, TransportError
from .feedback import Feedback
from .functional import FunctionalOptimizer
from .local_steps import DiLoCo
from .onebit import OneBitAdam, OneBitLAMB
from .optim import LAMB, LARC, LARS, SGD, AdamW, Optimizer, ParamGroup, make_optimizer
from .profiling import profile
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
    "DeviceArray",
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
    "profile",
    "scale_by_root",
    "scale_linearly",
    "transports",
    "warmup",
]
