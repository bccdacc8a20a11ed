"""
The compiled part of gradwire. Use it through the package gradwire.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
__all__: list[str] = ['Compressor', 'CompressorSpec', 'Optimizer', 'build_info', 'canonical_optimizer', 'compressors', 'exchanges', 'optimizers', 'parse_spec', 'payload_info', 'transports']
class CompressorSpec:
    """
    A validated compressor request; read-only. str() gives the canonical text, which parse_spec() reads back.
    """
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __hash__(self) -> int:
        ...
    def __repr__(self) -> str:
        ...
    def __str__(self) -> str:
        ...
    @property
    def block(self) -> int:
        """
        Elements sharing one scale (int8, int4, 2bit and 1bit).
        """
    @property
    def density(self) -> float:
        """
        Kept / all elements, in (0, 1]; 1 unless the row is a selector.
        """
    @property
    def error_feedback(self) -> bool:
        """
        Whether what a payload leaves out is kept in a residual.
        """
    @property
    def fingerprint(self) -> int:
        """
        FNV-1a over the canonical text, as in every payload's header.
        """
    @property
    def name(self) -> str:
        """
        The registry row, e.g. 'topk'.
        """
    @property
    def rounding(self) -> str:
        """
        'nearest' or 'stochastic'.
        """
    @property
    def values(self) -> str:
        """
        How values travel: 'fp32', 'fp16', 'bf16', 'int8', 'int4', 'int2', 'sign' or 'raw' (the gradient's own dtype).
        """
class Compressor:
    """
    Compresses the gradients of `numel` elements on the CPU; never talks to the network.
    
    Args:
        spec: what to do, e.g. 'topk:1%', 'int4', 'fp16' (see gradwire.compressors()).
        numel: elements of the gradient, below 2**32.
        dtype: of the gradient: 'float32', 'float16' or 'bfloat16', or a NumPy dtype.
        seed, rank: of stochastic rounding; ranks of one job pass the same seed.
        threads: of the loops; results have the same bits for any number.
    
    Arrays are viewed in place, in C order and of any shape; the GIL is released during the work.
    
    Raises:
        InvalidArgument: for a bad spec or shape; an unknown name lists the known ones.
    """
    def __init__(self, spec: str, numel: typing.SupportsInt | typing.SupportsIndex, dtype: typing.Any = 'float32', seed: typing.SupportsInt | typing.SupportsIndex = 0, rank: typing.SupportsInt | typing.SupportsIndex = 0, threads: typing.SupportsInt | typing.SupportsIndex = 1) -> None:
        ...
    def __repr__(self) -> str:
        ...
    def commit(self) -> None:
        """
        Makes what the last compress() drew final: its next_residual is now the committed one.
        
        Raises:
            NonFiniteGradient: the last gradient held NaN or infinity.
        """
    def compress(self, gradient: typing.Any, residual: typing.Any = None, next_residual: typing.Any = None, out: typing.Any = None) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Writes the payload of gradient + residual and returns it as a uint8 array.
        
        Args:
            gradient: numel elements of the compressor's dtype.
            residual: the committed residual e, float32; together with next_residual or not at all.
            next_residual: float32, written so that gradient + e == D + next_residual, D being what the
                payload decodes to. Without residuals, what the payload leaves out is lost.
            out: uint8 buffer of at least capacity_bytes to write into; a new one by default.
        
        Returns:
            A view of the first bytes of `out`: as many as the payload has.
        
        A gradient that holds NaN or infinity gives a payload that says so (payload_info()['finite']):
        decompress() refuses it on every rank, and commit() refuses to commit it.
        """
    def decompress(self, payloads: typing.Any, scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, out: typing.Any = None) -> typing.Any:
        """
        Returns scale * (sum of the payloads), added in the order given in float32.
        
        Args:
            payloads: one payload or a list of them (uint8 arrays, bytes, memoryview), each checked before
                it is used: payloads of several ranks, or slices that tile the gradient.
            scale: 1 / world_size for a mean.
            out: numel elements of the compressor's dtype to write into; a new array by default (bfloat16:
                ml_dtypes.bfloat16 when installed, else uint16).
        
        Raises:
            InvalidArgument: a payload that does not belong here, naming which and why.
            NonFiniteGradient: a payload made from a gradient that held NaN or infinity.
        """
    @property
    def capacity_bytes(self) -> int:
        """
        Upper bound of a payload, the same on all ranks.
        """
    @property
    def dtype(self) -> str:
        """
        'float32', 'float16' or 'bfloat16'.
        """
    @property
    def fixed_length(self) -> bool:
        """
        Whether every payload has exactly capacity_bytes.
        """
    @property
    def keeps_residual(self) -> bool:
        """
        Whether the spec asks for error feedback.
        """
    @property
    def numel(self) -> int:
        """
        Elements of the gradient.
        """
    @property
    def rank(self) -> int:
        """
        Rank given at construction.
        """
    @property
    def seed(self) -> int:
        """
        Seed of stochastic rounding.
        """
    @property
    def spec(self) -> str:
        """
        The canonical spec text.
        """
    @property
    def step(self) -> int:
        """
        Commits so far; seeds stochastic rounding. Set it from a checkpoint.
        """
    @step.setter
    def step(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
class Optimizer:
    """
    Steps on arrays in place; the classes SGD, LARS and LAMB of the package wrap it.
    
    groups holds (weight_decay or None, learning_rate_scale, adapt); group_of names one of them for each parameter.
    """
    def __init__(self, spec: str, parameters: list[typing.Any], gradients: list[typing.Any], names: collections.abc.Sequence[str], group_of: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], groups: collections.abc.Sequence[tuple[typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex, bool]], threads: typing.SupportsInt | typing.SupportsIndex = 1) -> None:
        ...
    def load_state(self, scalars: dict[str, int], tensors: dict[str, dict[str, typing.Any]]) -> None:
        """
        Takes over what state() returned; checks all of it before anything is changed.
        """
    def state(self) -> tuple[dict[str, int], dict[str, dict[str, typing.Any]]]:
        """
        Copies of all state: ({name: int}, {parameter: {name: array}}).
        """
    def step(self, learning_rate: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Updates all parameters from their gradients; the GIL is released.
        
        Raises:
            NonFiniteGradient: naming the parameter; nothing was changed.
            InvalidArgument: learning_rate is negative or not finite.
        """
    @property
    def spec(self) -> str:
        """
        The canonical spec text.
        """
def build_info() -> dict[str, typing.Any]:
    """
    What this build holds: a dict with 'version', 'compiler', 'features' (name -> bool), 'cuda_devices' (usable GPUs) and 'cuda_unavailable_reason' (why that is 0, else '').
    """
def canonical_optimizer(text: str) -> str:
    """
    The canonical text of an optimizer spec such as 'lamb:weight_decay=0.01'.
    
    Raises:
        InvalidArgument: an unknown name or key lists the known ones.
    """
def compressors() -> list[dict[str, typing.Any]]:
    """
    The rows of the compressor registry, as dicts.
    """
def exchanges() -> list[dict[str, typing.Any]]:
    """
    The rows of the exchange registry, as dicts.
    """
def optimizers() -> list[dict[str, typing.Any]]:
    """
    The rows of the optimizer registry, as dicts.
    """
def parse_spec(text: str) -> CompressorSpec:
    """
    Reads a compressor spec such as 'topk:1%', 'topk:1%,int4' or 'int8,stochastic'.
    
    What the text leaves out is filled from the registry row.
    
    Raises:
        InvalidArgument: naming the part at fault; an unknown name lists the known ones.
    """
def payload_info(payload: typing.Any) -> dict[str, typing.Any]:
    """
    What a payload's header says: 'payload_bytes', 'numel', 'first_element',
    'spec_fingerprint' and 'finite' (False: the gradient it was made from held NaN or infinity).
    
    Raises:
        InvalidArgument: the bytes are no payload, or are cut short.
    """
def transports(plugin_path: str = '') -> list[dict[str, typing.Any]]:
    """
    The rows of the transport registry, as dicts; `plugin_path` is where the plug-in is looked for first.
    """
