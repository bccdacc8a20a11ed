"""Methods by their text: specs of gradwire, and the peers they are compared with."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Tuple

import gradwire
from gradwire.bench.torch_trainer import peers

# gradwire's own, for memory of that device; torch's group there is gloo's or NCCL's as well.
_CARRIERS = {"cpu": "gloo", "cuda": "nccl"}


class Gradwire:
    """A spec, through gradwire's communication hook: 'int4', or with its exchange 'int4@two_shot'."""

    peer = False

    def __init__(self, method: str, exchange: str) -> None:
        self.spec, at, own = method.partition("@")
        if at and not own:
            raise gradwire.InvalidArgument(
                f"method '{method}': no exchange behind '@', expected as in int4@two_shot"
            )
        self._asked = own or exchange
        self._device = "cpu"
        self._hook: Any = None
        self._decided = 0  # that have been told

    @property
    def ddp_options(self) -> Dict[str, Any]:
        """Of DistributedDataParallel: its defaults."""
        return {}

    def check(self, shapes: Any, device: str) -> None:
        self._device = device
        nccl = next(row for row in gradwire.transports() if row.name == "nccl")
        reason = gradwire.build_info()["cuda_unavailable_reason"] or nccl.unavailable_reason
        if device == "cuda" and reason:
            raise gradwire.InvalidArgument(
                f"method '{self.spec}': gradwire cannot be used with --device cuda here: {reason}; "
                f"expected a peer: {', '.join(peers.NAMES)}"
            )
        if self._is_auto():
            from gradwire.torch.auto import parse_auto

            if self._asked != "auto":
                raise gradwire.InvalidArgument(
                    f"method '{self.spec}': chooses the exchange itself, expected no '{self._asked}'"
                )
            parse_auto(self.spec)
            return
        gradwire.make_plan(shapes, self.spec, exchange=self._asked)

    def _is_auto(self) -> bool:
        return self.spec.partition(":")[0] == "auto"

    def install(self, ddp: Any, timeout_s: float, seed: int) -> float:
        """Returns the seconds of it that belong to the training: what 'auto' probes."""
        import gradwire.torch as gradwire_torch

        began = time.perf_counter()
        self._hook = gradwire_torch.register(
            ddp,
            self.spec,
            carrier=_CARRIERS[self._device],
            timeout=timeout_s,
            exchange=self._asked,
            seed=seed,
        )
        return time.perf_counter() - began if self._is_auto() else 0.0

    @property
    def exchange(self) -> str:
        """What the plan has: 'auto' stands for one of them, in each bucket."""
        if self._hook is None:
            return self._asked
        found = {str(row.get("exchange", self._asked)) for row in self._hook.plan.layout}
        return "+".join(sorted(found))

    def step_counts(self) -> Dict[str, Optional[float]]:
        stats = self._hook.stats()
        on_cpu = self._device == "cpu"  # elsewhere the times are those of enqueueing
        return {
            "bytes_sent": stats.get("bytes_sent"),
            "compression_ms": _ms(stats.get("codec_us")) if on_cpu else None,
            "transfer_ms": _ms(stats.get("transfer_us")) if on_cpu else None,
        }

    def buckets_us(self, waited_us: int) -> List[List[int]]:
        """Of the last step, by bucket: begin and end of its compression and of its exchange, what of
        both was coding, its stream; microseconds on a clock on which waiting ended at ``waited_us``."""
        reducer = self._hook._reducer  # None: one rank, which exchanges nothing
        times = reducer.last_step() if reducer is not None and self._device == "cpu" else {}
        shift = waited_us - times.get("wait_end_us", 0)
        moments = ("begin_us", "compressed_us", "exchange_us", "end_us")
        return [
            [*(bucket[name] + shift for name in moments), bucket["codec_us"], bucket["stream"]]
            for bucket in times.get("buckets", [])
        ]

    def after_step(self, model: Any) -> None:
        """Nothing: the hook did all."""

    def decisions(self, loss: float) -> List[Dict[str, Any]]:
        """What 'auto' has decided since the last call; it is told of the step's loss."""
        self._hook.note_loss(loss)
        everything = self._hook.decisions()
        fresh, self._decided = everything[self._decided :], len(everything)
        return list(fresh)

    def settle(self, model: Any) -> None:
        """All ranks have the same parameters; a GPU tells of gradients that were not finite."""
        self._hook.synchronize()

    def close(self) -> None:
        if self._hook is not None:
            self._hook.close()


def find(method: str, exchange: str) -> Any:
    """A Gradwire or a peers.Peer.

    Raises:
        InvalidArgument: the name is of neither; the message lists both.
    """
    if method.startswith("ddp"):
        return peers.find(method)
    spec = method.partition("@")[0]
    try:
        if spec.partition(":")[0] != "auto":
            gradwire.parse_spec(spec)
    except gradwire.InvalidArgument as error:
        raise gradwire.InvalidArgument(f"{error}; peers: {', '.join(peers.NAMES)}") from None
    return Gradwire(method, exchange)


def shown(method: str, found: Any) -> Tuple[str, bool]:
    return method, bool(found.peer)


def _ms(microseconds: Optional[float]) -> Optional[float]:
    return None if microseconds is None else microseconds / 1e3
