"""Stand-ins for what gradwire.torch has on a GPU: the GPU is emulated, ranks are threads, tensors are
the CPU's. Replaced are how work is ordered and timed (ordering.OnGpu, but for torch's own streams and
events), how many ranks there are, where ranks meet, and that a group is there."""

import contextlib
import threading
import time
import types
import uuid

import torch
from check_reducer import RANKS
from gpu_arrays import GpuArray

import gradwire
from gradwire.torch import exchange, ordering

SHAPES = [(40, 30), (30,), (64, 50), (1,)]


class TimingEvent:
    """Of the emulator's queue, which runs what it is given at once: what is in front of it has run."""

    waits = threading.local()  # of this thread

    def record(self):
        self.recorded = time.perf_counter()

    def synchronize(self):
        TimingEvent.waits.count = getattr(TimingEvent.waits, "count", 0) + 1

    def elapsed_time(self, end):
        """In milliseconds, as torch's."""
        return (end.recorded - self.recorded) * 1e3


class OnEmulatedGpu(ordering.OnGpu):
    def __init__(self, device):
        ordering.OnCpu.__init__(self, device)
        self._stream = types.SimpleNamespace(cuda_stream=7)
        self.entered = 0

    def future(self):
        return torch.futures.Future()

    @contextlib.contextmanager
    def _inside(self):
        self.entered += 1
        yield

    def before_caller(self):
        pass

    def use(self, tensor):
        pass

    @property
    def gpu(self):
        return 0

    def gpu_name(self):
        return "emulated GPU"

    def handle(self):
        return self._stream.cuda_stream

    def array(self, tensor):
        return GpuArray(tensor.numpy())

    def mark(self):
        event = TimingEvent()
        event.record()
        return event


class Groups:
    """What a rank's exchange is made of, on one side."""

    def __init__(self, monkeypatch):
        self.name, self.cpu = None, None
        self.bits_per_second = 0.0  # of the line between GPUs; 0: as fast as it goes
        monkeypatch.setattr(exchange, "check_group", lambda group: None)
        monkeypatch.setattr(exchange, "dist", types.SimpleNamespace(
            get_world_size=lambda group: RANKS, group=types.SimpleNamespace(WORLD=None)))
        monkeypatch.setattr(exchange, "join", self.join)
        monkeypatch.setattr(exchange, "work_on", self.work_on)

    def side(self, name):
        self.name = None if name == "cpu" else uuid.uuid4().hex
        self.cpu = gradwire.make_in_process_group(RANKS)

    def join(self, rank, carrier, timeout, device):
        if self.name is None:
            return self.cpu[rank]
        return gradwire.make_transport("nccl", rank=rank, world_size=RANKS, store=self.name,
                                       bits_per_second=self.bits_per_second)  # fmt: skip

    def work_on(self, device):
        return ordering.OnCpu(device) if self.name is None else OnEmulatedGpu(device)


class Model(torch.nn.Module):
    """Gradients are the factors of the loss."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.ps = torch.nn.ParameterList(torch.ones(shape, dtype=dtype) for shape in SHAPES)

    def forward(self, factors):
        return sum((p * c).sum() for p, c in zip(self.ps, factors))


def factors(rank, step, dtype=torch.float32, bad=False):
    generator = torch.Generator().manual_seed(1000 * rank + step + 1)
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    if bad and rank == 1:
        made[2][3, 4] = float("inf")
    return made


def raw(tensors):
    return [None if t is None else t.detach().float().numpy().tobytes() for t in tensors]


def gradients(model):
    return raw([p.grad for p in model.parameters()])
