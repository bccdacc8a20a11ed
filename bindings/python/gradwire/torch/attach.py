"""Gradients of any torch model through gradwire, without DistributedDataParallel."""

import contextlib
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..errors import InvalidArgument, NonFiniteGradient, TransportError
from .checks import HOW_TO_BE_DENSE, refuse_sparse_layers
from .exchange import DTYPES, GradientExchange, Named
from .scaling import is_enabled

__all__ = ["Attached", "attach"]


def attach(
    module: torch.nn.Module,
    spec: str = "auto",
    *,
    optimizer: Optional[torch.optim.Optimizer] = None,
    broadcast: bool = True,
    **options: Any,
) -> "Attached":
    """Averages the gradients of a module over ranks, from hooks of its parameters. Collective.

        exchange = gradwire.torch.attach(model, "topk:1%,int4")
        for batch in batches:
            loss(model, batch).backward()   # gradients leave as they appear
            exchange.wait()                 # p.grad is the mean of all ranks
            optimizer.step(), optimizer.zero_grad()

    Args:
        module: parameters on the CPU or on one GPU, which stay its own. Gradients of another dtype than
            float32, float16 and bfloat16 travel as they are.
        spec: a compressor, such as 'topk:1%,int4', 'int8' or 'none', or 'auto', as of register().
        optimizer: its step() calls wait(), behind the closure where there is one. Not together with
            a scaler, which looks at gradients before: call wait() yourself, before scaler.step(),
            scaler.unscale_() and clipping.
        broadcast: begins with the parameters and buffers of the group's rank 0 on all ranks.
        unused: what wait() does about parameters that a backward has not reached: 'error', or
            'zero': their gradient is zero on this rank, and stays None where no rank reached them.
        launch_order: 'plan', or 'agreed' for models of which other layers run in every step or on
            every rank: gradients leave when all ranks have them, which these tell each other in
            small messages, and not behind those that come later. The same bits. Not on a GPU.
        process_group, carrier, timeout, scaler, on_nonfinite, threads, streams, rules, exempt_1d,
            exchange, seed, ranks_per_node, trace_steps: as of register().
        bucket_bytes: of gradients that travel together.

    Returns:
        The exchange: wait(), no_sync(), detach(), and what that of register() has.

    Raises:
        InvalidArgument: what is not as above.
        TransportError: ranks did not come.
    """
    if not isinstance(module, torch.nn.Module) or isinstance(module, DistributedDataParallel):
        raise InvalidArgument(
            f"module: is a {type(module).__name__}, must be a torch.nn.Module, and none that exchanges "
            "itself: for DistributedDataParallel there is gradwire.torch.register()"
        )
    if optimizer is not None and is_enabled(options.get("scaler")):
        raise InvalidArgument(
            "optimizer: is given together with a scaler, which looks at gradients before step(); "
            "expected wait() before scaler.step() and scaler.unscale_() in their place"
        )
    named = list(module.named_parameters())
    refuse_sparse_layers(module, named)
    exchange = Attached(named, spec, **options)
    if broadcast:
        exchange.broadcast([*module.parameters(), *module.buffers()])
    exchange.hook(optimizer)
    return exchange


