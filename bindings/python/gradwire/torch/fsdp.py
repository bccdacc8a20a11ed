"""Gradients of FSDP2 (fully_shard) through gradwire: a reduce-scatter of compressed slices."""

import logging
import re
import time
from contextlib import suppress
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from .. import _core
from .._core import parse_spec
from ..errors import InvalidArgument, NonFiniteGradient, TransportError
from .agreement import agree
from .backward import after_backward
from .checks import DTYPES, refuse_sparse_layers, refuse_unfrozen
from .joining import check_joining, join
from .meeting import check_group
from .scaling import Scaler, check_scaler, find_scaler, is_enabled, own_scaler
from .sharded_checkpoint import load_slices, state_of
from .sharded_groups import Group, checked_mesh, groups_of, share_of, viewed
from .updates import warns_of_two_momenta
from .writers import write_scalars

__all__ = ["FSDPExchange", "register_fsdp"]

_LOOK_FOR_SCALERS = 2  # steps at whose begin other GradScalers are looked for

_log = logging.getLogger("gradwire")


def register_fsdp(module: torch.nn.Module, spec: str, **options: Any) -> "FSDPExchange":
    """Reduces the gradients of a module under fully_shard by gradwire from now on. Collective.

        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        exchange = gradwire.torch.register_fsdp(model, "topk:1%,int4")

    Each rank compresses its unsharded gradients in slices, one for each rank, and sends slice d to
    rank d alone, which adds up those of all ranks in rank order, while backward goes on. What a slice
    leaves out is kept here and sent later. A backward that reduces gradients is one commit of the
    residuals; where some rank's gradient holds NaN or infinity, or a sum overflows, nothing is
    committed on any.

    Args:
        module: fully_shard has been applied to it, or to modules in it, over one mesh of one
            dimension on the CPU; no other custom reduce-scatter. Gradients that are reduced in another
            dtype than float32, float16 and bfloat16 (MixedPrecisionPolicy.reduce_dtype) travel as they are.
        spec: a compressor, such as 'topk:1%,int4', 'int8' or 'none', of all parameters; not powersgd
            and not ef21, whose ranks must see all payloads.
        carrier, timeout, scaler, on_nonfinite, threads: as of register().
        seed: of what compressors draw, the same on all ranks.

    Returns:
        The exchange: residual(), stats(), write_to(), state_dict(), load_state_dict(), close().

    Raises:
        InvalidArgument: what is not as above, or ranks differ in it.
        TransportError: ranks did not come.
    """
    return FSDPExchange(module, spec, **options)


