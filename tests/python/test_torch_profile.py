"""Profiles of training steps: by a clock that layers move, so that every second is known."""

import json
import types

import pytest

torch = pytest.importorskip("torch", reason="gradwire.torch needs torch")

import torch.distributed as dist  # noqa: E402
from ddp_case import loss_of, registered, sgd  # noqa: E402
from rank_processes import run_ranks  # noqa: E402

import gradwire.torch  # noqa: E402
from gradwire.torch import profiling  # noqa: E402


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Takes(torch.autograd.Function):
    """x + parameter.sum(), in so many seconds each way."""

    @staticmethod
    def forward(ctx, x, parameter, clock, forward_s, backward_s):
        clock.now += forward_s
        ctx.clock, ctx.backward_s, ctx.shape = clock, backward_s, parameter.shape
        return x + parameter.sum()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.now += ctx.backward_s
        return gradient, torch.ones(ctx.shape) * gradient.sum(), None, None, None


class Layer(torch.nn.Module):
    def __init__(self, numel, clock, forward_s, backward_s, inner=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(numel))
        self.clock, self.times, self.inner = clock, (forward_s, backward_s), inner

    def forward(self, x):
        if self.inner is not None:
            x = self.inner(x)
        return Takes.apply(x, self.weight, self.clock, *self.times)


class Activation(torch.nn.Module):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def forward(self, x):
        self.clock.now += 0.5
        return x


class Steps(torch.optim.SGD):
    clock = None

    def step(self, closure=None):
        self.clock.now += 6.0
        return super().step(closure)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(profiling, "_clock", made)
    return made


def batches(clock, count):
    for _ in range(count):
        clock.now += 0.25
        yield torch.zeros(1)


def trained(clock, model, backwards=1):
    optimizer = Steps(model.parameters(), lr=0.1)
    optimizer.clock = clock

    def step(x):
        optimizer.zero_grad()
        for _ in range(backwards):
            loss = model(x).sum()
            clock.now += 0.125  # of the loss
            if backwards:
                loss.backward()
        optimizer.step()

    return step


class Loader:
    def __init__(self, clock, count):
        self.clock, self.count = clock, count

    def __iter__(self):
        return batches(self.clock, self.count)


def test_every_second_is_where_it_was_spent(clock):
    inner = Layer(10, clock, 1.0, 2.0)
    model = torch.nn.Sequential(
        Layer(20, clock, 4.0, 8.0, inner), Activation(clock), Layer(30, clock, 16.0, 32.0)
    )
    before = model[0].weight.clone()
    found = gradwire.torch.profile(
        trained(clock, model), Loader(clock, 4), model=model, batch=7, name="made up", steps=5
    )
    assert found.document["step"] == {
        "io_s": 0.25,
        "host_to_device_s": 0.0,
        "other_s": 0.625,  # the activation and the loss
        "measured_s": 0.25 + 21.625 + 42.0 + 6.0,
    }
    rows = {row["name"]: row for row in found.layers}
    assert [row["name"] for row in found.layers] == ["0.weight", "0.inner.weight", "2.weight"]
    # Of a module with another one inside, its own time.
    assert [(r["forward_s"], r["backward_s"], r["ready_s"]) for r in found.layers] == [
        (4.0, 8.0, 40.0),
        (1.0, 2.0, 42.0),
        (16.0, 32.0, 32.0),
    ]
    assert [r["numel"] for r in found.layers] == [20, 10, 30]
    assert rows["2.weight"]["update_s"] == 3.0  # half of the elements
    assert (found.document["batch"], found.document["model"]) == (7, "made up")
    assert not torch.equal(before, model[0].weight)  # steps are real
    assert torch.autograd.backward.__name__ == "backward"  # nothing stays behind