class Attached(GradientExchange):
    """What attach() returns."""

    _settled_by = "attach() was called"
    _passes = 0  # scopes of no_sync() that live
    _in_step = False

    def __init__(self, named: Named, spec: str, **options: Any) -> None:
        super().__init__(named, spec, **options)
        self._hooks: List[Any] = []
        self._ready_as: Dict[int, Tuple[torch.Tensor, int]] = {}  # .grad as it was, of each
        self._added: Set[int] = set()  # what passes inside no_sync() have reached

    def hook(self, optimizer: Optional[torch.optim.Optimizer]) -> None:
        """Called by attach()."""
        if self._reducer is None:
            return
        for parameter in [p for _, p in self._exchanged]:
            register: Any = parameter.register_post_accumulate_grad_hook
            self._hooks.append(register(self._ready))
        if optimizer is not None:
            self._hooks.append(optimizer.register_step_pre_hook(self._before_step))

    def broadcast(self, tensors: List[torch.Tensor]) -> None:
        """Those of rank 0, on all ranks. Collective, between steps."""
        if self._transport is None:
            return
        with torch.no_grad():
            for tensor in tensors:
                # A copy: one element counts as contiguous with any stride, and is no view of bytes then.
                flat = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1)
                if flat.numel() > 0:
                    # Buffers may stay on the CPU, of which a group of NCCL's takes nothing.
                    raw = flat.view(torch.uint8).to(self._work.device)
                    if self._work.waits:
                        self._transport.broadcast(raw.numpy(), 0)
                    else:  # from Python gradwire's carries a Reducer's memory alone
                        group = self._process_group
                        dist.broadcast(raw, dist.get_global_rank(group, 0), group=group)
                    tensor.copy_(raw.view(tensor.dtype).view_as(tensor))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward passes only add to .grad; the first one after it exchanges the sums, also of
        parameters that it does not reach."""
        if self._in_step:
            raise InvalidArgument("no_sync: gradients have left already, wait() must come first")
        self._passes += 1
        try:
            yield
        finally:
            self._passes -= 1

    def wait(self) -> bool:
        """Blocks until all gradients have arrived, and writes the means to .grad.

        Returns:
            Whether the step was committed. False where a gradient of some rank was not finite and
            on_nonfinite is 'skip': then all of .grad is NaN, on all ranks. On a GPU it waits for
            nothing and returns True: .grad is NaN there too, but no host knows of it.

        Raises:
            NonFiniteGradient: on all ranks; .grad is NaN. The next step goes on; on a GPU, where it
                may be raised steps later, once synchronize() has been called.
            InvalidArgument: a gradient was changed behind backward (clip what wait() has written);
                or no backward was. Or a parameter has no gradient, and unused is 'error': then the
                group is finished.
            TransportError: a rank was lost.
        """
        if self._reducer is None:
            return True
        if not self._in_step:
            raise InvalidArgument("wait: no gradient has appeared since the last step")
        self._check_unchanged()
        try:
            for _, parameter in self._exchanged:
                if id(parameter) in self._added - set(self._ready_as) and parameter.grad is not None:
                    self._hand_over(parameter, parameter.grad)
            if self._uncompressed is not None:
                self._uncompressed.check_used(self._unused)
                self._uncompressed.give_flag(self._reducer, self._work)
            with self._work.behind_backward():
                committed = self._reducer.wait() is not False  # None: nobody knows, means may be NaN
        except (NonFiniteGradient, TransportError) as error:
            self._work.before_caller()
            self._end_step()
            self._fill_with_nan()
            if self._auto is not None and isinstance(error, NonFiniteGradient):
                self._auto.end_step(False)  # on all ranks: a step, but one that was left out
            raise
        except InvalidArgument as error:
            self._tell_peers(error)
            raise
        self._end_step()
        started = time.perf_counter()
        if committed:
            try:
                with self._work.behind_backward():
                    self._take_means()
            finally:
                self._work.before_caller()
        else:
            self._fill_with_nan()
        self.seconds += time.perf_counter() - started
        if self._auto is not None:
            self._auto.end_step(committed)
        return committed

    def abandon(self) -> None:
        """Drops the step in progress, where backward has raised. Collective.

        Nothing is committed on any rank, unless all gradients of all of them had left already. The
        next backward begins a new step. On a GPU it waits for that.

        Raises:
            TransportError: a rank was lost.
        """
        if self._reducer is None or not self._in_step:
            return
        for i, (_, parameter) in enumerate(self._named):
            if id(parameter) not in self._ready_as:  # not finite on this rank, so that none commits
                with self._work.behind_backward():
                    none = torch.full((parameter.numel(),), float("nan"), device=self._work.device)
                    self._reducer.give_from([i], none.data_ptr(), "float32")
        self._end_step()
        with contextlib.suppress(NonFiniteGradient), self._work.behind_backward():
            self._reducer.wait()
        self._work.before_caller()
        with contextlib.suppress(NonFiniteGradient):
            self._reducer.synchronize()
        self._fill_with_nan()
        if self._auto is not None:
            self._auto.forget_step()

    def detach(self) -> None:
        """Removes the hooks: gradients are the rank's own again. Then close() leaves the group."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _before_step(self, _: Any, args: Tuple[Any, ...], named: Dict[str, Any]) -> Any:
        # args begin with the optimizer itself. A closure runs backward: what it left is waited for.
        closure = args[1] if len(args) > 1 else named.get("closure")
        if closure is None:
            self._wait_if_begun()
            return None
        waiting = self._with_wait(closure)
        if len(args) > 1:
            return (args[0], waiting, *args[2:]), named
        return args, {**named, "closure": waiting}

    def _with_wait(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def waiting() -> Any:
            result = closure()
            self._wait_if_begun()
            return result

        return waiting

    def _wait_if_begun(self) -> None:
        if self._in_step:
            self.wait()

    def _end_step(self) -> None:
        self._in_step = False
        self._ready_as.clear()
        self._added.clear()
        if self._uncompressed is not None:
            self._uncompressed.forget()

    def _check_unchanged(self) -> None:
        for name, parameter in self._exchanged:
            if id(parameter) not in self._ready_as:
                continue
            gradient, version = self._ready_as[id(parameter)]
            if parameter.grad is not gradient or gradient._version != version:
                raise InvalidArgument(
                    f"wait: the gradient of '{name}' was changed or removed behind backward, which has "
                    "handed it over already; expected clipping and zero_grad() behind wait()"
                )

    def _ready(self, parameter: torch.Tensor) -> None:
        if self._passes > 0:
            self._added.add(id(parameter))
            return
        if not self._in_step:
            self._begin_plainly()
            self._in_step = True
        gradient = parameter.grad
        assert gradient is not None
        self._hand_over(parameter, gradient)

    def _hand_over(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        assert self._reducer is not None
        started = time.perf_counter()
        key, name = id(parameter), self._names[id(parameter)]
        if gradient.layout != torch.strided:
            raise InvalidArgument(f"parameter '{name}': its gradient is {gradient.layout}, {HOW_TO_BE_DENSE}")
        if key in self._ready_as:
            raise InvalidArgument(
                f"parameter '{name}': its gradient has left already; expected wait() (or "
                "abandon(), where a backward has raised) before the next backward, or no_sync() around "
                "all passes but the last"
            )
        if parameter.dtype not in DTYPES:
            assert self._uncompressed is not None
            self._uncompressed.sees(gradient)
            self._ready_as[key] = gradient, gradient._version
            return
        i = self._ids[key]
        dense = gradient.contiguous()
        self._work.use(dense)
        if self._auto is not None:
            self._auto.sees([i], dense)
        with self._work.behind_backward():
            self._reducer.give_from(
                [i],
                dense.data_ptr(),
                DTYPES[dense.dtype],
                1.0 / self._scale.value,
                self._scale.address,
            )
        self._ready_as[key] = gradient, gradient._version
        self.seconds += time.perf_counter() - started

    @torch.no_grad()
    def _take_means(self) -> None:
        assert self._reducer is not None
        if self._uncompressed is not None:
            self._uncompressed.average_all()
        for i, (_, parameter) in enumerate(self._named):
            gradient = parameter.grad
            direct = gradient is not None and gradient.is_contiguous()
            mean = gradient if direct else torch.empty_like(
                parameter, memory_format=torch.contiguous_format
            )
            assert mean is not None
            self._reducer.write_means(
                [i], mean.data_ptr(), DTYPES[mean.dtype], self._scale.value, self._scale.address
            )
            if self._auto is not None:
                self._auto.sees_means([i], mean)
            if gradient is None:
                # All ranks decide alike: an optimizer may leave out a parameter without gradient.
                if not parameter.requires_grad:
                    continue  # frozen since
                if not self._reducer.unused_everywhere(i) or bool(mean.any()):
                    parameter.grad = torch.empty_like(parameter).copy_(mean)
            elif not direct:
                gradient.copy_(mean)

    def _fill_with_nan(self) -> None:
        for _, parameter in self._exchanged:
            if parameter.grad is not None:
                parameter.grad.fill_(float("nan"))