class FSDPExchange:
    """What register_fsdp() returns."""

    def __init__(
        self,
        module: torch.nn.Module,
        spec: str,
        *,
        carrier: str = "auto",
        timeout: float = 1800.0,
        scaler: Scaler = None,
        on_nonfinite: Optional[str] = None,
        threads: Optional[int] = None,
        seed: int = 0,
    ) -> None:
        check_group(None)
        refuse_sparse_layers(module, list(module.named_parameters()))
        self._spec = _checked_spec(spec)
        if on_nonfinite not in (None, "error", "skip"):
            raise InvalidArgument(f"on_nonfinite: is '{on_nonfinite}', must be 'error' or 'skip'")
        # One that is not enabled scales nothing, and skips nothing.
        self._scaler: Any = scaler if is_enabled(scaler) else None
        self._skip = (on_nonfinite or ("skip" if self._scaler else "error")) == "skip"
        found = groups_of(module)
        names = {id(p): name for name, p in module.named_parameters()}
        self._groups = [
            Group(self._reduce, place, name, group, names)
            for place, (name, (_, group)) in enumerate(found.items())
        ]
        process_group = checked_mesh(self._groups)
        check_scaler(scaler, [p.sharded_param for g in self._groups for p in g.group.fsdp_params])
        self._check_dtypes(self._scaler is not None)
        self._look_for_scalers = scaler is None
        self._sharded = {id(p.sharded_param) for g in self._groups for p in g.group.fsdp_params}
        self._warned = False  # of two momenta
        self._scale = 1.0  # of the gradients of the step in progress
        self._backward: Optional[int] = None  # torch's number of that at whose end _end() is called
        self._begun_steps = 0
        self._seed = seed
        self._threads = torch.get_num_threads() if threads is None else threads
        self._closed = False
        self._stats: Dict[str, float] = {}
        self._counted = (0.0, 0.0)  # when the step began
        self._transport: Optional[_core.Transport] = None
        self._reducer: Optional[_core.ShardedReducer] = None
        check_joining(carrier, timeout)
        if dist.get_world_size(process_group) == 1:
            _log.warning("world size 1, gradwire exchanges nothing: gradients stay as they are")
            return
        for group in self._groups:
            if group.uncompressed:
                group.say()
        self._transport = join(process_group, carrier, timeout)
        try:
            same = [f"spec={spec!r} seed={seed} scaler={self._scaler is not None} skip={self._skip}"]
            same += [f"{g.name!r} {g.dtype} {[p[:2] for p in g.parameters]}" for g in self._groups]
            self._transport.agree("module, spec, seed, scaler or on_nonfinite", "\n".join(same))
            self._reducer = self._make_reducer(self._transport)
        except BaseException:
            self._transport.close()
            raise
        for group, (wrapped, _) in zip(self._groups, found.values()):
            wrapped.set_custom_reduce_scatter(group)
        module.register_forward_pre_hook(self._before_forward)

    @property
    def spec(self) -> str:
        """Of the compressor, as it was given."""
        return self._spec

    @property
    def transport(self) -> Optional[_core.Transport]:
        """What carries the exchange; None in a group of one rank."""
        return self._transport

    @property
    def step(self) -> int:
        """Commits so far."""
        compressed = [g.place for g in self._groups if not g.uncompressed]
        return self._reducer.step(compressed[0]) if self._reducer and compressed else 0

    def residual(self, name: str) -> Optional[torch.Tensor]:
        """A copy of what an unsharded parameter's gradients on this rank still owe to all ranks.

        Args:
            name: as module.named_parameters() has it.

        Returns:
            float32, in the shape of the whole parameter; None without feedback.
        """
        for group in self._groups:
            begin = 0
            for parameter in group.parameters:
                if parameter.name == name:
                    kept = self._reducer.residuals(group.place) if self._reducer else []
                    return parameter.whole(kept, begin)
                begin += parameter.slice_numel
        raise InvalidArgument(f"name: '{name}' is no parameter that is exchanged")

    def state_dict(self) -> Dict[str, Any]:
        """What this rank keeps between steps, for its checkpoint: residuals and counters.

        Plain tensors and numbers, for torch.save() and weights_only loading. Between steps. Every
        rank has its own, of the size of the unsharded gradients.
        """
        return state_of(self._reducer, self._places(), self._spec, *self._place())

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continues bit for bit where state_dict() was called on this rank. Collective, between steps.

        Raises:
            InvalidArgument: on every rank, when one finds its state missing something, or of another
                rank, number of ranks, spec, module or step; nothing has changed then.
        """
        transport, fresh = self._transport, None
        if transport is not None:
            assert self._reducer is not None
            self._reducer.abandon()  # what a backward that broke off has left behind
            fresh = self._make_reducer(transport)

        def load() -> List[int]:
            return load_slices(state, fresh, self._places(), self._spec, *self._place())

        load() if transport is None else agree(transport, load, "state")
        self._reducer = fresh

    def stats(self) -> Dict[str, float]:
        """Of the last step: what it sent, and what it cost.

        Returns:
            'step', 'committed' (0 or 1), 'bytes_sent', 'bytes_received', 'dense_bytes' (of the
            unsharded gradients) and 'exposed_us' (for which backward waits: what of compression and
            exchange it does not hide). Empty before the first step.
        """
        return dict(self._stats)

    def write_to(self, writer: Any, step: Optional[int] = None) -> None:
        """Hands stats() to TensorBoard (add_scalar) or wandb (log), as that of register() does."""
        write_scalars(writer, self.stats(), step)

    def close(self) -> None:
        """Leaves the group; steps after it raise. Nothing when closed already."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    # What a step is made of.

    def _reduce(self, group: Group, output: torch.Tensor, input: torch.Tensor, op: Any) -> None:
        if self._closed:
            raise InvalidArgument("gradwire: the exchange has been closed, must be open")
        assert self._transport is not None and self._reducer is not None
        started = time.perf_counter()
        try:
            self._begin(group)
            if group.uncompressed:
                self._reducer.reduced(group.place, *group.reduce_dense(output, input, op))
                return
            size = self._transport.world_size
            share = share_of(op, size)
            if input.numel() != group.numel * size or input.dtype != group.dtype:
                raise InvalidArgument(
                    f"gradients of '{group.name}': are {input.numel()} of {input.dtype}, must be "
                    f"{group.numel * size} of {group.dtype}: parameters that a backward "
                    "does not reach need set_reduce_scatter_unused_params(True)"
                )
            if self._scale != 1.0:
                input.mul_(1.0 / self._scale)
            self._reducer.reduce(group.place, viewed(input), viewed(output), share * self._scale)
            if group.is_read_at_once(op):
                self._reducer.wait()
        except Exception as error:
            self._transport.abort(f"{type(error).__name__}: {error}")
            with suppress(TransportError):
                self._reducer.abandon()
            self._fill_with_nan()
            raise
        self._stats["exposed_us"] += (time.perf_counter() - started) * 1e6
        self._stats["dense_bytes"] += float(input.numel() * input.element_size())

    def _begin(self, group: Group) -> None:
        assert self._reducer is not None
        refuse_unfrozen(group.left_out, "register_fsdp() was called")
        # Checkpointing with use_reentrant has backward passes within one, each with an end.
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            after_backward(self._end)
            self._backward = backward
        if self._reducer.pending > 0:
            return
        self._begun_steps += 1
        own_scaler(self._scaler)
        if self._begun_steps <= _LOOK_FOR_SCALERS:
            if self._look_for_scalers:
                find_scaler(p.sharded_param for g in self._groups for p in g.group.fsdp_params)
            self._warned = self._warned or warns_of_two_momenta([self._spec], self._sharded)
        self._scale = self._scaler.get_scale() if self._scaler else 1.0
        self._stats = {"step": float(self.step), "exposed_us": 0.0, "dense_bytes": 0.0}
        self._counted = self._counters()

    def _before_forward(self, *_: Any) -> None:
        # A backward that broke off has left groups behind. Not one that is just computing again.
        if self._reducer is not None and torch._C._current_graph_task_id() == -1:
            self._reducer.abandon()
            self._backward = None

    def _end(self) -> None:
        assert self._reducer is not None
        started = time.perf_counter()
        self._backward = None
        if self._reducer.pending == 0:
            return
        committed, problem = False, None
        try:
            committed = self._reducer.commit()
        except NonFiniteGradient as error:
            problem = error
        except BaseException:  # what nobody has written is no gradient
            self._fill_with_nan()
            raise
        sent, received = self._counters()
        self._stats["committed"] = float(committed)
        self._stats["bytes_sent"] = sent - self._counted[0]
        self._stats["bytes_received"] = received - self._counted[1]
        self._stats["exposed_us"] += (time.perf_counter() - started) * 1e6
        if not committed:
            self._fill_with_nan()
        if problem is not None:
            raise problem

    def _fill_with_nan(self) -> None:
        for group in self._groups:
            for parameter in group.group.fsdp_params:
                gradient = parameter.sharded_param.grad
                if gradient is not None:
                    gradient.to_local().fill_(float("nan"))

    def _place(self) -> Tuple[int, int]:
        return (0, 1) if self._transport is None else (self._transport.rank, self._transport.world_size)

    def _counters(self) -> Tuple[float, float]:
        assert self._transport is not None
        counted = self._transport.counters()
        return float(counted["bytes_sent"]), float(counted["bytes_received"])

    def _places(self) -> Dict[str, int]:
        return {group.name: group.place for group in self._groups}

    def _make_reducer(self, transport: _core.Transport) -> _core.ShardedReducer:
        # Seeds differ by group and by slice: the ranks' draws for one slice differ by rank.
        return _core.ShardedReducer(
            [
                (
                    group.name,
                    DTYPES.get(group.dtype),
                    [parameter.slice_shape for parameter in group.parameters],
                    self._seed + group.place * transport.world_size,
                )
                for group in self._groups
            ],
            transport,
            self._spec,
            on_nonfinite="skip" if self._skip else "error",
            threads=self._threads,
        )

    def _check_dtypes(self, scaled: bool) -> None:
        for group in self._groups:
            if scaled and group.dtype == torch.float16:
                raise InvalidArgument(
                    f"scaler: gradients of '{group.name}' are reduced in torch.float16, which cannot "
                    "hold them unscaled; use MixedPrecisionPolicy(reduce_dtype=torch.float32)"
                )


def _checked_spec(spec: str) -> str:
    if isinstance(spec, str) and re.match(r"\s*auto\s*([:,]|$)", spec):
        raise InvalidArgument(
            f"spec: is '{spec}', must be a compressor by name, such as 'int8': 'auto' is of register() and "
            "attach(), whose Reducer changes its plan; slices of FSDP2 have none"
        )
    parsed = parse_spec(spec)
    if parsed.ef21 or parsed.rank > 0 or parsed.rounds > 1:
        raise InvalidArgument(
            f"spec: is '{spec}', must be one whose payloads are decoded by one rank alone: not "
            "powersgd and not ef21"
        )
    return spec
