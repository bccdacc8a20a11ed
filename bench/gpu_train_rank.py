"""One rank of bench/gpu_train.py: all methods in turn, each with a model of its own, a slice of steps each.

What it tells its parent, through a pipe of rank 0: dicts of 'event' ('made', 'begin', 'slice', 'saved',
'held_out', 'end') and what belongs to it.
"""

import json
import os
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire.torch
from gradwire.bench.torch_trainer import data, workloads
from gradwire.whole_files import replacing

LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.01
# NCCL takes ranks on one GPU for machines of their own (NCCL_HOSTID), which talk over sockets.
NCCL = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",
    "CUDA_MODULE_LOADING": "EAGER",
}


def file_name(method):
    return "".join(c if c.isalnum() else "_" for c in method)


class Method:
    """A model, its optimizer and what carries its gradients: 'ddp', or SPEC or SPEC@EXCHANGE of gradwire."""

    def __init__(self, name, asked, rows):
        self.name, self.step = name, 0
        torch.manual_seed(asked["seed"])
        model = workloads.ByteModel(asked["width"], asked["layers"])
        self.workload = workloads.Training(model, rows, asked["device"])
        self.workload.test_examples = min(asked["held_out"], self.workload.test_examples)
        self.ddp = DistributedDataParallel(self.workload.model, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.AdamW(self.ddp.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        self.exchange = None
        if name != "ddp":
            spec, _, exchange = name.partition("@")
            how = {"exchange": exchange} if exchange else {}
            self.exchange = gradwire.torch.register(self.ddp, spec, timeout=asked["timeout_s"], **how)

    def parameters(self):
        return sum(p.numel() for p in self.ddp.parameters())

    def files(self, folder, rank):
        """What all ranks have the same, written by rank 0, and this rank's own."""
        name = file_name(self.name)
        return Path(folder) / f"{name}.pt", Path(folder) / f"{name}-{rank}.pt"

    def save(self, folder, rank):
        whole, own = self.files(folder, rank)
        if rank == 0:
            torch.save(
                {"model": self.workload.model.state_dict(), "optimizer": self.optimizer.state_dict()},
                f"{whole}.new",
            )
        kept = {"step": self.step, "exchange": None if self.exchange is None else self.exchange.state_dict()}
        torch.save(kept, f"{own}.new")

    def put_in_place(self, folder, rank):
        """Behind save() on all ranks: so that the files are of one step."""
        whole, own = self.files(folder, rank)
        if rank == 0:
            os.replace(f"{whole}.new", whole)
        os.replace(f"{own}.new", own)

    def load(self, folder, rank, step):
        whole, own = self.files(folder, rank)
        saved, kept = torch.load(whole, weights_only=False), torch.load(own, weights_only=False)
        if kept["step"] != step:
            raise RuntimeError(f"{own}: is of step {kept['step']}, expected {step}")
        self.workload.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.exchange is not None:
            self.exchange.load_state_dict(kept["exchange"])
        self.step = step

    def one_step(self, asked, rank, order):
        """Its loss on this rank, and the milliseconds it took."""
        size = asked["batch_size"]
        begin = (self.step * asked["ranks"] + rank) * size
        rows = order[torch.arange(begin, begin + size) % len(order)]
        began = time.perf_counter()
        self.optimizer.zero_grad()
        loss = self.workload.loss(self.ddp, rows)
        loss.backward()
        self.optimizer.step()
        value = loss.item()
        if self.exchange is not None:
            self.exchange.note_loss(value)
        if asked["device"] == "cuda":
            torch.cuda.synchronize()
        self.step += 1
        return value, 1e3 * (time.perf_counter() - began)


class Rank:
    def __init__(self, rank, asked, steps, left_s, pipe):
        self.rank, self.asked, self.pipe = rank, asked, pipe
        self.end = time.monotonic() + left_s
        self.carrier = "cuda" if asked["group"] == "nccl" else "cpu"
        self.steps = steps  # that each method has come to in an earlier run
        self.saved_at = time.monotonic()

    def say(self, event, **facts):
        if self.rank == 0:
            self.pipe.send({"event": event, **facts})

    def over_ranks(self, values, how):
        """Sums or largest values of all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.carrier)
        dist.all_reduce(tensor, op=how)
        return tensor.tolist()

    def largest_everywhere(self, value):
        return self.over_ranks([value], dist.ReduceOp.MAX)[0]

    def make(self):
        rows = data.text(None)
        methods = []
        for name in self.asked["methods"]:
            self.say("begin", method=name)
            method = Method(name, self.asked, rows)
            if self.steps.get(name):
                method.load(self.asked["state"], self.rank, self.steps[name])
            methods.append(method)
            self.say("made", method=name, parameters=method.parameters(), step=method.step)
        generator = torch.Generator().manual_seed(self.asked["seed"])
        self.order = torch.randperm(methods[0].workload.train_examples, generator=generator)
        return methods

    def slice(self, method, count):
        losses, times, specs = [], [], []
        for _ in range(count):
            self.say(
                "begin", method=method.name
            )  # of a step: so that a slow one is not taken for one that hangs
            loss, ms = method.one_step(self.asked, self.rank, self.order)
            losses.append(loss)
            times.append(ms)
            specs.append("" if method.exchange is None else method.exchange.spec)
        ranks = self.asked["ranks"]
        mean = [loss / ranks for loss in self.over_ranks(losses, dist.ReduceOp.SUM)]
        slowest = self.over_ranks(times, dist.ReduceOp.MAX)
        self.say("slice", method=method.name, step=method.step, losses=mean, ms=slowest, specs=specs)

    def save(self, methods):
        began = time.monotonic()
        for method in methods:
            method.save(self.asked["state"], self.rank)
        dist.barrier()
        for method in methods:
            method.put_in_place(self.asked["state"], self.rank)
        dist.barrier()
        if self.rank == 0:
            with replacing(Path(self.asked["state"]) / "steps.json") as out:
                out.write(json.dumps({m.name: m.step for m in methods}).encode())
        self.saved_at = time.monotonic()
        self.say("saved", steps={m.name: m.step for m in methods}, seconds=self.saved_at - began)
        return self.saved_at - began

    def evaluate(self, methods):
        for method in methods:
            self.say("begin", method=method.name)
            loss, right, answers = self.over_ranks(
                method.workload.evaluate(self.rank, self.asked["ranks"]).tolist(), dist.ReduceOp.SUM
            )
            decisions = [] if method.exchange is None else method.exchange.decisions()
            self.say(
                "held_out",
                method=method.name,
                step=method.step,
                loss=loss / answers,
                accuracy=right / answers,
                decisions=decisions,
            )

    def run(self):
        asked = self.asked
        methods = self.make()
        round_s = save_s = 0.0
        while min(method.step for method in methods) < asked["steps"]:
            # All ranks go by the same clock: the least of what they have left.
            left = -self.largest_everywhere(time.monotonic() - self.end)
            if left < 1.5 * round_s + 1.5 * save_s + asked["reserve_s"]:
                break
            began = time.monotonic()
            least = min(method.step for method in methods)
            for method in (each for each in methods if each.step == least):
                self.slice(method, min(asked["slice"], asked["steps"] - least))
            round_s = self.largest_everywhere(time.monotonic() - began)
            if self.largest_everywhere(time.monotonic() - self.saved_at) > asked["save_every_s"]:
                save_s = self.largest_everywhere(self.save(methods))
        self.evaluate(methods)
        self.save(methods)
        for method in methods:
            if method.exchange is not None:
                method.exchange.close()
        self.say("end")


def rank_main(rank, asked, steps, left_s, meet, log, pipe):
    """What a process of it runs. Never raises: the log has why it ended, and its exit status is 1."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(GLOO_SOCKET_IFNAME="lo")
    if asked["device"] == "cuda":
        os.environ.update(NCCL, NCCL_HOSTID=f"rank{rank}")
        torch.cuda.set_device(0)
        torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // asked["ranks"]))
    try:
        dist.init_process_group(
            asked["group"], init_method=f"file://{meet}", rank=rank, world_size=asked["ranks"]
        )
        Rank(rank, asked, steps, left_s, pipe).run()
        dist.barrier()
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)  # other ranks may be gone, and what waits for them would wait for long
