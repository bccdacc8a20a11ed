"""Gradients of DistributedDataParallel through gradwire: a communication hook."""

# DDP compares the hook's annotations as objects: no `from __future__ import annotations` here.

import logging
import time
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .._core import Plan, parse_spec
from ..errors import InvalidArgument, NonFiniteGradient
from .backward import after_backward, in_backward
from .checks import HOW_TO_BE_DENSE, refuse_sparse_layers
from .ddp_buckets import Mapped, ReadyOrder, cut, slices_like
from .exchange import DTYPES, GradientExchange, RefusedByAll
from .memory_order import (
    parts_now,
    parts_of,
    right_views,
    shares_memory,
    to_c_order,
    to_memory_order,
)
from .norms import specs_of
from .slot import Slot, buckets_of, closed_slot, forget_lost, refuse_other_hooks

__all__ = ["DDPHook", "register"]

_log = logging.getLogger("gradwire")

_STEPS_UNTIL_REBUILT = 2  # DDP's first step has other buckets than those after it


def register(ddp: DistributedDataParallel, spec: str = "auto", **options: Any) -> "DDPHook":
    """Averages the gradients of a DDP model by gradwire from now on. Collective.

        model = DistributedDataParallel(model)
        exchange = gradwire.torch.register(model, "topk:1%,int4")

    Everything else in the script stays: no_sync(), gradient accumulation, unused parameters,
    static graphs, autocast. A backward outside of no_sync() is one exchange and one commit of the
    residuals; where some rank's gradient holds NaN or infinity nothing is committed on any.

    Args:
        ddp: parameters on the CPU or on one GPU; no other hook. Gradients of another dtype than float32,
            float16 and bfloat16 travel as they are.
        spec: a compressor, such as 'topk:1%,int4', 'int8' or 'none'; 'auto' measures the job's own
            steps and takes what is fastest, or no compression (float32; docs/auto.md); make the
            optimizer first, since it looks for it.
        process_group: by default that of ddp.
        carrier: 'gloo', the library's own over TCP; 'torch', the process group; 'nccl', the
            library's own between GPUs, for gradients there; 'auto', of those for this memory the
            first that this build has.
        timeout: seconds a peer may stay silent. A process that dies is noticed at once.
        scaler: the GradScaler of the loss, so that residuals are of unscaled gradients; False when
            a scaler in this process is that of another loss. Without it scalers are refused.
        on_nonfinite: 'error': backward() raises NonFiniteGradient on all ranks; 'skip': all
            gradients become NaN on all ranks, which GradScaler takes for a step to be left out.
            By default 'skip' with a scaler, else 'error'. On a GPU no backward waits to know:
            gradients become NaN either way, and what 'error' raises comes with one of the next
            steps, after each, until synchronize() on all ranks.
        threads: of compression; torch.get_num_threads() by default.
        streams: exchanges in flight at once, 1 to 16.
        rules, exempt_1d, exchange, seed, ranks_per_node: as of gradwire.make_plan().
        trace_steps: steps that save_trace() has.

    Returns:
        The exchange: set_spec(), stats(), decisions(), write_to(), save_trace(), state_dict(),
        synchronize().

    Raises:
        InvalidArgument: what is not as above, or another hook is there.
        TransportError: ranks did not come.
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise InvalidArgument(
            f"ddp: is a {type(ddp).__name__}, must be a DistributedDataParallel; for scripts "
            "without it there is gradwire.torch.attach()"
        )
    if getattr(ddp, "mixed_precision", None) is not None:
        raise InvalidArgument(
            "ddp: has mixed_precision, which is a communication hook of its own, must have none; "
            "autocast goes with gradwire's"
        )
    if options.get("launch_order", "plan") != "plan":
        raise InvalidArgument(
            f"launch_order: is {options['launch_order']!r}, must be 'plan': DDP hands over its buckets in "
            "an order of its own; for models that need another one there is gradwire.torch.attach()"
        )
    forget_lost(ddp)
    slot = closed_slot(ddp)
    if slot is None:
        refuse_other_hooks(ddp)
    options.setdefault("process_group", ddp.process_group)
    options.setdefault("bucket_bytes", ddp.bucket_bytes_cap)
    hook = DDPHook(ddp, spec, **options)
    if slot is None:
        slot = Slot(hook)
        ddp.register_comm_hook(slot, _hook)
        ddp.register_forward_pre_hook(slot)
    else:
        slot.hook = hook
    return hook


def _hook(  # torch exports GradBucket without a type
    state: Any, bucket: dist.GradBucket  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = state.hook.take(bucket)
    return done


_NOWHERE = Mapped(lambda: None, [], [], [])


class _Waiting(NamedTuple):
    future: "torch.futures.Future[torch.Tensor]"
    buffer: torch.Tensor
    mapped: Mapped


class DDPHook(GradientExchange):
    """What register() returns."""

    __doc__ = f"{__doc__}\n\n{GradientExchange.__doc__}"

    _given_buckets = True

    _settled_by = "DistributedDataParallel was made"

    _ready_order: Optional[ReadyOrder] = None  # until DDP's first step has ended

    def __init__(self, ddp: DistributedDataParallel, spec: str, **options: Any) -> None:
        self._ddp: Any = weakref.ref(ddp)
        # Those that DDP has, of which some may be frozen by now and train later.
        ignored = set(ddp.parameters_to_ignore)
        named = [(name, p) for name, p in ddp.module.named_parameters() if name not in ignored]
        refuse_sparse_layers(ddp.module, named)
        self._made_buckets = buckets_of(ddp, named)
        self._reduced = {id(p) for bucket in self._made_buckets for p in bucket}
        super().__init__(named, spec, **options)
        self._mapped: Dict[int, Mapped] = {}  # by DDP's index
        self._mapped_anew = False  # what travels together may have to follow
        if self._reducer is not None:
            self._ready_order = ReadyOrder(ddp, self._made_buckets, self._ids)
        self._waiting: List[_Waiting] = []
        self._error: Optional[BaseException] = None

    def close(self) -> None:
        super().close()
        if self._ready_order is not None:
            self._ready_order.stop()

    close.__doc__ = GradientExchange.close.__doc__

    def _takes(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self._reduced

    def _first_buckets(self) -> Optional[List[List[int]]]:
        pieces = [piece for b in self._made_buckets for piece in cut(b, self._bucket_bytes)]
        return self._in_plan([[self._ids[id(p)] for p in piece if id(p) in self._ids] for piece in pieces])

    def _in_plan(self, rows: List[List[int]]) -> List[List[int]]:
        """Buckets of parameters that compressors take, and the flag of the others."""
        return [row for row in rows if row] + ([] if self._uncompressed is None else [[0]])

    def _may_leave_out(self) -> bool:
        ddp = self._ddp()  # asked anew: a static graph may be declared later
        if ddp is None:
            return False
        # Looking at a mean waits for a GPU, as DDP does where it looks for parameters. In a static
        # graph nothing is owed to those it leaves out.
        return bool(ddp.find_unused_parameters or (ddp.static_graph and self._work.waits))

    def take(self, bucket: Any) -> "torch.futures.Future[torch.Tensor]":
        """Called by DDP for each bucket in turn; the last one ends the step."""
        buffer = bucket.buffer()
        future = self._work.future()
        if self._reducer is None:
            future.set_result(buffer)
            return future
        # DDP cannot go on after a hook that raised. So errors wait for the end of backward, where
        # they keep their type, and their gradients are NaN, which nobody takes for good.
        started = time.perf_counter()
        mapped = _NOWHERE
        try:
            if self._error is None:
                with self._work.behind_backward():
                    mapped = self._give(bucket, buffer)
        except RefusedByAll as refused:
            self._error = refused.error  # nothing has begun
        except (Exception, KeyboardInterrupt) as error:
            self._error = error
            self._tell_peers(error)
        self._waiting.append(_Waiting(future, buffer, mapped))
        self.seconds += time.perf_counter() - started
        if bucket.is_last():
            with self._work.behind_backward():
                self._finish()
        return future

    def _give(self, bucket: Any, buffer: torch.Tensor) -> Mapped:
        if bucket.index() == 0:
            if self._waiting:
                raise InvalidArgument(
                    "backward: the last one ended before all buckets had left, expected all: the "
                    "ranks' steps no longer fit together"
                )
            self._begin()
        assert self._reducer is not None
        index = bucket.index()
        mapped = self._mapped.get(index, _NOWHERE)
        if mapped.buffer() is not buffer:
            mapped = self._mapped[index] = self._map(bucket, buffer)
            self._mapped_anew = True
        elif not all(part.certain for part in mapped.parts):
            parts = parts_of(buffer, self._parameters_of(mapped), mapped.parts)
            mapped = self._mapped[index] = mapped._replace(parts=parts)
        to_c_order(buffer, mapped.parts)  # nobody reads it until _end_step()
        if mapped.dense:
            assert self._uncompressed is not None
            self._uncompressed.sees(buffer)
            return mapped
        if self._auto is not None:
            self._auto.sees(mapped.parameters, buffer)
        if not mapped.slices:
            self._reducer.give_from(
                mapped.parameters,
                buffer.data_ptr(),
                DTYPES[buffer.dtype],
                1.0 / self._scale.value,
                self._scale.address,
            )
            return mapped
        for part in mapped.slices:
            part.to_plan_order(buffer)
            self._reducer.bucket_ready_at(part.bucket, part.address(buffer), sum(part.numels))
        return mapped

    def _forget_places(self) -> None:
        self._mapped.clear()

    def _map(self, bucket: Any, buffer: torch.Tensor) -> Mapped:
        parameters = [p for p in bucket.parameters() if p.numel() > 0]
        if buffer.layout != torch.strided:
            names = ", ".join(self._names.get(id(p), "?") for p in parameters)
            raise InvalidArgument(f"parameter '{names}': its gradient is {buffer.layout}, {HOW_TO_BE_DENSE}")
        if any(p.dtype not in DTYPES for p in parameters):  # one dtype; complex ones are in real buffers
            return Mapped(weakref.ref(buffer), [], [], [], dense=True)
        assert self._reducer is not None
        ids = [self._ids[id(p)] for p in parameters]
        parts = parts_of(buffer, parameters)
        slices = []
        # Under a scaler means are kept apart from what it will unscale.
        if DTYPES[buffer.dtype] == self._dtype and self._scaler is None:
            numels = [p.numel() for p in parameters]
            slices = slices_like(self._reducer.plan, ids, numels, may_move=self._work.waits)
        return Mapped(weakref.ref(buffer), ids, slices, parts)

    def _finish(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._error is None:
            try:
                self._end_step(waiting)
            except (Exception, KeyboardInterrupt) as error:
                self._error = error
        failed, self._error = self._error, None
        if failed is not None:
            if self._uncompressed is not None:
                self._uncompressed.forget()
            for each in waiting:
                if each.buffer.layout == torch.strided:
                    each.buffer.fill_(float("nan"))
            if in_backward():
                after_backward(lambda: _throw(failed))
        for each in waiting:
            each.future.set_result(each.buffer)
        if failed is not None and not in_backward():
            self._throw_on_joined(failed)

    def _throw_on_joined(self, error: BaseException) -> None:
        """A rank that has joined (torch's Join) has no backward to raise in. What the others may catch and go
        on behind must not take it away from them; on a GPU it could not call synchronize() as they do."""
        if not isinstance(error, NonFiniteGradient) or not self._work.waits:
            raise error
        _log.warning(f"gradwire: on a rank that has joined: {error}")

    def _end_step(self, waiting: List[_Waiting]) -> None:
        assert self._reducer is not None
        if self._uncompressed is not None:
            self._uncompressed.give_flag(self._reducer, self._work)
        try:
            committed = self._reducer.wait() is not False  # None: nobody knows, and means may be NaN
        except NonFiniteGradient:  # on all ranks: a step, but one that was left out
            if self._auto is not None:
                self._auto.end_step(False)
            raise
        started = time.perf_counter()
        for each in waiting:
            if not committed:
                each.buffer.fill_(float("nan"))
            elif each.mapped.dense:
                assert self._uncompressed is not None
                self._uncompressed.average([each.buffer])
            elif each.mapped.slices:
                for part in each.mapped.slices:
                    part.to_ddp_order(each.buffer)
            else:
                self._reducer.write_means(
                    each.mapped.parameters,
                    each.buffer.data_ptr(),
                    DTYPES[each.buffer.dtype],
                    self._scale.value,
                    self._scale.address,
                )
        if committed:
            self._share_among_active(waiting)
        means = [self._as_read(each) for each in waiting] if committed else []
        if means and in_backward() and self._gradients_are_views():
            after_backward(lambda: self._right_views(means))
        if means and in_backward() and self._may_leave_out():
            after_backward(lambda: self._give_to_unused(means))
        self._follow_buckets(waiting)
        self.seconds += time.perf_counter() - started
        if self._auto is not None:
            for each in (each for each in waiting if not each.mapped.dense):
                self._auto.sees_means(each.mapped.parameters, each.buffer)
            self._auto.end_step(committed)
        for buffer, mapped in means:
            to_memory_order(buffer, mapped.parts)

    def _follow_buckets(self, waiting: List[_Waiting]) -> None:
        """DDP's, from the next step on."""
        if self._ready_order is not None:
            assert self._transport is not None
            order, self._ready_order = self._ready_order, None
            if buckets := order.next_buckets(self._transport):
                self._travel_in(self._in_plan(buckets))
        elif self._mapped_anew and self._begun_steps >= _STEPS_UNTIL_REBUILT:
            self._mapped_anew = False
            self._travel_in(self._in_plan([each.mapped.parameters for each in waiting]))

    def _gradients_are_views(self) -> bool:
        return bool(getattr(self._ddp(), "gradient_as_bucket_view", False))

    def _parameters_of(self, mapped: Mapped) -> List[torch.Tensor]:
        return [self._named[i][1] for i in mapped.parameters]

    def _as_read(self, each: _Waiting) -> Tuple[torch.Tensor, Mapped]:
        """A buffer, and its parts as DDP reads means from it."""
        if self._gradients_are_views():
            return each.buffer, each.mapped
        parts = parts_now(each.mapped.parts, self._parameters_of(each.mapped))
        return each.buffer, each.mapped._replace(parts=parts)

    def _right_views(self, means: List[Tuple[torch.Tensor, Mapped]]) -> None:
        for buffer, mapped in means:
            right_views(buffer, mapped.parts, self._parameters_of(mapped))

    def _share_among_active(self, waiting: List[_Waiting]) -> None:
        """Join(divide_by_initial_world_size=False): means are over the ranks that have not joined yet."""
        ddp: Any = self._ddp()
        if ddp is None or not ddp._join_config.enable or ddp._divide_by_initial_world_size:
            return
        active = torch.tensor([float(in_backward())], device=self._work.device)
        dist.all_reduce(active, group=self._process_group)
        for each in waiting:
            each.buffer.mul_(self._world_size / active.to(each.buffer.dtype))

    def _give_to_unused(self, means: List[Tuple[torch.Tensor, Mapped]]) -> None:
        # DDP leaves a parameter alone that no rank has reached. But what ranks still owed it has been
        # sent, and must not be lost.
        assert self._reducer is not None
        owed = _with_feedback(self._reducer.plan)
        for buffer, mapped in means:
            for i, part in zip(mapped.parameters, mapped.parts):
                parameter = self._named[i][1]
                mean = part.of(buffer).to(parameter.dtype)
                if i not in owed or not parameter.requires_grad:  # frozen since: it stays
                    continue
                if parameter.grad is None:
                    if bool(mean.any()):
                        parameter.grad = mean.clone()
                elif not shares_memory(parameter.grad, buffer) and not torch.equal(parameter.grad, mean):
                    parameter.grad.copy_(mean)


def _with_feedback(plan: Plan) -> Set[int]:
    """Ids of the parameters of which ranks keep what they have not sent."""
    return {p for p, spec in specs_of(plan).items() if parse_spec(spec).error_feedback}


def _throw(error: BaseException) -> None:
    raise error
