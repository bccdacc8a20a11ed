"""gradwire.torch's 'auto' on gradients of a GPU: what it measures there, that ranks agree on it, and
that no step waits for the GPU. The GPU is emulated (emulated_torch.py), its line a slow one."""

import ctypes
import json
import math
import sys
from pathlib import Path

import pytest
from check_reducer import RANKS, run_ranks
from gpu_arrays import EMULATED

torch = pytest.importorskip("torch", reason="torch is an optional extra")

from emulated_torch import (  # noqa: E402
    SHAPES,
    Groups,
    Model,
    OnEmulatedGpu,
    TimingEvent,
    factors,
    gradients,
    raw,
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import gradwire  # noqa: E402
import gradwire.torch as gt  # noqa: E402
from gradwire.torch import auto, gpu_codecs  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from auto_case import Scripted, scripted  # noqa: E402

pytestmark = pytest.mark.skipif(not EMULATED, reason="ranks that are threads are emulated")

BITS_PER_SECOND = 1e6  # 36 KB of gradients in half a second


@pytest.fixture
def groups(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gpu_codecs, "_NUMELS", (1 << 8, 1 << 10, 1 << 12))  # the emulator is no GPU
    monkeypatch.setattr(auto._core, "Pilot", Recorded)
    made = Groups(monkeypatch)
    made.side("gpu")
    return made


class Recorded(auto._core.Pilot):
    """The pilot itself, and what it was told."""

    def __init__(self, *parameters, **how):
        super().__init__(*parameters, **how)
        self.told = []

    def end_window(self, step_s, **rest):
        self.told.append((self.phase, list(step_s), rest))
        return super().end_window(step_s, **rest)

    def set_costs(self, ready_s, link, codecs):
        self.told.append((ready_s, link.alpha_s, link.beta_s_per_byte, codecs))
        return super().set_costs(ready_s, link, codecs)


class Looks(TorchDispatchMode):
    """Counts what reads numbers of tensors: on a GPU each waits."""

    count = 0

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):
        self.count += call is torch.ops.aten._local_scalar_dense.default
        return call(*args, **(kwargs or {}))


def waits():
    """Of this thread so far: for streams and events, the library's and torch's."""
    return (ctypes.CDLL(EMULATED).gradwire_waits() + getattr(TimingEvent.waits, "count", 0))


class Job:
    """A rank that trains."""

    def __init__(self, rank, spec="auto", **options):
        self.rank, self.model = rank, Model()
        self.scaler = options.pop("scale", None) and scaler()
        options.setdefault("on_nonfinite", "skip")
        self.exchange = gt.attach(self.model, spec, process_group=rank, broadcast=False,
                                  scaler=self.scaler or False, **options)  # fmt: skip

    def step(self, step, bad=False):
        self.model.zero_grad()
        loss = self.model(factors(self.rank, step, bad=bad))
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        self.exchange.wait()

    def steps(self, begin, end, bad=()):
        seen = []
        for step in range(begin, end):
            self.step(step, step in bad)
            seen.append(gradients(self.model))
        return seen


def scaler():
    made = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
    made.scale(torch.zeros(1))
    return made


def test_on_a_slow_link_ranks_choose_the_same_compressor(groups, tmp_path):
    groups.bits_per_second = BITS_PER_SECOND

    def body(rank):
        job = Job(rank, "auto:window=4,specs=int8|topk:10%,int4", seed=5)
        seen = []
        while job.exchange._auto._pilot.phase != "cruise":
            seen += job.steps(len(seen), len(seen) + 1)
            assert len(seen) < 100
        seen += job.steps(len(seen), len(seen) + 8)
        told, decisions = job.exchange._auto._pilot.told, job.exchange.decisions()
        assert job.exchange.spec not in ("none", "bf16"), decisions
        job.exchange.synchronize()
        job.exchange.close()
        return seen, told, decisions, job.exchange.spec

    first, second = run_ranks(body)
    assert first == second  # means bit for bit, numbers to the last one
    _, told, decisions, _ = first
    assert [row["what"] for row in decisions[:3]] == ["probe", "probe", "begin"]
    (phase, step_s, rest), (ready_s, alpha_s, s_per_byte, codecs) = told[:2]
    assert phase == "measure" and len(step_s) == 5 and all(s > 0 for s in step_s)
    assert rest["exchange_s"] == rest["exposed_s"] == []  # a host knows no time inside NCCL
    assert len(rest["norms"]) == len(SHAPES)  # it has begun with a compressor
    assert len(ready_s) == len(SHAPES) and min(ready_s) == 0 < max(ready_s)
    # What the line sleeps for each byte, and no less: it may take longer.
    assert alpha_s >= 0 and s_per_byte > 0.5 * 8 / BITS_PER_SECOND
    assert set(codecs) == {"bf16", "int8", "topk:10%,int4"} and codecs["int8"][1] > 0
    cruised = [row for row in told if row[0] == "cruise"]
    assert cruised and all(len(rest["norms"]) == len(SHAPES) for _, _, rest in cruised)
    assert all(math.isfinite(x) for _, _, rest in cruised for row in rest["norms"] for x in row)
    kept = json.loads((tmp_path / "gradwire" / "codecs.json").read_text())["machines"]
    version = gradwire.build_info()["version"]
    assert set(kept) == {f"emulated GPU, gradwire {version}"}


