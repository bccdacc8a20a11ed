"""The training loop of one rank: forward, backward with its exchange, optimizer, evaluation."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Dict, List, Optional, Tuple

import numpy
import torch
import torch.distributed as dist

from gradwire.bench.torch_trainer import group, methods, optimizers, workloads
from gradwire.bench.torch_trainer.events import Events, Meter, interface_bytes
from gradwire.errors import InvalidArgument

_USUAL_STEPS = 24  # where there are no examples to count


def run(options: Any, events: Events) -> None:
    """Trains, or with the transport in_process only looks at what is asked for."""
    torch.set_num_threads(options.threads)
    _check_device(options)
    workload = workloads.make(options)
    shapes = [(name, tuple(p.shape)) for name, p in workload.model.named_parameters()]
    optimizers.make(options, workload.model)
    chosen = [methods.find(each, options.exchange) for each in options.method.split(";")]
    for method, name in zip(chosen, options.method.split(";")):
        method.check(shapes, options.device)
        if getattr(method, "moves_parameters", False) and not workload.moves_parameters:
            raise InvalidArgument(
                f"method '{name}': averages parameters, and --workload {options.workload} has none "
                "that move, expected a method that averages gradients"
            )
    if options.transport == "in_process":
        events.say("start", pid=os.getpid(), method=options.method)
        events.say("done", steps=0)
        return
    with group.process_group(options):
        _Worker(options, workload, chosen[0], events).train()


class _Worker:
    def __init__(self, options: Any, workload: Any, method: Any, events: Events) -> None:
        self._options = options
        self._workload = workload
        self._method = method
        self._events = events
        self._meter = Meter()
        self._model = torch.nn.parallel.DistributedDataParallel(
            workload.model,
            device_ids=[_device_number(options)] if options.device == "cuda" else None,
            gradient_as_bucket_view=True,
            **method.ddp_options,
        )
        moves = workload.moves_parameters  # 'auto' looks for the optimizer when it is installed
        self._optimizer = optimizers.make(options, workload.model) if moves else None
        self._meter.seconds += method.install(self._model, options.timeout_s, options.seed)
        self._last_gradient = 0.0
        for parameter in workload.model.parameters():
            parameter.register_hook(self._gradient_appears)
        self._seconds_to_target: Optional[float] = None
        self._accuracy: Optional[float] = None
        self._epochs = 0

    def train(self) -> None:
        options, examples = self._options, self._workload.train_examples
        per_epoch = examples and examples // (options.world_size * options.batch_size)
        if per_epoch == 0:
            raise InvalidArgument(
                f"--batch-size: {options.batch_size} on each of {options.world_size} workers is more "
                f"than the {examples} training examples"
            )
        limit = (per_epoch or 0) * options.epochs or options.max_steps or _USUAL_STEPS
        limit = min(limit, options.max_steps or limit)
        self._say_start(per_epoch)
        for step in range(1, limit + 1):
            epoch = (step - 1) // (per_epoch or limit)
            self._step(step, epoch, per_epoch)
            ends = step == limit or step % (per_epoch or limit) == 0
            due = ends or (options.eval_every > 0 and step % options.eval_every == 0)
            stops = due and self._evaluate(step, epoch)
            if ends or stops:
                self._end_epoch(epoch, ends and step % (per_epoch or limit) == 0)
            if stops:
                break
        self._finish()

    def _step(self, step: int, epoch: int, per_epoch: Optional[int]) -> None:
        options = self._options
        rows = self._batch(step - 1, epoch, per_epoch) if per_epoch else torch.empty(0)
        sent = interface_bytes(options.interface)
        started = time.perf_counter()
        for parameter in self._workload.model.parameters():
            parameter.grad = None
        loss = self._workload.loss(self._model, rows)
        forward = time.perf_counter()
        loss.backward()
        self._wait_for_device()
        backward = time.perf_counter()
        if self._optimizer is not None:
            warm = min(1.0, step / max(1, options.warmup_steps))
            self._optimizer.step(options.learning_rate * warm)
        self._method.after_step(self._workload.model)
        self._wait_for_device()
        ended = time.perf_counter()
        sent_after = interface_bytes(options.interface)
        exposed = max(0.0, backward - self._last_gradient)
        told: Dict[str, Optional[float]] = {
            "step_ms": 1e3 * (ended - started),
            "compute_ms": 1e3 * (ended - started - exposed),
            "exposed_exchange_ms": 1e3 * exposed,
            "backward_ms": 1e3 * (backward - forward),
            "interface_bytes_sent": (
                None if sent is None or sent_after is None else float(sent_after - sent)
            ),
        }
        told.update(self._method.step_counts())
        self._meter.add(told)
        last = float(loss.detach())
        self._events.say(
            "step", step=step, epoch=epoch + 1, seconds=self._meter.seconds, loss=last, **told,
        )  # fmt: skip
        self._say_timeline(step, [started, forward, max(forward, self._last_gradient), backward, ended])
        for decision in self._method.decisions(last):
            self._events.say("decision", **decision)

    def _say_timeline(self, step: int, moments: List[float]) -> None:
        """As the C++ trainer does; backward ends where what it waits for has come."""
        us = [round(1e6 * (moment - moments[0])) for moment in moments]
        names = ("forward", "backward", "wait", "update")
        caller = [[name, *pair] for name, pair in zip(names, zip(us, us[1:])) if pair[1] > pair[0]]
        buckets = self._method.buckets_us(us[3])
        self._events.say("timeline", step=step, caller_us=caller, buckets_us=buckets)

    def _gradient_appears(self, _: torch.Tensor) -> None:
        self._last_gradient = time.perf_counter()

    def _wait_for_device(self) -> None:
        if self._options.device == "cuda":
            torch.cuda.synchronize()

    def _batch(self, step: int, epoch: int, per_epoch: int) -> torch.Tensor:
        """This rank's rows: the same for every method, by seed, epoch and step."""
        options = self._options
        # RandomState's stream is frozen by NumPy's compatibility policy.
        stream = numpy.random.RandomState((options.seed * 7919 + epoch) % (1 << 32))
        order = stream.permutation(self._workload.train_examples)
        begin = ((step % per_epoch) * options.world_size + options.rank) * options.batch_size
        rows = torch.from_numpy(order[begin : begin + options.batch_size])
        return rows.to(options.device)

    def _evaluate(self, step: int, epoch: int) -> bool:
        """Of rank 0's events: accuracy over all ranks' shares. Whether that ends the training."""
        options = self._options
        if not self._workload.moves_parameters:
            return False
        found = self._workload.evaluate(options.rank, options.world_size).to(options.device)
        dist.all_reduce(found)
        loss, right, count = found.tolist()
        self._accuracy = right / count
        seconds = self._meter.seconds
        at: Dict[str, Any] = dict(step=step, epoch=epoch + 1, seconds=seconds)
        self._events.say("evaluate", **at, accuracy=self._accuracy, loss=loss / count)
        reached = 0 < options.target_accuracy <= self._accuracy
        if reached and self._seconds_to_target is None:
            self._seconds_to_target = seconds
            self._events.say("target", **at, accuracy=self._accuracy)
        return bool(reached and options.stop_at_target)

    def _end_epoch(self, epoch: int, complete: bool) -> None:
        self._epochs += int(complete)
        self._method.settle(self._workload.model)
        mine = self._hash()
        everyone: List[Any] = [None] * self._options.world_size
        dist.all_gather_object(everyone, mine)
        self._events.say(
            "epoch", epoch=epoch + 1, seconds=self._meter.seconds, parameter_hash=mine,
            hashes_equal=all(other == mine for other in everyone),
        )  # fmt: skip

    def _hash(self) -> str:
        """Of all parameters, or of the averaged gradients where those are all there is."""
        digest = hashlib.sha256()
        for parameter in self._workload.model.parameters():
            value = parameter.detach() if self._workload.moves_parameters else parameter.grad
            digest.update(value.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _say_start(self, per_epoch: Optional[int]) -> None:
        options, workload = self._options, self._workload
        method, peer = methods.shown(options.method, self._method)
        self._events.say(
            "start", pid=os.getpid(), world_size=options.world_size, threads=options.threads,
            transport=options.transport, method=method, peer=peer, exchange=self._method.exchange,
            optimizer=options.optimizer if workload.moves_parameters else None,
            learning_rate=options.learning_rate if workload.moves_parameters else None,
            parameters=sum(p.numel() for p in workload.model.parameters()),
            train_examples=workload.train_examples, test_examples=workload.test_examples,
            steps_per_epoch=per_epoch, interface=options.interface, device=options.device,
            workload=options.workload, torch=torch.__version__,
        )  # fmt: skip

    def _finish(self) -> None:
        # Nobody leaves while another still exchanges.
        dist.barrier()
        self._method.close()
        self._events.say(
            "done", steps=len(self._meter.steps), epochs=self._epochs, seconds=self._meter.seconds,
            final_accuracy=self._accuracy, seconds_to_target=self._seconds_to_target,
            skipped_steps=0, **self._meter.means(),
        )  # fmt: skip


def _check_device(options: Any) -> None:
    if options.device == "cuda":
        count = torch.cuda.device_count()
        if count < options.world_size:
            built: Any = torch.version
            why = "" if built.cuda else ", which was built without CUDA,"
            raise InvalidArgument(
                f"--device cuda: this machine has {count} GPU(s) that torch {torch.__version__}{why} "
                f"can use, expected one for each of {options.world_size} workers"
            )


def _device_number(options: Any) -> int:
    return int(options.rank)


__all__: Tuple[str, ...] = ("run",)