def test_a_profile_is_saved_and_shown(clock, tmp_path):
    model = torch.nn.Sequential(Layer(3, clock, 0.5, 0.25))
    found = gradwire.torch.profile(trained(clock, model), Loader(clock, 1), model=model, batch=2)
    found.save(tmp_path / "p.json")
    read = json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))
    assert read == found.document
    assert read["format"] == "gradwire.profile" and read["version"] == 1
    assert "0.weight" in found.table() and "backward 250.00" in found.table()


def test_parameters_that_no_backward_reaches_exchange_nothing(clock):
    model = torch.nn.Sequential(Layer(3, clock, 0.5, 0.25))
    model.extra = torch.nn.Parameter(torch.zeros(9))
    found = gradwire.torch.profile(trained(clock, model), Loader(clock, 1), model=model, batch=2)
    rows = {row["name"]: row for row in found.layers}
    assert rows["extra"]["numel"] == 0 and "ready_s" not in rows["extra"]


@pytest.mark.parametrize("backwards", [0, 2])
def test_one_backward_a_step_is_expected(clock, backwards):
    model = torch.nn.Sequential(Layer(3, clock, 0.5, 0.25))
    with pytest.raises(gradwire.InvalidArgument, match=f"made {backwards} backward passes"):
        gradwire.torch.profile(
            trained(clock, model, backwards), Loader(clock, 1), model=model, batch=2
        )
    assert torch.autograd.backward.__name__ == "backward"


def test_bad_input_is_refused(clock):
    model = torch.nn.Sequential(Layer(3, clock, 0.5, 0.25))
    step = trained(clock, model)
    with pytest.raises(gradwire.InvalidArgument, match="loader: gave 0 batches"):
        gradwire.torch.profile(step, [], model=model, batch=2)
    with pytest.raises(gradwire.InvalidArgument, match="are 2, 0, 10, must be at least 1"):
        gradwire.torch.profile(step, Loader(clock, 1), model=model, batch=2, warmup=0)
    with pytest.raises(gradwire.InvalidArgument, match="model: has 0 parameters"):
        gradwire.torch.profile(step, Loader(clock, 1), model=torch.nn.ReLU(), batch=2)


def test_moments_are_those_of_the_models_gpu(monkeypatch):
    recorded = []
    event = types.SimpleNamespace(record=recorded.append)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("stream of", device))
    assert profiling._now(torch.device("cuda:1")) is event
    assert recorded == [("stream of", torch.device("cuda:1"))]


def test_an_exchange_whose_times_no_host_knows_is_refused(clock):
    model = torch.nn.Sequential(Layer(3, clock, 0.5, 0.25))
    exchange = types.SimpleNamespace(
        _reducer=object(), _work=types.SimpleNamespace(waits=False, device="cuda:1"))  # fmt: skip
    before = model[0].weight.clone()
    with pytest.raises(gradwire.InvalidArgument, match="exchange: is of gradients on cuda:1"):
        gradwire.torch.profile(
            trained(clock, model), Loader(clock, 1), model=model, batch=2, exchange=exchange
        )
    assert torch.equal(before, model[0].weight)


def _with_exchange(world):
    model, exchange = registered("int8", exempt_1d="auto")
    optimizer = sgd(model)

    def step(i):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), i).backward()
        optimizer.step()

    found = gradwire.torch.profile(
        step, range(4), model=model, batch=8, steps=3, exchange=exchange
    )
    assert found.document["ranks"] == 2
    assert [layer["name"] for layer in found.layers][0] == "module.first.weight"
    carriers = [layer for layer in found.layers if "exchange_s" in layer]
    assert len(carriers) == exchange.plan.buckets > 1
    for layer in carriers:
        assert layer["exchange_s"] > 0 and layer["compress_s"] >= 0 and layer["decompress_s"] >= 0
    assert all(layer["ready_s"] > 0 for layer in found.layers)


def test_exchanges_are_found_by_bucket(tmp_path):
    for end in run_ranks("torch_world", 2, _with_exchange, folder=tmp_path, deadline=120.0):
        end.result()