@pytest.mark.parametrize("spec", ["topk:10%,int4", "powersgd:2", "powersgd:2,rounds=2"])
def test_compressors_are_timed_call_by_call(spec):
    work, seen = OnEmulatedGpu(torch.device("cpu")), []
    work.seconds = lambda begin, end: seen.append((begin, end)) or 1.0
    shapes = [(32, 32)] if "powersgd" in spec else None
    assert gpu_codecs._times(spec, work, 1024, shapes) == ([1.0] * 6, [1.0] * 6)
    marks = sorted({mark for pair in seen for mark in pair}, key=lambda mark: mark.recorded)
    # Of each call three: where it begins, where the payload is there, where the mean is.
    encoded, decoded = seen[:6], seen[6:]
    assert [m for a, b in zip(encoded, decoded) for m in (a[0], a[1], b[1])] == marks
    assert all(a[1] is b[0] for a, b in zip(encoded, decoded))


@pytest.fixture
def script():
    yield scripted
    Scripted.script = ()


def test_no_step_waits_but_where_a_window_ends(groups, script, monkeypatch):
    script("none", "topk:10%", "int8,noef", "topk:10%", "bf16")

    def body(rank):
        job, waited = Job(rank, exempt_1d="never"), []
        for step in range(24):
            before = waits()
            with Looks() as looks:
                job.step(step)
                if step > 0:
                    job.exchange.note_loss(torch.tensor(1.0 + rank))
            waited.append(waits() - before + looks.count)
        windows = job.exchange._auto._pilot.windows
        assert [len(step_s) for step_s, _ in windows] == [4] * 5
        assert all(rest["loss"] == 1.5 for _, rest in windows)
        job.exchange.close()
        return waited

    for waited in run_ranks(body):
        # Three steps settle; windows end behind steps 6, 10, ..., and other plans begin with 7, 11, ...
        ends, begins = {6, 10, 14, 18, 22}, {7, 11, 15, 19}
        assert {i for i, n in enumerate(waited) if n > 0} <= {2} | ends | begins, waited
        assert all(waited[i] > 0 for i in ends)


def norms_of(groups, side, script, spec, scale):
    groups.side(side)
    script("none", spec)

    def body(rank):
        job = Job(rank, exempt_1d="never", bucket_bytes=2000, scale=scale)
        job.steps(0, 11, bad=(8,))
        _, (_, rest) = job.exchange._auto._pilot.windows
        job.exchange.close()
        return rest

    first, second = run_ranks(body)
    assert first == second
    return first


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("spec", ["topk:10%", "int4,noef", "topk:10%,decay=0.5", "dgc:10%"])
def test_norms_and_steps_left_out_are_those_of_the_cpu(groups, script, spec, scale):
    on_cpu = norms_of(groups, "cpu", script, spec, scale)
    on_gpu = norms_of(groups, "gpu", script, spec, scale)
    assert on_gpu["skipped"] == on_cpu["skipped"] == 1
    assert len(on_gpu["norms"]) == len(SHAPES)
    for here, there in zip(on_gpu["norms"], on_cpu["norms"]):
        assert here == pytest.approx(there, rel=1e-6)
    assert any(x > 0 for row in on_gpu["norms"] for x in row)


def test_norms_of_a_window_whose_last_step_is_left_out_are_not_known(groups, script):
    script("none", "topk:10%")

    def body(rank):
        job = Job(rank)
        job.steps(0, 11, bad=(7, 10))
        windows = job.exchange._auto._pilot.windows
        job.exchange.close()
        return windows

    first, second = run_ranks(body)
    assert first == second
    assert [(rest["skipped"], len(rest["norms"])) for _, rest in first] == [(0, len(SHAPES)), (2, 0)]


def test_an_error_counts_until_all_have_synchronized(groups, script):
    script("none", "int8")

    def body(rank):
        job, raised = Job(rank, on_nonfinite="error"), 0
        for step in range(7):
            try:
                job.step(step, bad=step == 4)
            except gradwire.NonFiniteGradient:
                raised += 1
        with pytest.raises(gradwire.NonFiniteGradient):
            job.exchange.synchronize()
        windows = job.exchange._auto._pilot.windows
        job.steps(7, 9)
        job.exchange.close()
        return raised, windows

    first, second = run_ranks(body)
    assert first == second and first[0] > 0
    assert first[1][0][1]["skipped"] == 3  # of steps 3 to 6 the last three


