"""
The compiled part of gradwire. Use it through the package gradwire.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
__all__: list[str] = ['BucketPlan', 'Compressor', 'CompressorSpec', 'Configuration', 'CosineSchedule', 'DeviceArray', 'GroupPayloads', 'Hardware', 'Instance', 'LargeBatch', 'LinkCosts', 'NoSync', 'NoiseScale', 'Optimizer', 'Pilot', 'Plan', 'PlannedLink', 'PolynomialSchedule', 'Rebuilt', 'Recommendation', 'Reducer', 'ShardedReducer', 'StepDemand', 'Transport', 'address_offer', 'break_down', 'build_info', 'canonical_optimizer', 'check_optimizer_groups', 'chosen_address', 'codes_of_floats', 'compressors', 'default_instances', 'device_copy', 'epoch_seconds', 'exchange_seconds', 'exchanges', 'extrapolate_ring_stall', 'find_stalls', 'fit_line', 'fit_stalls', 'floats_of_codes', 'from_environment', 'gradients_of_profile', 'large_batch', 'link_presets', 'make_carrier_transport', 'make_in_process_group', 'make_plan', 'make_transport', 'measured_straggler_factor', 'move_elements', 'moves_from', 'optimizer_settings', 'optimizers', 'parse_bytes', 'parse_rate', 'parse_seconds', 'parse_spec', 'payload_info', 'plan_buckets', 'planner_beside_measured', 'planner_calibrated', 'planner_exchanges', 'planner_profile', 'planner_scaling', 'planner_schedules', 'planner_sensitivities', 'planner_simulate', 'planner_trace', 'planner_unavailable_reason', 'probe_link', 'read_instances', 'recommend', 'sampled_straggler_factor', 'scale_by_root', 'scale_linearly', 'seconds_text', 'socket_interface_from_environment', 'spec_traffic', 'transports', 'warmup', 'what_if']
class DeviceArray:
    """
    Memory of a GPU that gradwire keeps or has made: states, payloads, residuals. Other libraries take it without a copy by DLPack: cupy.from_dlpack(a), torch.from_dlpack(a), jax.dlpack.from_dlpack(a).
    """
    def __dlpack__(self, *, stream: typing.Any = None, max_version: typing.Any = None, dl_device: typing.Any = None, copy: typing.Any = None) -> typing.Any:
        """
        A capsule, as the array API standard has it: the consumer's stream waits for what was written.
        """
    def __dlpack_device__(self) -> tuple[int, int]:
        ...
    def __init__(self, dtype: str, shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], device: str = 'cuda') -> None:
        """
        New memory of zeros, once it returns. dtype: 'float32', 'float16', 'bfloat16', 'uint16' or 'uint8'.
        """
    def __repr__(self) -> str:
        ...
    def assign(self, values: typing.Any) -> None:
        """
        Copies a NumPy array of as many bytes, in C order, over its elements; waits, as to_numpy() does.
        """
    def to_numpy(self) -> numpy.ndarray:
        """
        A copy in CPU memory (bfloat16: ml_dtypes.bfloat16 when installed, else uint16); waits for the stream on which it was last written.
        """
    @property
    def __gradwire_stream__(self) -> int:
        """
        The handle of the stream on which it was last written.
        """
    @property
    def device(self) -> str:
        """
        'cuda:' and the number of its GPU.
        """
    @property
    def dtype(self) -> str:
        """
        NumPy's name of it, or 'bfloat16'.
        """
    @property
    def nbytes(self) -> int:
        """
        Bytes.
        """
    @property
    def shape(self) -> tuple[int, ...]:
        """
        As NumPy's.
        """
    @property
    def size(self) -> int:
        """
        Elements.
        """
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
    def in_step(self, committed: typing.SupportsInt | typing.SupportsIndex) -> CompressorSpec:
        """
        The spec without start and warm-up of the step behind so many committed ones. dgc without a start stays as it is: its compressor counts the steps of its warm-up.
        """
    def next_change(self, committed: typing.SupportsInt | typing.SupportsIndex) -> int | None:
        """
        The fewest committed steps above these behind which in_step() is another one; None: it stays.
        """
    @property
    def block(self) -> int:
        """
        Elements sharing one scale, where the compressor takes a block.
        """
    @property
    def clip(self) -> float:
        """
        dgc: the largest norm of a gradient, over the root of the world size; 0: none.
        """
    @property
    def decay(self) -> float:
        """
        What the residual is multiplied by before a gradient is added, in (0, 1].
        """
    @property
    def density(self) -> float:
        """
        Kept / all elements, in (0, 1]; 1 unless the row is a selector.
        """
    @property
    def ef21(self) -> bool:
        """
        Whether the residual is the negative sum of what was sent (EF21).
        """
    @property
    def error_feedback(self) -> bool:
        """
        Whether what a payload leaves out is kept in a residual.
        """
    @property
    def eta(self) -> float:
        """
        Of the velocity v = (1 - eta) v + eta gradient of ef21, in (0, 1]; 1: the gradient.
        """
    @property
    def fingerprint(self) -> int:
        """
        FNV-1a over the canonical text, as in every payload's header.
        """
    @property
    def keeps_velocity(self) -> bool:
        """
        Whether a velocity takes the gradient's place.
        """
    @property
    def lasting(self) -> CompressorSpec:
        """
        in_step() of all steps from some step on.
        """
    @property
    def levels(self) -> int:
        """
        S of qsgd; 0 of all others.
        """
    @property
    def momentum(self) -> float:
        """
        M of the velocity u = M u + gradient that takes the gradient's place, in [0, 1).
        """
    @property
    def name(self) -> str:
        """
        The registry row, e.g. 'topk'.
        """
    @property
    def rank(self) -> int:
        """
        R of powersgd; 0 of all others.
        """
    @property
    def residual(self) -> str:
        """
        What a Reducer keeps residuals in between steps: 'float32' or 'bfloat16'.
        """
    @property
    def rounding(self) -> str:
        """
        'nearest' or 'stochastic'.
        """
    @property
    def rounds(self) -> int:
        """
        Exchanges in a step.
        """
    @property
    def start(self) -> int:
        """
        The first steps, which send every element; 0: none.
        """
    @property
    def values(self) -> str:
        """
        How values travel: 'fp32', 'fp16', 'bf16', 'int8', 'int4', '2bit', '1bit', 'e4m3', 'e5m2', 'natural' or 'raw' (the gradient's own dtype).
        """
    @property
    def warmup(self) -> int:
        """
        Selectors: steps of each stage of the warm-up; 0: none.
        """
    @property
    def width(self) -> int:
        """
        Elements of a block that blocktopk sends whole; 0 of all others.
        """
class Compressor:
    """
    Compresses the gradients of `numel` elements; never talks to the network.
    
    Args:
        spec: what to do, e.g. 'topk:1%', 'int4', 'fp16' (see gradwire.compressors()).
        numel: elements of the gradient, below 2**32.
        dtype: of the gradient: 'float32', 'float16' or 'bfloat16', or a NumPy dtype.
        seed, rank: of stochastic rounding; ranks of one job pass the same seed.
        threads: of the loops; results have the same bits for any number.
        world_size: ranks whose payloads become one mean; dgc clips by it.
        shapes: of the parameters that follow one another in the gradient, as a plan's; their sizes add
            up to numel. None: one parameter, and no matrix. tensortopk chooses in each of them, blocktopk
            begins its blocks anew, powersgd sends factors of those with two dimensions and more (rows:
            the first), and stochastic rounding draws by parameter.
    
        device: where all arrays are and the work is done: 'cpu', 'cuda' (the first GPU) or 'cuda:1'.
    
    Arrays are viewed in place, in C order and of any shape; the GIL is released during the work.
    
    On a GPU calls are enqueued on their `stream` (see docs/gpu.md; None: the current one of the array's
    library) and return at once. What is wrong with a payload or a gradient is kept there: commits change
    nothing any more until check() has raised it. Payloads are whole buffers of capacity_bytes.
    
    Raises:
        InvalidArgument: for a bad spec or shape; an unknown name lists the known ones.
    """
    def __init__(self, spec: str, numel: typing.SupportsInt | typing.SupportsIndex, dtype: typing.Any = 'float32', seed: typing.SupportsInt | typing.SupportsIndex = 0, rank: typing.SupportsInt | typing.SupportsIndex = 0, threads: typing.SupportsInt | typing.SupportsIndex = 1, world_size: typing.SupportsInt | typing.SupportsIndex = 1, *, shapes: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]] | None = None, device: str = 'cpu') -> None:
        ...
    def __repr__(self) -> str:
        ...
    def add_estimate(self, mean: typing.Any, estimate: typing.Any, next_estimate: typing.Any, stream: typing.Any = None) -> None:
        """
        Of a spec with ef21, behind decompress(), whose result is `mean`: writes estimate + mean to `mean` and next_estimate, numel float32 elements each. On a GPU the two estimates are passed in the same order in every step, as the residuals are, and a sum that overflows stops the commit.
        
        Raises:
            InvalidArgument: a spec without ef21, another dtype or size, arrays that share memory.
        """
    def check(self, stream: typing.Any = None) -> None:
        """
        On a GPU waits, raises what stopped commits, and forgets it: the committed state stands. Call it once in a while. On the CPU calls raise for themselves.
        
        Raises:
            NonFiniteGradient: a gradient of some rank held NaN or infinity, or the sum of all ranks' overflowed.
            InvalidArgument: a payload that does not belong here, naming which and why.
        """
    def commit(self, stream: typing.Any = None, skip: bool = False) -> None:
        """
        Makes what the last compress() drew final: its next_residual is now the committed one. On a GPU it is enqueued (stream None: on the last call's); where the step met NaN or infinity nothing is committed, with skip in this step alone, else until check().
        
        Raises:
            NonFiniteGradient: the last gradient held NaN or infinity, or the last sum of payloads overflowed (on the CPU).
        """
    def compress(self, gradient: typing.Any, residual: typing.Any = None, next_residual: typing.Any = None, out: typing.Any = None, stream: typing.Any = None) -> typing.Any:
        """
        Writes the payload of gradient + residual and returns it as a uint8 array.
        
        Args:
            gradient: numel elements of the compressor's dtype.
            residual: the committed residual e, float32; together with next_residual or not at all.
            next_residual: float32, written so that gradient + e == D + next_residual, D being what the
                payload decodes to (decay * e where the spec has a decay, and the velocity for the gradient
                where it keeps one; with ef21 e - D == next_residual, and the gradient's estimate, the sum
                of all means so far, is the caller's to keep: see Feedback). Without residuals, what the payload leaves out is lost.
            out: uint8 buffer of at least capacity_bytes to write into; a new one by default.
            stream: on a GPU; there the two residuals are passed in the same order in every step, and which
                of them is the committed one is decided by commit().
        
        Returns:
            A view of the first bytes of `out`: as many as the payload has. On a GPU `out`, by default a
            DeviceArray.
        
        With rounds == 2 it is the payload of the first round, and next_residual means nothing yet: take_first()
        and compress_second() come next.
        
        A gradient that holds NaN or infinity gives a payload that says so (payload_info()['finite']):
        decompress() refuses it on every rank, and commit() refuses to commit it.
        """
    def compress_accumulated(self, values: typing.Any, out: typing.Any = None, stream: typing.Any = None) -> typing.Any:
        """
        compress() for gradients that were added straight into the residual, in one buffer.
        
        Args:
            values: numel float32 elements that hold gradient + residual; become the next residual.
            out: as for compress().
        
        Returns:
            The payload that compress() of the same sum would write, as a view of the first bytes of `out`.
        
        NOT transactional: the committed residual is gone, and restore(payload, values) gives gradient +
        residual back, exactly for selection and nearest rounding, else to one rounding of float32. Values
        that hold NaN or infinity stay as they are, and their payload says so.
        
        Raises:
            InvalidArgument: a spec without error feedback, another dtype or size; values are unchanged.
        """
    def compress_second(self, gradient: typing.Any, residual: typing.Any = None, next_residual: typing.Any = None, out: typing.Any = None, stream: typing.Any = None) -> typing.Any:
        """
        Writes the payload of the second round, behind take_first(): the one that decompress() is given.
        
        Args:
            gradient, residual, next_residual, out: as for compress(), with the same gradient and residual.
        
        Raises:
            InvalidArgument: a compressor of one round; before take_first().
        """
    def decompress(self, payloads: typing.Any, scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, out: typing.Any = None, stream: typing.Any = None) -> typing.Any:
        """
        Returns scale * (sum of the payloads), added in the order given in float32.
        
        Args:
            payloads: one payload or a list of them (uint8 arrays, bytes, memoryview), each checked before
                it is used: payloads of several ranks, or slices that tile the gradient.
            scale: 1 / world_size for a mean.
            out: numel elements of the compressor's dtype to write into; a new array by default (bfloat16:
                ml_dtypes.bfloat16 when installed, else uint16).
        
        Of powersgd what it returned last is what commit() makes the next step begin with: each rank calls it
        with the payloads of all, in the same order, between compress() and commit().
        
        Raises:
            InvalidArgument: a payload that does not belong here, naming which and why.
            NonFiniteGradient: a payload made from a gradient that held NaN or infinity; on the CPU also a
                sum that overflows float32 though all gradients are finite: commit() then refuses too. On a
                GPU check() raises it.
        """
    def restore(self, payload: typing.Any, values: typing.Any, stream: typing.Any = None) -> None:
        """
        Adds what a payload decodes to back to `values` (numel elements, float32), in place: undoes
        compress_accumulated() after an exchange that failed or a step that was skipped.
        
        A payload made from NaN or infinity took nothing and gives nothing.
        
        Raises:
            InvalidArgument: a payload that does not belong here, a spec without error feedback, another
                dtype or size; values are unchanged.
        """
    def take_first(self, payloads: typing.Any, scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, stream: typing.Any = None) -> None:
        """
        Between the two rounds of a step (rounds == 2): takes over scale * (sum of the first payloads),
        which are what compress() wrote on every rank. All ranks pass the same ones; the next compress()
        forgets them.
        
        Args:
            payloads, scale: as for decompress().
        
        Raises:
            InvalidArgument: a compressor of one round; a payload that does not belong here.
            NonFiniteGradient: a payload made from a gradient that held NaN or infinity.
        """
    @property
    def capacity_bytes(self) -> int:
        """
        Upper bound of a payload, the same on all ranks.
        """
    @property
    def device(self) -> str:
        """
        'cpu', or 'cuda:' and the number of the GPU.
        """
    @property
    def dtype(self) -> str:
        """
        'float32', 'float16' or 'bfloat16'.
        """
    @property
    def first_bytes(self) -> int:
        """
        Bytes of every payload of a first round; 0 where there is one.
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
    def parity(self) -> int:
        """
        On a GPU which of the two residuals, passed in the same order in every step, is the committed one: 0 the first, 1 the second; waits. On the CPU 0.
        """
    @property
    def rank(self) -> int:
        """
        Rank given at construction.
        """
    @property
    def rounds(self) -> int:
        """
        Exchanges in a step: 2 of powersgd with rounds=2 and a matrix, else 1.
        """
    @property
    def seed(self) -> int:
        """
        Seed of stochastic rounding.
        """
    @property
    def shapes(self) -> list[list[int]] | None:
        """
        Shapes of the parameters, as lists of integers, or None.
        """
    @property
    def spec(self) -> str:
        """
        The canonical spec text.
        """
    @property
    def state(self) -> list[int]:
        """
        What committed steps taught beyond step, as integers; empty for most. Set it from a checkpoint; InvalidArgument for a state of another shape.
        """
    @state.setter
    def state(self, arg1: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        ...
    @property
    def step(self) -> int:
        """
        Commits so far; seeds stochastic rounding. Set it from a checkpoint, before state, which it makes the compressor forget.
        """
    @step.setter
    def step(self, arg1: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def velocity(self) -> typing.Any:
        """
        A copy of the committed velocity, float32, or None where the spec keeps none. Setting step makes it zero; set it from a checkpoint behind that.
        """
    @velocity.setter
    def velocity(self, arg1: typing.Any) -> None:
        ...
    @property
    def world_size(self) -> int:
        """
        Ranks whose payloads become one mean.
        """
class Transport:
    """
    Bytes between ranks: collective verbs over one group. All ranks call the same verbs in the same order.
    
    Every verb blocks with the GIL released. Every failure is a TransportError naming a rank; after it the group, and all that share its world, are finished. `fingerprint` and `what` name a call: ranks whose fingerprints differ are told before any payload is used, `what` goes into messages. One verb at a time: calls of other threads wait.
    """
    def __enter__(self) -> Transport:
        ...
    def __exit__(self, type: typing.Any, error: typing.Any, traceback: typing.Any) -> None:
        ...
    def __repr__(self) -> str:
        ...
    def abort(self, reason: str) -> None:
        """
        Ends the group for everyone, from any thread: pending and later calls raise it. Nothing once closed.
        """
    def agree(self, what: str, text: str) -> None:
        """
        Compares a text over ranks. Collective, also where GPU memory is carried.
        
        Raises:
            InvalidArgument: on all ranks, naming the first that has another one than rank 0, and the first line in which it differs.
        """
    def all_gather(self, data: typing.Any, *, capacity: typing.SupportsInt | typing.SupportsIndex | None = None, fingerprint: typing.SupportsInt | typing.SupportsIndex = 0, what: str = '') -> list[numpy.typing.NDArray[numpy.uint8]]:
        """
        Returns what each rank gave, a uint8 array per rank.
        
        Args:
            data: a contiguous array of any dtype, or bytes.
            capacity: bytes, the same on all ranks and at least len(data) on each; by default the length of data, which then is the same everywhere.
        
        Over a transport of GPU memory it is for a few KB between steps: bytes of the host, which travel beside it over the control group, by way of rank 0.
        """
    def all_reduce_sum(self, values: typing.Any, *, fingerprint: typing.SupportsInt | typing.SupportsIndex = 0, what: str = '') -> typing.Any:
        """
        Replaces `values` (float32, equal length on all ranks) by the sum over ranks, added in rank order: the same bits on every rank. Returns it.
        """
    def all_to_all(self, data: collections.abc.Sequence[typing.Any], *, capacity: typing.SupportsInt | typing.SupportsIndex | None = None, fingerprint: typing.SupportsInt | typing.SupportsIndex = 0, what: str = '') -> list[numpy.typing.NDArray[numpy.uint8]]:
        """
        Gives data[d] to rank d; returns what each rank gave to this one.
        
        Args:
            data: world_size contiguous arrays or bytes; they are copied once.
            capacity: bytes, the same on all ranks and at least the longest part of any; by default the longest of data.
        """
    def barrier(self, *, fingerprint: typing.SupportsInt | typing.SupportsIndex = 0, what: str = '') -> None:
        """
        Returns when every rank has entered.
        """
    def broadcast(self, data: typing.Any, root: typing.SupportsInt | typing.SupportsIndex = 0, *, fingerprint: typing.SupportsInt | typing.SupportsIndex = 0, what: str = '') -> typing.Any:
        """
        Replaces the bytes of `data` (a writable array of any dtype) by those of `root`'s. Returns it.
        """
    def close(self) -> None:
        """
        Leaves the group: waits for a call in progress, and until the others have what this rank has sent, for a silent one at most the timeout or a minute. A Reducer over it keeps the connections until it is gone as well. Idempotent.
        """
    def counters(self) -> dict[str, int]:
        """
        Since construction: 'bytes_sent' and 'bytes_received', frame headers included, and 'frames_sent'.
        """
    def rebuild(self, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None, silence: typing.SupportsFloat | typing.SupportsIndex = 1.0) -> Transport:
        """
        A new group of the ranks that are left after a TransportError. Collective among them; see comm/transport.h. timeout and silence are seconds.
        
        Raises:
            TransportError: too few ranks are left, named.
            InvalidArgument: this transport or group cannot be rebuilt.
        """
    def reduce_scatter(self, values: typing.Any, *, out: typing.Any = None, fingerprint: typing.SupportsInt | typing.SupportsIndex = 0, what: str = '') -> typing.Any:
        """
        Returns this rank's shard of the sum over ranks of `values` (float32, equal length on all ranks), added in rank order.
        
        Shards are balanced to within one element, in order. `out` takes the shard.
        """
    def split(self, color: typing.SupportsInt | typing.SupportsIndex) -> Transport:
        """
        A new transport over the ranks that pass the same color (from 0), ordered by rank. Collective.
        """
    def verify(self, largest_bytes: typing.SupportsInt | typing.SupportsIndex = 400003, calls_in_flight: typing.SupportsInt | typing.SupportsIndex = 2) -> None:
        """
        Runs every verb with known bytes and compares what arrives. Collective.
        
        Raises:
            TransportError: naming verb, size, call, rank and the first wrong byte.
        """
    @property
    def closed(self) -> bool:
        """
        Whether close() was called.
        """
    @property
    def device(self) -> str:
        """
        Of the memory it carries: 'cpu', or 'cuda:0' and so on, which no array can be in: then it is for a Reducer, and of the verbs all_gather() alone is there.
        """
    @property
    def name(self) -> str:
        """
        The registry row, or the carrier's.
        """
    @property
    def old_ranks(self) -> list[int]:
        """
        After rebuild(): rank r was rank old_ranks[r] of the group before. Else empty.
        """
    @property
    def rank(self) -> int:
        """
        This rank, from 0.
        """
    @property
    def world_size(self) -> int:
        """
        Ranks in the group.
        """
class LinkCosts:
    """
    What a message costs on the line between ranks: alpha_s seconds, and beta_s_per_byte for each byte; read-only.
    """
    def __init__(self, *, alpha_s: typing.SupportsFloat | typing.SupportsIndex, beta_s_per_byte: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def __repr__(self) -> str:
        ...
    @property
    def alpha_s(self) -> float:
        """
        Seconds of a message of no bytes.
        """
    @property
    def beta_s_per_byte(self) -> float:
        """
        Seconds of each byte.
        """
class Plan:
    """
    Which parameters travel together, compressed and exchanged how: read-only, equal on all ranks. str() is a table of it.
    """
    def __repr__(self) -> str:
        ...
    def __str__(self) -> str:
        ...
    def describe(self) -> str:
        """
        A table of the buckets, their groups, capacities and parameters.
        """
    def memory(self, world_size: typing.SupportsInt | typing.SupportsIndex) -> dict[str, int]:
        """
        Bytes that each of so many ranks holds, in memory of the CPU, behind the first steps of start= and warmup=: 'gradients' (untouched where the caller hands over its own), 'residuals' and 'estimates' (both buffers), 'compressors' (velocities, and what low rank has learned), 'scratch' (for residuals that are kept narrow), 'payloads' (of all buckets) and 'messages' (of the largest).
        """
    @property
    def buckets(self) -> int:
        """
        How many messages a step has.
        """
    @property
    def fingerprint(self) -> int:
        """
        FNV-1a over describe(), but for where residuals lie.
        """
    @property
    def layout(self) -> list[dict[str, typing.Any]]:
        """
        The buckets in the order they leave, as dicts: 'exchange', 'numel' (elements) and 'groups', a list of dicts 'spec', 'offset' (first element in the bucket), 'numel' and 'parameters' (their ids, one after another from that offset).
        """
    @property
    def parameters(self) -> list[str]:
        """
        Names, in forward order; a parameter's id is its place here.
        """
class Reducer:
    """
    The pipeline of a step: gradients become ready during backward, buckets leave in one order on threads of their own, and wait() hands back the mean of all ranks.
    
    It keeps the transport, which nothing else may use meanwhile; arrays of gradient() keep it. One thread at a time: calls of others wait. A callback of a call may not call the reducer (InvalidArgument).
    """
    def __init__(self, plan: Plan, transport: Transport, *, on_nonfinite: str = 'error', unused: str = 'error', threads: typing.SupportsInt | typing.SupportsIndex = 1, trace_steps: typing.SupportsInt | typing.SupportsIndex = 64, streams: typing.SupportsInt | typing.SupportsIndex = 1, launch_order: str = 'plan', left_out: str = 'zero', stream: typing.SupportsInt | typing.SupportsIndex | None = None) -> None:
        """
        Collective: compares the plan across ranks.
        
        Args:
            on_nonfinite: 'error', or 'skip' for loss scalers.
            unused: what wait() does about parameters never ready: 'error', or 'zero' takes their gradient as zero; the same on all ranks.
            threads: of the compression loops.
            trace_steps: steps the trace keeps.
            streams: exchanges in flight at once, 1 to 16, the same on all ranks.
            launch_order: buckets leave as the 'plan' has them, or as they are ready on all ranks, on which these have 'agreed' in rounds of ceil(buckets / 8) bytes a rank, for models whose gradients appear in another order from step to step; the same on all ranks.
            left_out: what means are after a step that was left out: 'zero' or 'nan'.
            stream: over a transport of GPU memory the cudaStream_t, as a number, on which gradients are written and means read; it outlives the reducer. Then no call of a step waits for the GPU; gradients are handed over in gradient(), by give_from() or bucket_ready_at(), means taken there or by write_means(); what docs/gpu.md says is not there is refused at its call.
        
        Raises:
            InvalidArgument: naming the first line in which a rank's plan differs.
        """
    def accumulate(self, parameter: typing.SupportsInt | typing.SupportsIndex, values: typing.Any) -> None:
        """
        Adds `values` (as many elements as the parameter, in the plan's dtype) to gradient(parameter): the first call of a step replaces what is there. grad_ready() follows the last. On a GPU values lie there, and stay until the stream has passed. The mean is that of the ranks' sums: scale the loss by 1 / passes for an average.
        
        Raises:
            InvalidArgument: another size or dtype, or the parameter is already ready; nothing was added.
        """
    def bucket_ready(self, bucket: typing.SupportsInt | typing.SupportsIndex, gradient: typing.Any) -> None:
        """
        Hands over a whole bucket at once: an array of the plan's dtype laid out as plan.layout[bucket] says, where the mean is written. It is kept until wait() has returned. Not together with grad_ready() in one bucket and step.
        
        Raises:
            InvalidArgument: another size or dtype, read-only, or parameters of the bucket are ready already.
        """
    def bucket_ready_at(self, bucket: typing.SupportsInt | typing.SupportsIndex, address: typing.SupportsInt | typing.SupportsIndex, numel: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        bucket_ready() with memory by address, which the caller keeps until wait() has returned, on a GPU until what it has enqueued is over: numel elements of the plan's dtype.
        """
    def chrome_trace(self) -> str:
        """
        The same as Chrome/Perfetto JSON, a track per activity, the rank as process.
        """
    def copy_residual(self, parameter: typing.SupportsInt | typing.SupportsIndex, address: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Over a transport of GPU memory: enqueues a copy of the committed residual, float32, to that GPU's memory at `address`, on the reducer's stream, and does not wait. Between steps. Returns whether there is one: without error feedback nothing is written.
        
        Raises:
            InvalidArgument: no such parameter, or gradients are in CPU memory, where residual() is there at once.
        """
    def deliver(self, bucket: typing.SupportsInt | typing.SupportsIndex, delivery: str) -> None:
        """
        How a bucket's result is handed on from the next step on, on this rank alone: 'mean', written over its gradients, or 'payloads', for take_payloads(). 'mean' again after set_plan().
        
        Raises:
            InvalidArgument: a step has begun, or the bucket's exchange leaves no payloads of the whole.
        """
    def give_from(self, parameters: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], address: typing.SupportsInt | typing.SupportsIndex, dtype: str, factor: typing.SupportsFloat | typing.SupportsIndex = 1.0, scale: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        Copies the gradients of these parameters, one after another in memory of `dtype` from `address` on, times factor, to gradient() of each, and says grad_ready(). Over a transport of GPU memory the address is the GPU's, and the copies are enqueued on the reducer's stream; `scale` is the address there of a float32 to divide by, such as a loss scale, or 0.
        
        Raises:
            InvalidArgument: no such parameter; nothing was changed. Or one that was ready already: those before it have been handed over.
        """
    def grad_ready(self, parameter: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Says that gradient(parameter) is complete for this step. Once per parameter and step.
        
        Raises:
            InvalidArgument: an unknown parameter, or one already ready.
        """
    def gradient(self, parameter: typing.SupportsInt | typing.SupportsIndex) -> typing.Any:
        """
        Where a parameter's gradient belongs, in the parameter's shape and the plan's dtype, without a copy: write it here; after wait() the mean of all ranks is here. The array is good until set_plan() or replan(), which are refused while it is in use. On a GPU a DeviceArray, written and read on the reducer's stream.
        """
    def gradient_timings(self) -> list[dict[str, typing.Any]]:
        """
        When gradients became ready on this rank since the last plan, load() or rebuild(): dicts of 'parameter', 'ready_s' (mean seconds since the first one of a step) and 'bytes'. Without those that were never reached.
        """
    def last_step(self) -> dict[str, typing.Any]:
        """
        When the last step did what, in microseconds of the reducer's own clock: 'step', 'wait_begin_us', 'wait_end_us' and 'buckets', for each a dict of 'begin_us' and 'compressed_us' (its compression), 'exchange_us' and 'end_us' (its exchange), 'codec_us' (of both, coding) and 'stream'. Empty before the first wait().
        """
    def load(self, open: collections.abc.Callable[[int], typing.Any]) -> None:
        """
        Collective: continues where save() was called, bit for bit; with another world size rank j takes over the residuals of the old ranks i with i % world_size == j, times new / old world size.
        
        Args:
            open: open(rank) returns an object with read(most_bytes) -> bytes of what that rank saved, or None when there was no such rank. It is called in this thread, for the ranks needed here and once each, and may not call the reducer.
        
        Raises:
            InvalidArgument: on every rank, when one finds its checkpoint missing, damaged, of other parameters or of another step than rank 0's; nothing has changed then. What open() or read() raise is raised on their rank.
        """
    def mark_unused(self, parameter: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        In place of grad_ready() where this rank's backward did not reach the parameter: its gradient is zero, or what was accumulated in the step.
        """
    def no_sync(self) -> NoSync:
        """
        For `with`: inside, grad_ready() and bucket_ready() only note that backward has been there, nothing leaves, and wait() is refused. For backward passes that add to gradient() themselves, of which the last comes after the scope.
        
        Raises:
            InvalidArgument: on entry, when gradients of the step are ready already.
        """
    def rebuild(self, survivors: Transport) -> Rebuilt:
        """
        After a TransportError: goes on with `survivors`, the group Transport.rebuild() made of the ranks that are left, which all call this. The step in progress is dropped, arrays of gradient() stay valid, residuals are scaled by new / old world size. Ranks that are behind must be given parameters and optimizer state by `source`.
        
        Raises:
            TransportError: another rank failed meanwhile; the reducer is as before, and rebuild may be called with the next group.
            InvalidArgument: no rank that is left has the parameters of the newest step: load a checkpoint.
        """
    def replan(self, spec: str, *, exchange: str = 'auto', exempt_1d: str = 'auto', seed: typing.SupportsInt | typing.SupportsIndex | None = None, ranks_per_node: typing.SupportsInt | typing.SupportsIndex | None = None, link: LinkCosts | None = None, most_bytes: typing.SupportsInt | typing.SupportsIndex = 67108864, order: str = 'ready', rules: collections.abc.Sequence[dict[str, typing.Any]] = []) -> None:
        """
        Makes a plan from what was measured since the last one, and sets it: rank 0 merges gradients to buckets by when they appeared and what exchanges cost, all ranks follow. Collective, between steps.
        
        Args:
            spec, exchange, exempt_1d, rules: as for make_plan(); with exchange 'auto' and a link, each bucket gets the cheapest exchange that keeps the rank-order sum.
            seed, ranks_per_node: by default those of the plan, whose residual_memory stays.
            link: from probe_link(); without one start-ups and bytes cost nothing.
            most_bytes: of dense gradient in a bucket.
            order: of buckets that wait: 'ready' as gradients appear, or 'needed' as the next forward pass needs them.
        
        Raises:
            InvalidArgument: before the first step of a plan, and as set_plan().
        """
    def residual(self, parameter: typing.SupportsInt | typing.SupportsIndex) -> numpy.ndarray | None:
        """
        A copy of the committed residual, float32, or None without error feedback. On a GPU it waits for the steps so far.
        """
    def save(self, file: typing.Any) -> None:
        """
        Writes what this rank keeps between steps to an object with write(bytes) -> int, in the format of comm/CHECKPOINT_FORMAT.md. Parameters and optimizer state are the caller's. Between steps, or after a TransportError; what write() raises is raised.
        
        Raises:
            InvalidArgument: a step has begun, or write() does not say how many bytes it took.
        """
    def set_plan(self, plan: Plan) -> None:
        """
        Changes the plan between steps: a new epoch, with residuals carried over by parameter (into the next step's gradient where the new plan keeps none). Collective, as the constructor is.
        
        Raises:
            InvalidArgument: parameters or dtype differ, a step has begun, plans differ between ranks, or, on the rank where it is so, arrays of gradient() are in use, whose memory would end; the old plan stays.
            TransportError: the group is finished.
        """
    def synchronize(self) -> None:
        """
        On a GPU: blocks until the steps so far are over, behind the same step on all ranks. On the CPU wait() has told all: does nothing.
        
        Raises:
            NonFiniteGradient: on_nonfinite is 'error', and a step had such a gradient; none since has been committed, the next will be.
            InvalidArgument: a step has begun.
            TransportError: the group is finished.
        """
    def take_payloads(self, bucket: typing.SupportsInt | typing.SupportsIndex) -> list[GroupPayloads]:
        """
        The result of a bucket that delivers payloads, after a wait() that committed: a list of GroupPayloads, copies of the same bytes on every rank. gradient() of its parameters then holds no mean.
        
        Raises:
            InvalidArgument: there is no such result.
        """
    def trace(self) -> list[dict[str, typing.Any]]:
        """
        The last steps, oldest first, as dicts: 'step', 'committed', 'exposed_us', 'codec_us', 'transfer_us' (microseconds), 'bytes_sent', 'bytes_received', 'buckets', and of an agreed launch order 'rounds' and, of the bytes sent, 'round_bytes_sent'.
        """
    def unused_everywhere(self, parameter: typing.SupportsInt | typing.SupportsIndex) -> bool:
        """
        Whether no rank reached the parameter in the last step that wait() concluded, so that an optimizer may leave it alone. On a GPU it waits.
        
        Raises:
            InvalidArgument: the reducer was not made with unused='zero', or there is no such parameter.
        """
    def wait(self) -> bool | None:
        """
        Blocks until every bucket of the step is reduced, then commits. Returns whether it did: False for a step skipped because of non-finite gradients. On a GPU it enqueues that and returns None: synchronize() tells.
        
        Raises:
            NonFiniteGradient: naming rank and bucket; nothing was committed on any rank.
            InvalidArgument: naming parameters that were never ready; the step can go on.
            TransportError: naming rank and bucket; the group is finished.
        """
    def write_means(self, parameters: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], address: typing.SupportsInt | typing.SupportsIndex, dtype: str, factor: typing.SupportsFloat | typing.SupportsIndex = 1.0, scale: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        The other way, after wait(): what is in gradient() of these parameters, times factor, and on a GPU times the float32 at `scale`, to memory of `dtype` from `address` on.
        """
    @property
    def committed_steps(self) -> int:
        """
        Steps that wait() committed.
        """
    @property
    def device(self) -> str:
        """
        Where gradients and means lie: 'cpu', or 'cuda:' and the number of a GPU.
        """
    @property
    def left_out(self) -> str:
        """
        As it was made with.
        """
    @property
    def on_nonfinite(self) -> str:
        """
        As it was made with.
        """
    @property
    def plan(self) -> Plan:
        """
        A copy of the plan.
        """
    @property
    def skipped_steps(self) -> int:
        """
        Steps left out because of non-finite gradients.
        """
    @property
    def stream(self) -> int | None:
        """
        The stream it was made with; None on the CPU.
        """
class NoSync:
    """
    A scope made by Reducer.no_sync(), for `with`.
    """
    def __enter__(self) -> None:
        ...
    def __exit__(self, type: typing.Any, error: typing.Any, traceback: typing.Any) -> None:
        ...
class GroupPayloads:
    """
    The mean of one group of a bucket as payloads, read-only: Compressor(spec, numel, shapes=shapes, seed=seed).decompress(payloads, scale) gives it. Made by Reducer.take_payloads(), or of payloads that came another way.
    """
    def __init__(self, spec: str, parameters: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], shapes: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]], payloads: collections.abc.Sequence[typing.Any], scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, seed: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        Args:
            spec: of the compressor that made the payloads.
            parameters: places among an optimizer's, of those that lie one after another in the group.
            shapes: theirs, as Compressor(shapes=...) takes them.
            payloads: uint8 arrays in CPU memory, or on the GPU where the parameters are: of every rank, or slices that tile the group, to be added in this order. Kept as they are, and read by steps.
            scale: the mean is this times the payloads' sum.
            seed: of what the compressor draws.
        
        Raises:
            InvalidArgument: a bad spec or shape, no payloads.
        """
    @property
    def numel(self) -> int:
        """
        Elements of the group.
        """
    @property
    def offset(self) -> int:
        """
        The group's first element in its bucket.
        """
    @property
    def parameters(self) -> list[int]:
        """
        Ids of its parameters, one after another from its first element on.
        """
    @property
    def payloads(self) -> list[typing.Any]:
        """
        uint8 arrays, to be read only: of every rank, or slices that tile the group, to be added in this order.
        """
    @property
    def scale(self) -> float:
        """
        The mean is this times the payloads' sum.
        """
    @property
    def seed(self) -> int:
        """
        The plan's, of what compressors draw.
        """
    @property
    def shapes(self) -> list[list[int]]:
        """
        Of the parameters, as Compressor(shapes=...) takes them: rows and columns of a matrix, else the number of elements.
        """
    @property
    def spec(self) -> str:
        """
        Of the group's compressor.
        """
class Rebuilt:
    """
    Where a rebuilt group goes on; read-only.
    """
    def __repr__(self) -> str:
        ...
    @property
    def behind(self) -> bool:
        """
        Whether this rank must be given them before the next step.
        """
    @property
    def committed_steps(self) -> int:
        """
        The same on all ranks.
        """
    @property
    def source(self) -> int | None:
        """
        The rank of the new group that gives parameters and optimizer state to those behind; None when no rank is.
        """
class ShardedReducer:
    """
    Gradients of which each rank keeps its shard of the mean: a rank compresses the slice of each other one and keeps what it leaves out, owners add up. Works on a thread of its own while backward goes on; commit() ends a step. One thread at a time; nothing else may use the transport during a step.
    """
    def __init__(self, groups: collections.abc.Sequence[tuple[str, str | None, collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]], typing.SupportsInt | typing.SupportsIndex]], transport: Transport, spec: str, *, on_nonfinite: str = 'error', threads: typing.SupportsInt | typing.SupportsIndex = 1) -> None:
        """
        Args:
            groups: of each, the same on all ranks, its name, the dtype of its gradients (None: reduced() instead of reduce()), the shapes of its parameters' parts in a slice, one behind another, and the seed that its first slice draws with.
            spec: of all slices; not powersgd and not ef21.
        """
    def abandon(self) -> None:
        """
        Drops the step in progress, on all ranks.
        """
    def commit(self) -> bool:
        """
        wait(), and the end of the step: collective. Returns whether the residuals of its groups are those of the step now: False with on_nonfinite='skip'.
        
        Raises:
            NonFiniteGradient: naming the group; nothing was committed on any rank.
        """
    def load(self, group: typing.SupportsInt | typing.SupportsIndex, state: collections.abc.Sequence[dict[str, typing.Any]]) -> None:
        """
        Takes over 'step', 'learned', 'residual' and 'velocity' of what state() returned.
        
        Raises:
            InvalidArgument: they are not of this group; nothing has changed.
        """
    def reduce(self, group: typing.SupportsInt | typing.SupportsIndex, gradient: typing.Any, shard: typing.Any, scale: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Enqueues shard = scale * (sum of all ranks' slices for this one), once per group and step, in the same order on all ranks. gradient: the slices, by rank. Both are kept while they are used. The shard becomes NaN where a gradient or the sum is not finite.
        """
    def reduced(self, group: typing.SupportsInt | typing.SupportsIndex, finite: bool, overflows: bool) -> None:
        """
        The same of a group that is not compressed, behind the call that reduced it: whether this rank's gradient was finite, and whether its shard overflowed all the same.
        """
    def residuals(self, group: typing.SupportsInt | typing.SupportsIndex) -> list[numpy.ndarray | None]:
        """
        Copies of the committed residuals of a group's slices, by rank; None without feedback.
        """
    def state(self, group: typing.SupportsInt | typing.SupportsIndex) -> list[dict[str, typing.Any]]:
        """
        What a checkpoint needs of a group's slices, by rank: their identity ('spec', 'numel', 'dtype', 'seed', 'rank', 'shapes'), 'step', 'learned', and copies of 'residual' (None without feedback) and 'velocity'.
        """
    def step(self, group: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Committed steps of a group.
        """
    def wait(self) -> None:
        """
        Blocks until the shards so far are written.
        
        Raises:
            TransportError: the group is finished.
        """
    @property
    def pending(self) -> int:
        """
        Groups of the step in progress.
        """
class Optimizer:
    """
    Steps on arrays in place; the package's SGD, AdamW, LARS, LARC and LAMB wrap it.
    
    groups holds (weight_decay, learning_rate_scale, adapt, momentum, beta1, beta2, epsilon, full_state), None where the spec's holds; group_of names one of them for each parameter.
    """
    @staticmethod
    def at(spec: str, values: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, str]], numels: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], names: collections.abc.Sequence[str], group_of: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], groups: collections.abc.Sequence[tuple[typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex, bool, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, bool]], threads: typing.SupportsInt | typing.SupportsIndex = 1, gpu: typing.SupportsInt | typing.SupportsIndex = -1, stream: typing.Any = None, replicas: collections.abc.Sequence[bool] = []) -> Optimizer:
        """
        Of memory by (address, dtype), which the caller keeps alive, of the CPU or of a GPU by its number; gradients come by bind(). replicas says of each parameter whether another rank has the same slice and counts it, once set_slices() was called.
        """
    def __init__(self, spec: str, parameters: list[typing.Any], gradients: list[typing.Any], names: collections.abc.Sequence[str], group_of: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], groups: collections.abc.Sequence[tuple[typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex, bool, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, bool]], threads: typing.SupportsInt | typing.SupportsIndex = 1, stream: typing.Any = None) -> None:
        ...
    def bind(self, values: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], gradients: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, str]], stream: typing.Any = None) -> None:
        """
        Tells where values are, by address, and gradients, by (address, dtype): an address of 0 leaves the parameter out of steps.
        
        Raises:
            InvalidArgument: memory is shared; all stays as it was.
        """
    def check(self, stream: typing.Any = None) -> None:
        """
        On a GPU waits, and raises what kept steps from being made; then they are made again.
        """
    def follow(self, stream: typing.Any = None) -> None:
        """
        On a GPU the next call's work goes behind what that stream has by now, such as copies of parameters.
        """
    def load_state(self, scalars: dict[str, dict[str, int]], tensors: dict[str, dict[str, typing.Any]]) -> None:
        """
        Takes over what state() returned, floats as codes and codes as floats where this optimizer keeps them so; checks all of it before anything is changed.
        """
    def prepare(self, gradient_scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, stream: typing.Any = None) -> None:
        """
        Writes what is to be exchanged to the gradients, unless it is these; gradient_scale is what these are multiplied by as they are read.
        
        Raises:
            InvalidArgument: gradient_scale is not in (0, 1].
        """
    def set_counts(self, scalars: dict[str, dict[str, int]]) -> None:
        """
        Takes over the counts of steps of state() alone.
        """
    def set_groups(self, groups: collections.abc.Sequence[tuple[typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex, bool, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, bool]], stream: typing.Any = None) -> None:
        """
        Other settings for the groups, as many as before.
        """
    def set_slices(self, transport: Transport) -> None:
        """
        Every rank of the transport holds slices of the same parameters, in the same order: norms, and whether a gradient is finite, are of all of them from now on. Its calls are collective then.
        
        Raises:
            InvalidArgument: the transport is closed.
        """
    def skipped_steps(self, stream: typing.Any = None) -> int:
        """
        How many steps were left out so far; waits.
        """
    def state(self) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, typing.Any]]]:
        """
        Copies of all state in CPU memory: ({parameter: {name: int}}, {parameter: {name: array}}); waits.
        """
    def state_views(self) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, typing.Any]]]:
        """
        The same without copies: arrays over the state itself, counts as arrays of int64. On a GPU DeviceArrays, and counts are numbers as they are now.
        """
    def step(self, learning_rate: typing.SupportsFloat | typing.SupportsIndex, gradient_scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, known_finite: bool = False, skip: bool = False, stream: typing.Any = None, loss_scale: typing.Any = None, found_inf: typing.Any = None) -> None:
        """
        Updates all parameters from their gradients; the GIL is released. On a GPU it is enqueued on the stream, and loss_scale and found_inf, one float32 each (an array, or its address), are read there.
        
        Raises:
            NonFiniteGradient: naming the parameter; nothing was changed. On a GPU check() raises it.
            InvalidArgument: learning_rate is negative or not finite, or gradient_scale is not in (0, 1].
        """
    def step_from(self, payloads: collections.abc.Sequence[GroupPayloads], learning_rate: typing.SupportsFloat | typing.SupportsIndex, gradient_scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, known_finite: bool = False, skip: bool = False, stream: typing.Any = None, loss_scale: typing.Any = None, found_inf: typing.Any = None) -> None:
        """
        step(), where the gradients of the groups' parameters are read from their payloads. Errors as of step().
        
        Raises:
            InvalidArgument: a payload that does not decode, or groups of other parameters; nothing was changed.
        """
    def step_on(self, gradients: list[typing.Any], learning_rate: typing.SupportsFloat | typing.SupportsIndex, gradient_scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, known_finite: bool = False, skip: bool = False, stream: typing.Any = None, loss_scale: typing.Any = None, found_inf: typing.Any = None) -> None:
        """
        step() with these gradients, one array of each parameter, which may be read-only. Errors as of step().
        
        Raises:
            InvalidArgument: arrays that do not fit; nothing was changed.
        """
    def values_changed(self, stream: typing.Any = None) -> None:
        """
        Takes values that others wrote for the masters of parameters of 16 bits.
        """
    @property
    def device(self) -> str:
        """
        Where parameters and state are: 'cpu', 'cuda:0'.
        """
    @property
    def exchanges(self) -> str:
        """
        What the next step exchanges: 'gradients', 'momentum' or 'moves', of local steps.
        """
    @property
    def spec(self) -> str:
        """
        The canonical spec text.
        """
    @property
    def state_bytes(self) -> int:
        """
        Memory of all state and masters.
        """
class PolynomialSchedule:
    """
    A warm-up to base, then end + (base - end) * (1 - progress) ** power to total_steps.
    """
    def __init__(self, base: typing.SupportsFloat | typing.SupportsIndex, total_steps: typing.SupportsInt | typing.SupportsIndex, warmup_steps: typing.SupportsInt | typing.SupportsIndex = 0, power: typing.SupportsFloat | typing.SupportsIndex = 1.0, end: typing.SupportsFloat | typing.SupportsIndex = 0.0) -> None:
        ...
    def __repr__(self) -> str:
        ...
    def at(self, step: typing.SupportsInt | typing.SupportsIndex) -> float:
        """
        The learning rate of step 0, 1, ..
        """
    @property
    def base(self) -> float:
        """
        What it warms up to.
        """
    @property
    def end(self) -> float:
        """
        Where it ends.
        """
    @property
    def power(self) -> float:
        """
        Of the decay.
        """
    @property
    def total_steps(self) -> int:
        """
        Steps until end is reached.
        """
    @property
    def warmup_steps(self) -> int:
        """
        Steps of the warm-up.
        """
class CosineSchedule:
    """
    A warm-up to base, then end + (base - end) * (1 + cos(pi * progress)) / 2 to total_steps (arXiv 1608.03983, without restarts).
    """
    def __init__(self, base: typing.SupportsFloat | typing.SupportsIndex, total_steps: typing.SupportsInt | typing.SupportsIndex, warmup_steps: typing.SupportsInt | typing.SupportsIndex = 0, end: typing.SupportsFloat | typing.SupportsIndex = 0.0) -> None:
        ...
    def __repr__(self) -> str:
        ...
    def at(self, step: typing.SupportsInt | typing.SupportsIndex) -> float:
        """
        The learning rate of step 0, 1, ..
        """
    @property
    def base(self) -> float:
        """
        What it warms up to.
        """
    @property
    def end(self) -> float:
        """
        Where it ends.
        """
    @property
    def total_steps(self) -> int:
        """
        Steps until end is reached.
        """
    @property
    def warmup_steps(self) -> int:
        """
        Steps of the warm-up.
        """
class NoiseScale:
    """
    About how large a batch still speeds training up, from the gradients of data-parallel ranks and their mean (McCandlish et al., arXiv 1812.06162, appendix A.1).
    
    rank_batch: examples of one rank's gradient; decay: what a step's estimate is worth in the next one's averages.
    """
    def __init__(self, rank_batch: typing.SupportsInt | typing.SupportsIndex, ranks: typing.SupportsInt | typing.SupportsIndex, decay: typing.SupportsFloat | typing.SupportsIndex = 0.99) -> None:
        ...
    def __repr__(self) -> str:
        ...
    def add(self, mean_of_squares: typing.SupportsFloat | typing.SupportsIndex, square_of_mean: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        One step: the mean over ranks of their gradients' squared norms, and the squared norm of the mean gradient.
        
        Raises:
            InvalidArgument: one is not finite and >= 0; the step is forgotten.
        """
    def rate_for(self, rate: typing.SupportsFloat | typing.SupportsIndex, at_batch: typing.SupportsInt | typing.SupportsIndex, batch: typing.SupportsInt | typing.SupportsIndex) -> float | None:
        """
        The learning rate at batch where rate is the best one at at_batch (equation 2.10), or None.
        """
    def steps_for(self, steps: typing.SupportsFloat | typing.SupportsIndex, at_batch: typing.SupportsInt | typing.SupportsIndex, batch: typing.SupportsInt | typing.SupportsIndex) -> float | None:
        """
        How many steps batch takes to get as far as steps of at_batch (equation 2.12), or None.
        """
    @property
    def gradient_square(self) -> float | None:
        """
        The squared norm of the true gradient; None before the first step.
        """
    @property
    def noise(self) -> float | None:
        """
        The sum of its elements' variances over single examples, or None.
        """
    @property
    def steps(self) -> int:
        """
        Steps added.
        """
    @property
    def value(self) -> float | None:
        """
        noise / gradient_square, in examples; None after too few steps.
        """
class LargeBatch:
    """
    What large_batch() recommends.
    """
    def __repr__(self) -> str:
        ...
    @property
    def learning_rate(self) -> float:
        """
        What the schedule warms up to.
        """
    @property
    def optimizer(self) -> str:
        """
        The spec, for make_optimizer().
        """
    @property
    def schedule(self) -> PolynomialSchedule:
        """
        Of the learning rate; its total_steps are the run's.
        """
    @property
    def why(self) -> str:
        """
        The rules that were used, with their sources.
        """
class PlannedLink:
    """
    What messages cost on a line: alpha_s + bytes / effective rate, where s streams have min(efficiency * bytes_per_s, s * stream_bytes_per_s).
    """
    def __init__(self, text: str) -> None:
        """
        A preset ('10gbe', 'nvlink', ..) or a rate ('10gbit', '1.2GB/s'). InvalidArgument lists the presets.
        """
    def __repr__(self) -> str:
        ...
    def effective_bytes_per_s(self, streams: typing.SupportsInt | typing.SupportsIndex) -> float:
        """
        What so many streams carry together.
        """
    def message_seconds(self, bytes: typing.SupportsFloat | typing.SupportsIndex, exchange: str = '', streams: typing.SupportsInt | typing.SupportsIndex = 1) -> float:
        """
        Seconds of one message.
        """
    @property
    def alpha_s(self) -> float:
        """
        Start-up of a message, seconds.
        """
    @alpha_s.setter
    def alpha_s(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def bytes_per_s(self) -> float:
        """
        The nominal rate, one way.
        """
    @bytes_per_s.setter
    def bytes_per_s(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def efficiency(self) -> float:
        """
        What of it can be had, in (0, 1].
        """
    @efficiency.setter
    def efficiency(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def name(self) -> str:
        """
        The preset or the rate.
        """
    @property
    def source(self) -> str:
        """
        Where the figures are from.
        """
    @property
    def stream_bytes_per_s(self) -> float:
        """
        What one stream can have of it; 0: all.
        """
    @stream_bytes_per_s.setter
    def stream_bytes_per_s(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
class BucketPlan:
    """
    Which gradients travel together and how each bucket is sent.
    """
    def explain(self) -> str:
        """
        What was chosen, and which candidates lost by how much: a line each.
        """
    @property
    def backward_end_s(self) -> float:
        """
        End of backward alone: end_s less this is exposed.
        """
    @property
    def buckets(self) -> list[dict[str, typing.Any]]:
        """
        A dict per bucket, in the order they leave: gradients, numel, spec, exchange, streams, ready_s, start_s, end_s.
        """
    @property
    def candidates(self) -> list[dict[str, typing.Any]]:
        """
        A dict per plan that was considered, earliest first: name, end_s, behind_s, loss, buckets, and memory, as Plan.memory() of the buckets.
        """
    @property
    def chosen(self) -> int:
        """
        Place of the plan among the candidates.
        """
    @property
    def encode_s(self) -> float:
        """
        What compressing takes of the time of backward.
        """
    @property
    def end_s(self) -> float:
        """
        Predicted end of communication, seconds since backward began.
        """
    @property
    def exact(self) -> bool:
        """
        Whether no contiguous buckets with these options end earlier.
        """
class Hardware:
    """
    Capacities per second of a GPU and its machine; the defaults are those of arXiv 1910.05930.
    """
    def __init__(self) -> None:
        """
        The defaults; set what differs.
        """
    @property
    def efficiency(self) -> float:
        """
        What of each can be had, in (0, 1].
        """
    @efficiency.setter
    def efficiency(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def ethernet_bytes_per_s(self) -> float:
        """
        Between machines.
        """
    @ethernet_bytes_per_s.setter
    def ethernet_bytes_per_s(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def flops_per_s(self) -> float:
        """
        Peak FLOP/s.
        """
    @flops_per_s.setter
    def flops_per_s(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def memory_bytes_per_s(self) -> float:
        """
        Of the GPU's memory.
        """
    @memory_bytes_per_s.setter
    def memory_bytes_per_s(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def nvlink_bytes_per_s(self) -> float:
        """
        Between GPUs.
        """
    @nvlink_bytes_per_s.setter
    def nvlink_bytes_per_s(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def pcie_bytes_per_s(self) -> float:
        """
        Between host and GPU.
        """
    @pcie_bytes_per_s.setter
    def pcie_bytes_per_s(self, arg0: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
class StepDemand:
    """
    What one GPU does and moves in a training step.
    """
    def __init__(self, name: str = 'step', *, flops: typing.SupportsFloat | typing.SupportsIndex, memory_bytes: typing.SupportsFloat | typing.SupportsIndex, input_bytes: typing.SupportsFloat | typing.SupportsIndex = 0.0, weight_bytes: typing.SupportsFloat | typing.SupportsIndex, embedding_bytes: typing.SupportsFloat | typing.SupportsIndex = 0.0, touched_bytes: typing.SupportsFloat | typing.SupportsIndex = 0.0, gpus_per_server: typing.SupportsInt | typing.SupportsIndex = 1) -> None:
        """
        embedding_bytes of weight_bytes belong to embeddings, of which a step touches touched_bytes: read where embeddings are cut up.
        """
    @property
    def name(self) -> str:
        """
        For messages.
        """
class Instance:
    """
    A row of a price table.
    """
    def __init__(self, name: str, gpu: str, gpus: typing.SupportsInt | typing.SupportsIndex, usd_per_hour: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    @property
    def gpu(self) -> str:
        """
        The kind of its GPUs.
        """
    @property
    def gpus(self) -> int:
        """
        How many.
        """
    @property
    def name(self) -> str:
        """
        The instance.
        """
    @property
    def usd_per_hour(self) -> float:
        """
        Its price.
        """
class Configuration:
    """
    Something that could be rented.
    """
    @property
    def cost_usd(self) -> float:
        """
        Price of an epoch.
        """
    @property
    def count(self) -> int:
        """
        How many of it.
        """
    @property
    def epoch_s(self) -> float:
        """
        Seconds of an epoch.
        """
    @property
    def instance(self) -> Instance:
        """
        What.
        """
    @property
    def on_front(self) -> bool:
        """
        Whether nothing is both faster and cheaper.
        """
    @property
    def plan(self) -> str:
        """
        With which plan.
        """
    @property
    def within_budget(self) -> bool:
        """
        Fast enough?
        """
class Recommendation:
    """
    The cheapest configuration within a budget, if there is one.
    """
    def explain(self) -> str:
        """
        What is recommended, or that nothing meets the budget; and the front: a line each.
        """
    @property
    def budget_s(self) -> float:
        """
        Of an epoch.
        """
    @property
    def chosen(self) -> Configuration | None:
        """
        None: no configuration meets the budget.
        """
    @property
    def configurations(self) -> list[Configuration]:
        """
        Cheapest first.
        """
class Pilot:
    """
    Decides what gradients travel as: measures steps without compression, predicts, times the best few on steps of the job, takes the least lossy of the fastest and keeps watching. It measures nothing itself; fed the same numbers, all ranks decide alike.
    
    Run `plan` for `window_steps` steps; hand what they have shown to end_window(); where `wants_costs`, call set_costs(). After either, where it returned True, run the new plan.
    """
    def __init__(self, parameters: collections.abc.Iterable[tuple[str, collections.abc.Iterable[int]]], world_size: typing.SupportsInt | typing.SupportsIndex, *, specs: collections.abc.Sequence[str] = ['int8', 'int4', 'topk:1%,int4'], streams: typing.SupportsInt | typing.SupportsIndex = 1, dtype: str = 'float32', exempt_1d: str = 'auto', seed: typing.SupportsInt | typing.SupportsIndex = 0, ranks_per_node: typing.SupportsInt | typing.SupportsIndex = 1, rules: collections.abc.Sequence[dict[str, typing.Any]] = [], bucket_bytes: typing.SupportsInt | typing.SupportsIndex = 1048576, window_steps: typing.SupportsInt | typing.SupportsIndex = 20, tuning_turns: typing.SupportsInt | typing.SupportsIndex = 6, device: str = 'cpu', age: typing.SupportsInt | typing.SupportsIndex = 0, updates: str = 'scaled') -> None:
        """
        Args:
            parameters, dtype, exempt_1d, seed, ranks_per_node, rules, bucket_bytes: as of make_plan(); the last one's are those of the first, dense window.
            specs: to choose from, besides 'none' and 'bf16'.
            streams: of the Reducer.
            window_steps: that are judged together once the choice is made.
            tuning_turns: windows that try sizes of buckets, at most; where there are any, several buckets must be predicted to gain a tenth of the step. 0: none.
            device: of the gradients, 'cpu' or 'cuda'.
            age: steps that the job has run before: in a young one what sends a part of the elements must be the faster for it.
            updates: of the optimizer, 'linear' of SGD that clips nothing, 'scaled' of all that divide by the size of gradients, where what comes late counts for more.
        
        Raises:
            InvalidArgument: an option out of its range; a spec that is none.
        """
    def begin(self, link: LinkCosts, codecs: collections.abc.Mapping[str, tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]]) -> bool:
        """
        Optional, before the first window: where a dense exchange is predicted to take three times as long as the fastest, the first window runs with what is fast. Returns whether the plan has changed. The same numbers on all ranks, as of set_costs().
        
        Raises:
            InvalidArgument: a spec without a price, or a window has ended; nothing has changed.
        """
    def begins_slowly(self, link: LinkCosts) -> bool:
        """
        Whether dense exchanges take 50 ms and more on such a link, of probe_link(): then compressors are worth pricing for begin().
        """
    def end_window(self, step_s: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], *, exchange_s: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [], exposed_s: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = [], loss: typing.SupportsFloat | typing.SupportsIndex | None = None, skipped: typing.SupportsInt | typing.SupportsIndex = 0, norms: collections.abc.Sequence[tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]] = []) -> bool:
        """
        Returns whether the plan has changed. The same numbers on all ranks.
        
        Args:
            step_s: seconds of each step since the last window, of the slowest rank.
            exchange_s: of each, seconds inside the transport; empty: not known.
            exposed_s: of each, seconds that its end waited for exchanges; empty: not known.
            loss: mean over steps and ranks; None: not known.
            skipped: steps left out for gradients that were not finite.
            norms: by parameter, squared and summed over ranks, (gradient plus residual before, what was sent of it, residual after, own gradients, mean gradient); empty: not measured.
        
        Raises:
            InvalidArgument: another number of steps than window_steps, times that are none, or costs are wanted; nothing has changed.
        """
    def log(self) -> list[dict[str, typing.Any]]:
        """
        Decisions, oldest first, the last 1000: dicts of 'step', 'what', 'from', 'to', 'reason' and 'numbers'.
        """
    def set_costs(self, ready_s: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], link: LinkCosts, codecs: collections.abc.Mapping[str, tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]]) -> bool:
        """
        Returns whether the plan has changed. The same numbers on all ranks.
        
        Args:
            ready_s: when backward has made each parameter's gradient, by id, in seconds.
            link: of probe_link().
            codecs: of planner.measure_codecs(), for each of `specs`.
        
        Raises:
            InvalidArgument: a spec without a price, or costs are not wanted; nothing has changed.
        """
    @property
    def name(self) -> str:
        """
        Of that plan, for people.
        """
    @property
    def phase(self) -> str:
        """
        'measure', 'time', 'tune' or 'cruise'.
        """
    @property
    def plan(self) -> Plan:
        """
        What to run now, for Reducer.set_plan().
        """
    @property
    def probing_steps(self) -> int:
        """
        Of them, before the choice was made or to make it anew.
        """
    @property
    def spec(self) -> str:
        """
        Of that plan: the lossiest of its buckets; 'none': it does not compress.
        """
    @property
    def specs(self) -> list[str]:
        """
        Canonical texts of the compressors that set_costs() must price.
        """
    @property
    def steps(self) -> int:
        """
        Steps of all windows.
        """
    @property
    def updates(self) -> str:
        """
        What the optimizer makes of a gradient that comes late, 'linear' or 'scaled'; may be set at any time, on all ranks behind the same step.
        """
    @updates.setter
    def updates(self, arg1: str) -> None:
        ...
    @property
    def wants_costs(self) -> bool:
        """
        Whether set_costs() shall be called before the next step.
        """
    @property
    def wants_norms(self) -> bool:
        """
        Whether a step of this window shall be measured for norms.
        """
    @property
    def window_steps(self) -> int:
        """
        How many steps end_window() wants.
        """
def address_offer(interface: str, towards: str) -> str:
    """
    A line about where this rank is, for chosen_address().
    
    Args:
        interface: as of make_transport().
        towards: a host that all ranks have reached; empty when there is none.
    
    Raises:
        InvalidArgument: no interface here is as wished.
    """
def break_down(step: StepDemand, arrangement: str, hardware: Hardware | None = None) -> dict[str, typing.Any]:
    """
    Seconds of a step by resource, nothing overlapped, as a dict. arrangement: '1w1g', '1wng', 'ps', 'allreduce-local', 'allreduce-cluster', 'pearl-local', 'pearl-cluster'.
    """
def build_info() -> dict[str, typing.Any]:
    """
    What this build holds: a dict with 'version', 'commit' (with '-dirty' where files differed; '' when built outside a checkout), 'compiler', 'features' (name -> bool), 'vector_level' (what the CPU's loops use here: 'avx512', 'avx2' or 'plain'), 'cuda_devices' (usable GPUs) and 'cuda_unavailable_reason' (why that is 0, else '').
    """
def canonical_optimizer(text: str) -> str:
    """
    The canonical text of an optimizer spec such as 'lamb:weight_decay=0.01'.
    
    Raises:
        InvalidArgument: an unknown name or key lists the known ones.
    """
def check_optimizer_groups(groups: collections.abc.Sequence[tuple[typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex, bool, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, typing.SupportsFloat | typing.SupportsIndex | None, bool]]) -> None:
    """
    Rows of groups, as Optimizer takes them.
    
    Raises:
        InvalidArgument: naming the setting that is out of range.
    """
def chosen_address(offers: collections.abc.Sequence[str], rank: typing.SupportsInt | typing.SupportsIndex, interface: str) -> str:
    """
    The numeric address of this machine that all ranks reach.
    
    Args:
        offers: the lines of all ranks, in their order.
    
    Raises:
        TransportError: no way leads to the others.
    """
def codes_of_floats(what: str, name: str, values: typing.Any) -> tuple[typing.Any, typing.Any]:
    """
    (codes, scales) nearest to an optimizer's state in float32.
    
    Raises:
        InvalidArgument: NaN, infinity, a mean square below 0.
    """
def compressors() -> list[dict[str, typing.Any]]:
    """
    The rows of the compressor registry, as dicts.
    """
def default_instances() -> list[Instance]:
    """
    AWS p2 and p3, on-demand prices of 2022: replace them by yours.
    """
def device_copy(source: typing.Any, stream: typing.Any = None, what: str = 'source') -> DeviceArray:
    """
    A copy of an array of float32, float16 or bfloat16 on the same GPU, enqueued on the stream.
    """
def epoch_seconds(samples: typing.SupportsFloat | typing.SupportsIndex, batch_per_gpu: typing.SupportsFloat | typing.SupportsIndex, gpus: typing.SupportsInt | typing.SupportsIndex, step_s: typing.SupportsFloat | typing.SupportsIndex) -> float:
    """
    Whole steps of an epoch, times step_s.
    """
def exchange_seconds(exchange: str, numel: typing.SupportsInt | typing.SupportsIndex, payload_bytes: typing.SupportsInt | typing.SupportsIndex, world_size: typing.SupportsInt | typing.SupportsIndex, link: PlannedLink, density: typing.SupportsFloat | typing.SupportsIndex = 1.0, streams: typing.SupportsInt | typing.SupportsIndex = 1) -> float:
    """
    Predicted seconds of an exchange ('ring', 'gather', .., 'tree', 'parameter_server') of a payload among world_size ranks, by the formulas of `gradwire info`'s table.
    """
def exchanges() -> list[dict[str, typing.Any]]:
    """
    The rows of the exchange registry, as dicts.
    """
def extrapolate_ring_stall(stall_s: typing.SupportsFloat | typing.SupportsIndex, from_workers: typing.SupportsInt | typing.SupportsIndex, to_workers: typing.SupportsInt | typing.SupportsIndex) -> float:
    """
    The stall with other numbers of workers, where 2 (N-1) / N of the bytes are sent.
    """
def find_stalls(*, one_gpu: typing.SupportsFloat | typing.SupportsIndex | None = None, all_gpus: typing.SupportsFloat | typing.SupportsIndex | None = None, cold_data: typing.SupportsFloat | typing.SupportsIndex | None = None, cached_data: typing.SupportsFloat | typing.SupportsIndex | None = None, two_hosts: typing.SupportsFloat | typing.SupportsIndex | None = None) -> dict[str, tuple[float, float]]:
    """
    Stalls by name, (seconds, share) each, from seconds of the same work in runs that differ in one thing; those whose runs were not made are left out (Stash, arXiv 2208.14344).
    """
def fit_line(measured: collections.abc.Sequence[tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]]) -> tuple[float, float, list[float]]:
    """
    (alpha_s, bytes_per_s, residuals) of seconds = alpha + bytes / rate through measured (bytes, seconds); a residual is measured / fitted - 1. Robust against hiccups. InvalidArgument for what follows no such law.
    """
def fit_stalls(samples: collections.abc.Sequence[tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]]) -> tuple[float, float, float, float]:
    """
    (a0, a1, a2, r_squared) of stall = a0 + a1 layers + a2 bytes by least squares through (layers, gradient bytes, stall seconds).
    """
def floats_of_codes(what: str, name: str, codes: typing.Any, scales: typing.Any) -> numpy.ndarray:
    """
    The float32 array that an optimizer's codes of 8 bits, and a scale for every 256, stand for; name is the state's, 'exp_avg', what its name in messages.
    
    Raises:
        InvalidArgument: what no optimizer writes.
    """
def from_environment() -> dict[str, typing.Any]:
    """
    Keyword arguments of make_transport() from the variables of torchrun, mpirun, srun or gradwire's own (GRADWIRE_RANK, GRADWIRE_WORLD_SIZE, GRADWIRE_STORE, ...), which win.
    
    Raises:
        InvalidArgument: naming the variable that is missing or malformed.
    """
def gradients_of_profile(profile: str) -> list[tuple[str, int, float]]:
    """
    (name, numel, ready_s) of the gradients of a profile, which is JSON text as gradwire.planner.read_profile gives it, in the order backward makes them: what plan_buckets takes.
    """
def large_batch(optimizer: str, learning_rate: typing.SupportsFloat | typing.SupportsIndex, batch: typing.SupportsInt | typing.SupportsIndex, to_batch: typing.SupportsInt | typing.SupportsIndex, *, examples: typing.SupportsInt | typing.SupportsIndex, epochs: typing.SupportsFloat | typing.SupportsIndex, warmup_epochs: typing.SupportsFloat | typing.SupportsIndex = 0.0, noise_scale: typing.SupportsFloat | typing.SupportsIndex | None = None, drop_last: bool = True) -> LargeBatch:
    """
    From a setting that works at batch, the setting for to_batch over the same epochs, by published rules: a start that needs no tuning. Batches are of all ranks together. Biases and norms should be a group with weight_decay 0 and adapt False. noise_scale: NoiseScale.value where it was measured, above which rates hardly grow. drop_last: the schedule's steps are epochs of examples // to_batch, as of a DataLoader with drop_last=True; False counts an epoch's last batch that is not full, too.
    
    Raises:
        InvalidArgument: a batch above the examples, a rate, number of epochs or noise scale that is not positive.
    """
def link_presets() -> list[PlannedLink]:
    """
    pcie3, pcie4, nvlink, 10gbe, 25gbe, 100gbe, infiniband, each with its source.
    """
def make_carrier_transport(name: str, carrier: typing.Any, *, timeout: typing.SupportsFloat | typing.SupportsIndex = 30.0, control_host: str = '127.0.0.1') -> Transport:
    """
    A transport over somebody else's collectives: see gradwire.Carrier for what `carrier` must have.
    
    Args:
        timeout: seconds after which the carrier's calls give up.
        control_host: numeric address of this machine at which rank 0 listens for the others' control connections; read on rank 0.
    
    Raises:
        TransportError: naming the ranks that did not come.
    """
def make_in_process_group(world_size: typing.SupportsInt | typing.SupportsIndex, *, timeout: typing.SupportsFloat | typing.SupportsIndex = 30.0, bits_per_second: typing.SupportsFloat | typing.SupportsIndex = 0.0) -> list[Transport]:
    """
    Transports of one process, a list by rank: each is for a thread of its own.
    """
def make_plan(parameters: collections.abc.Iterable[tuple[str, collections.abc.Iterable[int]]], spec: str = 'topk:1%', *, exchange: str = 'auto', bucket_bytes: typing.SupportsInt | typing.SupportsIndex = 1048576, last_bucket_bytes: typing.SupportsInt | typing.SupportsIndex = 0, dtype: typing.Any = 'float32', exempt_1d: str = 'auto', seed: typing.SupportsInt | typing.SupportsIndex = 0, ranks_per_node: typing.SupportsInt | typing.SupportsIndex = 1, buckets: collections.abc.Sequence[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]] | None = None, exchanges: collections.abc.Sequence[str] | None = None, rules: collections.abc.Sequence[dict[str, typing.Any]] = [], residual_memory: str = 'device') -> Plan:
    """
    Makes a plan without looking at any value.
    
    Args:
        parameters: (name, shape) in the order of the model's forward pass.
        spec: a compressor, such as 'topk:1%,int4'.
        exchange: a row of gradwire.exchanges(), or 'auto'.
        bucket_bytes: of dense gradient in a message; a larger parameter is a bucket alone.
        last_bucket_bytes: the same for the bucket that leaves last; 0: as bucket_bytes.
        dtype: of the gradients: 'float32', 'float16' or 'bfloat16'.
        exempt_1d: 'auto': lossy specs narrower than 16 bits send 1-D parameters as bf16; or 'never'.
        seed: of stochastic rounding.
        ranks_per_node: neighbouring ranks that share a node, for the hierarchical exchange.
        buckets: ids of the parameters that travel together, in the order the buckets leave, every parameter once; in place of bucket_bytes.
        exchanges: of each of those buckets, in place of exchange.
        rules: dicts of a 'spec' and which parameters it is for, by any of 'name' (a pattern, * stands for any characters), 'least_ndim', 'most_ndim', 'least_numel' and 'most_numel': the first rule that fits a parameter decides, before spec and exempt_1d.
        residual_memory: 'device', beside the gradients, or 'host'; of gradients in CPU memory both are that.
    
    Raises:
        InvalidArgument: two parameters of one name, one without elements, an exchange that cannot carry the spec, buckets that do not hold every parameter once.
    """
def make_transport(name: str, *, rank: typing.SupportsInt | typing.SupportsIndex = 0, world_size: typing.SupportsInt | typing.SupportsIndex = 1, store: str = '', interface: str = '', timeout: typing.SupportsFloat | typing.SupportsIndex = 30.0, job_secret: str = '', bits_per_second: typing.SupportsFloat | typing.SupportsIndex = 0.0, plugin_path: str = '', log: collections.abc.Callable[[str], None] | None = None, device: typing.SupportsInt | typing.SupportsIndex = 0, max_ctas: typing.SupportsInt | typing.SupportsIndex = 0, socket_interface: str = '', local_world_size: typing.SupportsInt | typing.SupportsIndex = 0) -> Transport:
    """
    Joins a group of processes: collective, blocking, at most `timeout` seconds.
    
    Args:
        name: a row of gradwire.transports().
        store: where ranks meet: 'file:DIR' (all ranks see it) or 'tcp:HOST:PORT' (rank 0 listens).
        interface: network interface to bind: 'eth0', 'eth*' for all that begin so, several with commas between, '^docker*,lo' for all but these; by default the one on the way to the others.
        timeout: seconds a peer may stay silent inside one call.
        job_secret: ranks meet only where it is the same.
        bits_per_second: paces the rank's link inside the transport; 0: as fast as it goes.
        log: called with a line about what happened beside the calls, from any thread.
        device, max_ctas: of 'nccl': this rank's GPU as CUDA numbers them, and the blocks NCCL may take of it, 0 for its choice.
        socket_interface: taken where there is no interface, by 'gloo' and 'nccl'.
        local_world_size: ranks on this machine, 0 where that is not known.
    
    Raises:
        InvalidArgument: an unknown name lists the known ones.
        TransportError: ranks did not appear in time.
    """
def measured_straggler_factor(step_times: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], workers: typing.SupportsInt | typing.SupportsIndex) -> float:
    """
    The same of times drawn from those that were measured, exactly.
    """
def move_elements(address: typing.SupportsInt | typing.SupportsIndex, item_bytes: typing.SupportsInt | typing.SupportsIndex, numels: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], order: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
    """
    Changes the order of runs of elements that lie one behind another in CPU memory, with room beside it for those alone whose order among the large ones changes.
    
    Args:
        address: of the first element.
        item_bytes: of an element.
        numels: of each run.
        order: the i-th run is then the one that was at order[i].
    
    Raises:
        InvalidArgument: the order is no permutation; nothing has moved.
    """
def moves_from(step: StepDemand, arrangement: str, hardware: Hardware | None = None) -> list[dict[str, typing.Any]]:
    """
    The step in all other arrangements, fastest first: a dict each.
    """
def optimizer_settings(text: str) -> dict[str, str]:
    """
    Every setting of an optimizer spec as its text has it, presets and defaults resolved.
    
    Raises:
        InvalidArgument: as canonical_optimizer().
    """
def optimizers() -> list[dict[str, typing.Any]]:
    """
    The rows of the optimizer registry, as dicts.
    """
def parse_bytes(text: str) -> float:
    """
    Bytes of '25MB', '64KiB'.
    """
def parse_rate(text: str) -> float:
    """
    Bytes per second of '10gbit', '25Gb/s' or '1.2GB/s'; b is a bit, B a byte.
    """
def parse_seconds(text: str) -> float:
    """
    Seconds of '60us', '1.5ms', '2h'.
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
def plan_buckets(gradients: collections.abc.Sequence[tuple[str, typing.SupportsInt | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]], *, link: PlannedLink, world_size: typing.SupportsInt | typing.SupportsIndex, codecs: collections.abc.Mapping[str, tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]], specs: collections.abc.Sequence[str] = [], exchanges: collections.abc.Sequence[str] = [], streams: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [1], tolerance: typing.SupportsFloat | typing.SupportsIndex = 0.0, beam: typing.SupportsInt | typing.SupportsIndex = 64) -> BucketPlan:
    """
    The plan whose last exchange ends first. gradients: (name, numel, ready_s) in the order backward makes them. codecs: spec -> (encode floor s, encode bytes/s, decode floor s, decode bytes/s) of dense bytes, a rate of 0 costing nothing; 'bf16' and every spec asked for must have an entry. Candidates always include no compression and bf16. Within tolerance of the earliest the plan that sends most is taken. InvalidArgument for prices that cannot be.
    """
def planner_beside_measured(predicted: str, measured: str, step: typing.SupportsInt | typing.SupportsIndex | None, name: str) -> str:
    """
    Chrome/Perfetto JSON of both; see gradwire.planner.beside_measured.
    """
def planner_calibrated(profile: str, step_s: typing.SupportsFloat | typing.SupportsIndex) -> str:
    """
    JSON of the profile whose step on one worker takes step_s seconds.
    """
def planner_exchanges() -> list[str]:
    """
    Names of the exchanges of a predicted step.
    """
def planner_profile(format: str, text: str, name: str, options: dict[str, typing.Any]) -> str:
    """
    JSON of the profile that `text` in one of the formats holds.
    """
def planner_scaling(profile: str, schedule: str, settings: dict[str, typing.Any]) -> list[dict[str, typing.Any]]:
    """
    One dict per number of workers; see gradwire.planner.scaling.
    """
def planner_schedules() -> list[str]:
    """
    Names of the schedules of a predicted step.
    """
def planner_sensitivities(profile: str, schedule: str, settings: dict[str, typing.Any]) -> list[dict[str, typing.Any]]:
    """
    One dict per input; see gradwire.planner.sensitivities.
    """
def planner_simulate(profile: str, schedule: str, settings: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """
    A predicted step as a dict; see gradwire.planner.simulate.
    """
def planner_trace(profile: str, schedule: str, settings: dict[str, typing.Any]) -> str:
    """
    Chrome/Perfetto JSON; see gradwire.planner.trace.
    """
def probe_link(transport: Transport, *, budget: typing.SupportsFloat | typing.SupportsIndex = 0.005, most_bytes: typing.SupportsInt | typing.SupportsIndex = 1048576) -> LinkCosts:
    """
    Measures the line between the ranks by a few all-gathers: the same LinkCosts on all. Collective; a Reducer over the transport must be between steps.
    
    Args:
        budget: seconds that three calls of the largest size may take.
        most_bytes: of a message.
    
    Raises:
        TransportError: naming a rank; the group is finished.
    """
def read_instances(csv: str) -> list[Instance]:
    """
    A price table: 'instance,gpu,gpus,usd_per_hour', then a row each.
    """
def recommend(instances: collections.abc.Sequence[Instance], epoch_s: collections.abc.Callable[[Instance, int, str], typing.SupportsFloat | typing.SupportsIndex | None], *, budget_s: typing.SupportsFloat | typing.SupportsIndex, counts: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [1], plans: collections.abc.Sequence[str] = ['none']) -> Recommendation:
    """
    Asks epoch_s(instance, count, plan) for seconds, or None where that cannot run, and takes the cheapest configuration within budget_s. InvalidArgument for lists that are empty, times that are not positive, and where nothing can run.
    """
def sampled_straggler_factor(variation: typing.SupportsFloat | typing.SupportsIndex, workers: typing.SupportsInt | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex = 1, draws: typing.SupportsInt | typing.SupportsIndex = 4096) -> float:
    """
    E[slowest of workers] / mean of log-normal times with this standard deviation over mean.
    """
def scale_by_root(rate: typing.SupportsFloat | typing.SupportsIndex, from_batch: typing.SupportsInt | typing.SupportsIndex, batch: typing.SupportsInt | typing.SupportsIndex) -> float:
    """
    rate * sqrt(batch / from_batch): of LAMB (You et al., arXiv 1904.00962) and others whose steps do not grow with their gradients.
    """
def scale_linearly(rate: typing.SupportsFloat | typing.SupportsIndex, from_batch: typing.SupportsInt | typing.SupportsIndex, batch: typing.SupportsInt | typing.SupportsIndex) -> float:
    """
    rate * batch / from_batch: of SGD, with a warm-up (Goyal et al., arXiv 1706.02677).
    """
def seconds_text(seconds: typing.SupportsFloat | typing.SupportsIndex) -> str:
    """
    '60 us': three digits and the unit that fits.
    """
def socket_interface_from_environment() -> str:
    """
    The network interface that GRADWIRE_INTERFACE, GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names, as make_transport() takes it; empty when none is set.
    """
def spec_traffic(spec: str, world_size: typing.SupportsInt | typing.SupportsIndex) -> tuple[float, list[str]]:
    """
    (dense bytes over payload bytes, names of the exchanges that carry it) of a compressor.
    """
def transports(plugin_path: str = '') -> list[dict[str, typing.Any]]:
    """
    The rows of the transport registry, as dicts; `plugin_path` is where the plug-in is looked for first.
    """
def warmup(base: typing.SupportsFloat | typing.SupportsIndex, step: typing.SupportsInt | typing.SupportsIndex, warmup_steps: typing.SupportsInt | typing.SupportsIndex) -> float:
    """
    base * (step + 1) / warmup_steps while step < warmup_steps, then base.
    """
def what_if(step: StepDemand, arrangement: str, capacity: str, values: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex], hardware: Hardware | None = None) -> list[dict[str, typing.Any]]:
    """
    The step with 'compute', 'memory', 'ethernet', 'pcie' or 'nvlink' at each value: a dict each. has_effect is False where the step does not use it.
    """
planner_unavailable_reason: str = ''
