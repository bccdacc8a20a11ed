"""gradwire.torch's hooks on gradients of a GPU, beside the same on the CPU: means, residuals and
checkpoints bit for bit. The GPU is emulated, ranks are threads, tensors are the CPU's, and four things
are replaced: how work is ordered (ordering.OnGpu, but for torch's own streams), how many ranks there
are, where ranks meet, and that a group is there. On a GPU bench/gpu_hook.py does it with processes."""

import importlib
import types

import pytest
from check_reducer import run_ranks
from gpu_arrays import EMULATED

torch = pytest.importorskip("torch", reason="torch is an optional extra")

from emulated_torch import SHAPES, Groups, Model, OnEmulatedGpu, factors, gradients, raw  # noqa: E402

import gradwire  # noqa: E402
import gradwire.torch as gt  # noqa: E402
from gradwire.torch import ordering  # noqa: E402

pytestmark = pytest.mark.skipif(not EMULATED, reason="ranks that are threads are emulated")

SPECS = ["none", "topk:10%", "int4,stochastic", "topk:10%,int8,momentum=0.8"]


@pytest.fixture
def groups(monkeypatch):
    return Groups(monkeypatch)


def scaler_of(side):
    """Its scale is a tensor on the device of the loss."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
    scaler.scale(torch.zeros(1))
    return scaler


def both(groups, body):
    """body(side, rank) of all ranks on the CPU, then on the GPU."""
    seen = {}
    for side in ("cpu", "gpu"):
        groups.side(side)
        seen[side] = run_ranks(lambda rank, side=side: body(side, rank))
    return seen["cpu"], seen["gpu"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scaled", [False, True])
def test_attach_has_the_bits_of_the_cpu(groups, spec, dtype, scaled):
    def body(side, rank):
        scaler = scaler_of(side) if scaled else False
        model = Model(dtype)
        made = gt.attach(model, spec, process_group=rank, broadcast=False, scaler=scaler,
                         on_nonfinite="skip", exchange="gather", seed=5)  # fmt: skip
        seen = []
        for step in range(4):
            model.zero_grad()
            loss = model(factors(rank, step, dtype, bad=step == 1))
            (scaler.scale(loss) if scaled else loss).backward()
            assert made.wait() is (side == "gpu" or step != 1)
            seen.append(gradients(model))
            seen.append(raw([made.residual(f"ps.{i}") for i in range(len(SHAPES))]))
            seen.append(raw([made.state_dict()["reducer"]]))
            finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
            assert finite == (step != 1)
        made.synchronize()
        assert ("committed" in made.stats()) == (side == "cpu")
        made.close()
        return seen

    wanted, seen = both(groups, body)
    assert seen == wanted


@pytest.mark.parametrize("spec", ["none", "topk:10%,int8"])
def test_the_hook_of_ddp_has_the_bits_of_the_cpu(groups, group_of_one, monkeypatch, spec):
    # Each thread's DDP is of a group of one; the hook is what their gradients meet in.
    def body(side, rank):
        model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=0.01)
        made = gt.register(model, spec, process_group=rank, scaler=False, on_nonfinite="skip",
                           exchange="gather", exempt_1d="never", seed=5)  # fmt: skip
        seen = []
        for step in range(5):
            if step == 3:
                made.set_spec("int4" if spec != "none" else "topk:5%")
            model.zero_grad()
            model(factors(rank, step, bad=step == 1)).backward()
            seen.append(gradients(model))
        seen.append(raw([made.residual(f"ps.{i}") for i in range(len(SHAPES))]))
        assert made.plan.buckets > 1
        made.synchronize()
        made.close()
        return seen

    wanted, seen = both(groups, body)
    assert seen == wanted


def test_a_checkpoint_goes_to_the_gpu_and_back(groups):
    states = {}

    def train(made, model, rank, begin, end):
        for step in range(begin, end):
            model.zero_grad()
            model(factors(rank, step)).backward()
            made.wait()
        return made.state_dict()

    def body(side, rank):
        model = Model()
        made = gt.attach(model, "topk:10%", process_group=rank, broadcast=False, scaler=False)
        if side == "cpu":
            states[rank] = train(made, model, rank, 0, 2)
        else:
            train(made, model, rank, 50, 51)
            made.load_state_dict(states)
        end = train(made, model, rank, 2, 4)
        made.close()
        return raw([end["reducer"]]), gradients(model)

    wanted, seen = both(groups, body)
    assert seen == wanted


def test_an_error_is_raised_until_all_have_synchronized(groups):
    groups.side("gpu")

    def body(rank):
        model = Model()
        made = gt.attach(model, "int8", process_group=rank, broadcast=False, scaler=False)
        model(factors(rank, 0, bad=True)).backward()
        with pytest.raises(gradwire.NonFiniteGradient):
            made.wait()
        assert all(bool(p.grad.isnan().all()) for p in model.parameters())
        with pytest.raises(gradwire.NonFiniteGradient):
            made.synchronize()
        model.zero_grad()
        model(factors(rank, 1)).backward()
        assert made.wait()
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters())
        # What a step that was dropped leaves is nothing.
        before = raw([made.state_dict()["reducer"]])
        made.abandon()
        assert raw([made.state_dict()["reducer"]]) == before
        made.close()

    run_ranks(body)


def test_what_is_not_there_is_refused(groups):
    groups.side("gpu")
    with pytest.raises(gradwire.InvalidArgument, match="unused: is 'zero', must be 'error'"):
        gt.attach(Model(), "none", process_group=0, broadcast=False, unused="zero")


def test_carriers_of_the_other_memory_are_refused():
    from gradwire.torch.joining import join

    gpu = torch.device("cuda", 0)
    for carrier in ("gloo", "torch"):
        with pytest.raises(gradwire.InvalidArgument, match="carries CPU memory, must be 'nccl'"):
            join(None, carrier, 1.0, gpu)
    with pytest.raises(gradwire.InvalidArgument, match="carries GPU memory"):
        join(None, "nccl", 1.0)
    with pytest.raises(gradwire.InvalidArgument, match="must be one of auto, gloo, torch, nccl"):
        join(None, "ib", 1.0, gpu)


def test_streams_are_torchs(monkeypatch):
    """ordering.OnGpu with a stand-in for torch.cuda: what waits for what."""
    events = []

    class Stream:
        def __init__(self, device=None, name="side"):
            self.name, self.cuda_stream = name, 99

        def wait_stream(self, other):
            events.append((self.name, "behind", other.name))

        def __enter__(self):
            events.append(("in", self.name))

        def __exit__(self, *_):
            events.append(("out", self.name))

    class Event:
        def __init__(self, enable_timing=False):
            assert enable_timing

        def record(self, stream):
            events.append(("mark", stream.name))

        def synchronize(self):
            events.append("wait")

        def elapsed_time(self, end):
            return 250.0

    current = Stream(name="current")
    monkeypatch.setattr(torch, "cuda", types.SimpleNamespace(
        Stream=Stream, Event=Event, current_stream=lambda device: current, stream=lambda stream: stream,
        get_device_name=lambda gpu: f"GPU {gpu}"))
    work = ordering.work_on(torch.device("cuda", 0))
    assert not work.waits and work.reducer_options() == {"stream": 99, "left_out": "nan"}
    with work.behind_backward():
        events.append("work")
    work.before_caller()
    assert events == [("side", "behind", "current"), ("in", "side"), "work", ("out", "side"),
                      ("current", "behind", "side")]  # fmt: skip
    del events[:]
    begin, end = work.mark(), work.mark()
    assert events == [("mark", "current")] * 2  # without a wait
    assert work.seconds(begin, end) == 0.25 and events[2:] == ["wait"] * 2
    assert (work.gpu, work.gpu_name(), work.handle()) == (0, "GPU 0", 99)
    scaler = types.SimpleNamespace(_scale=torch.ones(1), get_scale=lambda: 2.0)
    with pytest.raises(gradwire.InvalidArgument, match="scaler: its scale is torch.float32 on cpu"):
        work.scale_of(scaler)
    scaler._scale = None
    assert work.scale_of(scaler) == (2.0, None) and work.scale_of(None) == (1.0, None)


def test_buffers_that_stay_on_the_cpu_are_broadcast_by_way_of_the_gpu(monkeypatch):
    attach = importlib.import_module("gradwire.torch.attach")  # the name is that of its function
    seen = []

    def broadcast(raw, source, group):  # a group of NCCL's takes memory of the GPU alone
        seen.append((raw.device.type, source))
        raise gradwire.TransportError("far enough")

    monkeypatch.setattr(attach, "dist", types.SimpleNamespace(
        broadcast=broadcast, get_global_rank=lambda group, rank: rank))
    made = object.__new__(attach.Attached)
    made._transport, made._process_group = object(), None
    made._work = OnEmulatedGpu(torch.device("meta"))  # in the place of a GPU's memory
    with pytest.raises(gradwire.TransportError, match="far enough"):
        made.broadcast([torch.zeros(3)])
    assert seen == [("meta", 0)]