def test_a_checkpoint_keeps_the_choice_and_goes_on_bit_for_bit(groups, script):
    script("none", "topk:10%")
    states = {}

    def straight(rank):
        job = Job(rank, exempt_1d="never")
        job.steps(0, 9)
        states[rank] = job.exchange.state_dict()
        plan, seen = str(job.exchange.plan), job.steps(9, 12)
        job.exchange.close()
        return plan, seen

    def again(rank):
        job = Job(rank, exempt_1d="never")
        job.exchange.load_state_dict(states)
        assert job.exchange.spec == "topk:10%"
        assert job.exchange.decisions()[-1]["what"] == "resume"
        plan, seen = str(job.exchange.plan), job.steps(9, 12)
        job.exchange.close()
        return plan, seen

    wanted = run_ranks(straight)
    groups.side("gpu")
    assert run_ranks(again) == wanted


def test_a_residual_goes_into_the_next_gradient(groups, script):
    script("none", "topk:10%", "none")

    def body(rank):
        job = Job(rank, exempt_1d="never")
        job.steps(0, 11)
        owed = [job.exchange.residual(f"ps.{i}") for i in range(len(SHAPES))]
        job.step(11)
        job.exchange.synchronize()
        assert job.exchange.residual("ps.0") is None
        means = [p.grad.clone() for p in job.model.parameters()]
        later = job.steps(12, 13)[0]
        job.exchange.close()
        return owed, means, later

    first, second = run_ranks(body)
    for i, mean in enumerate(first[1]):
        each = [factors(rank, 11)[i] + side[0][i].reshape(SHAPES[i])
                for rank, side in enumerate((first, second))]  # fmt: skip
        assert torch.equal(mean, (each[0] + each[1]) / 2)
        assert any(bool(side[0][i].any()) for side in (first, second)) or mean.numel() == 1
    plain = [(a + b) / 2 for a, b in zip(factors(0, 12), factors(1, 12))]
    assert first[2] == second[2] == raw(plain)  # once, and no more


# Each thread's DDP is of a group of one; the hook is what their gradients meet in.
def hooked(groups, script, side):
    groups.side(side)
    script("none", "topk:10%", "bf16", "int4,noef", "none")

    def body(rank):
        model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=0.01)
        made = gt.register(model, "auto", process_group=rank, scaler=False, on_nonfinite="skip",
                           exempt_1d="never", seed=5)  # fmt: skip
        seen, waited = [], []
        for step in range(21):
            model.zero_grad()
            before = waits()
            with Looks() as looks:
                model(factors(rank, step, bad=step == 12)).backward()
            waited.append(waits() - before + looks.count)
            seen.append(gradients(model))
        ready_s, _, _ = made._auto._pilot.costs
        assert len(ready_s) == len(SHAPES) and min(ready_s) == 0 < max(ready_s)
        windows = made._auto._pilot.windows
        assert [rest["skipped"] for _, rest in windows] == [0, 0, 1, 0]
        made.synchronize()
        made.close()
        return seen, waited

    (first, waited), (second, _) = run_ranks(body)
    assert first == second
    return first, waited


def test_the_hook_of_ddp_has_the_bits_of_the_cpu(groups, group_of_one, script):
    wanted, _ = hooked(groups, script, "cpu")
    seen, waited = hooked(groups, script, "gpu")
    assert seen == wanted
    # DDP's buffers are looked at while they are new, which they are twice: it orders them anew behind the
    # first step, when the plan follows.
    assert {i for i, n in enumerate(waited) if n > 0} <= {0, 1, 2, 6, 7, 10, 11, 14, 15, 18, 19}


def test_ranks_that_were_asked_for_something_else_are_told_apart(groups):
    def body(rank):
        with pytest.raises(gradwire.TransportError, match="rank 1 passed the fingerprint"):
            Job(rank, f"auto:window={20 + rank}")

    run_ranks(body)


def test_a_rank_that_leaves_is_named(groups, script):
    script("none", "int8")

    def body(rank):
        job = Job(rank)
        if rank == 1:
            job.steps(0, 6)
            job.exchange._tell_peers(RuntimeError("out of memory"))
            return
        with pytest.raises(gradwire.TransportError, match="out of memory"):
            job.steps(0, 7)  # it may hear of it while it still waits for the sixth

    run_ranks(body)


def test_what_auto_cannot_be_is_refused(groups):
    for options, said in [({"unused": "zero"}, "must be 'error'"),
                          ({"exchange": "gather"}, "exchange: is given together")]:  # fmt: skip
        with pytest.raises(gradwire.InvalidArgument, match=said):
            gt.attach(Model(), "auto", process_group=0, broadcast=False, **options)
    with pytest.raises(gradwire.InvalidArgument, match="float32"):
        gt.attach(Model(torch.bfloat16), "auto", process_group=0, broadcast=False)
    assert RANKS == 2
