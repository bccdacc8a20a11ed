"""gradwire.torch.DiLoCo with parameters on a GPU, beside the same on the CPU: parameters, residuals and
states bit for bit, and on which streams its work is enqueued."""

import threading
import uuid

import pytest
from exchanged_case import (
    CURRENT,
    NAMED,
    ON_GPU,
    RANKS,
    REDUCERS,
    both,
    emulated_ranks,
    flat,
    give_gradients,
    raw,
    replace_devices,
    residuals,
    saved,
    start,
    torch,
)

import gradwire
import gradwire.torch as gt

pytestmark = emulated_ranks

SPECS = ["none", "int4", "topk:10%,decay=0.95", "chunktopk:64/4096,2bit,decay=0.95", "powersgd:2"]


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    replace_devices(monkeypatch)


def local_run(outer, inner, parameters, rank, steps):
    """What was seen behind each exchange."""
    seen = []
    for step in steps:
        give_gradients(parameters, rank, step)
        inner.step()
        if outer.step():
            seen.append(raw(parameters))
    return seen


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("options", [{}, {"preset": "sparseloco"}, {"max_grad_norm": 0.5, "lr": 0.3}])
def test_local_steps_have_the_bits_of_the_cpu(spec, options):
    plan = gradwire.make_plan(NAMED, spec, exchange="gather", seed=3)

    def body(make, rank):
        parameters = start()
        reducer = make(plan)
        inner = torch.optim.AdamW(parameters, lr=0.01)
        outer = gt.DiLoCo(parameters, reducer, every=3, **options)
        seen = local_run(outer, inner, parameters, rank, range(12))
        outer.synchronize()
        return len(seen), seen, residuals(reducer), flat(outer.state_dict()), outer.steps

    wanted, got = both(body)
    assert got == wanted and wanted[0][0] == 4 and wanted[0][1] == wanted[1][1]
    assert wanted[0][1][0] != wanted[0][1][1]  # they have moved


@pytest.mark.parametrize("left_out", ["zero", "nan"])
def test_an_exchange_that_is_left_out_is_one_of_zeros_or_none(left_out):
    plan = gradwire.make_plan(NAMED, "topk:10%", exchange="gather", seed=3)

    def body(make, rank):
        parameters = start()
        reducer = make(plan, on_nonfinite="skip", left_out=left_out)
        outer = gt.DiLoCo(parameters, reducer, every=1, lr=0.5, momentum=0.0)
        seen = []
        for step in range(4):
            give_gradients(parameters, rank, step, bad=step == 2)
            torch.optim.SGD(parameters, lr=0.1).step()
            local = raw(parameters)
            assert outer.step()
            seen.append(raw(parameters))
            assert (seen[-1] == local) == (step == 2 and left_out == "nan")
            if step == 2 and left_out == "nan":
                with torch.no_grad():
                    parameters[2].nan_to_num_(0.0, 0.0, 0.0)
        outer.synchronize()
        return seen, residuals(reducer), reducer.skipped_steps

    wanted, got = both(body)
    assert got == wanted
    assert (wanted[0][0][2] == wanted[0][0][1]) == (left_out == "zero") and wanted[0][2] == 1
    assert wanted[0][0][3] == wanted[1][0][3]


def test_parameters_that_are_not_finite_change_nothing_until_all_have_synchronized():
    plan = gradwire.make_plan(NAMED, "int4", exchange="gather", seed=3)

    def body(make, rank):
        parameters = start()
        reducer = make(plan)
        outer = gt.DiLoCo(parameters, reducer, every=2)
        inner = torch.optim.SGD(parameters, lr=0.1)
        local_run(outer, inner, parameters, rank, range(2))
        good, kept = [p.detach().clone() for p in parameters], residuals(reducer)
        give_gradients(parameters, rank, 9, bad=True)
        inner.step(), outer.step()
        before = raw(parameters)
        told = False
        try:
            outer.step()
        except gradwire.NonFiniteGradient:
            told = True  # here all has run by then
        assert told
        if make.side == "gpu":
            outer._arrays.step(stream=REDUCERS)  # as where the host hears of it behind the step
            with pytest.raises(gradwire.NonFiniteGradient, match="rank [01]: .*NaN or infinity in step 1"):
                outer.synchronize()
        outer.synchronize()  # of the step too
        assert raw(parameters) == before
        assert residuals(reducer) == kept
        with torch.no_grad():
            for p, q in zip(parameters, good):
                p.copy_(q)
        return local_run(outer, inner, parameters, rank, range(2, 6)), residuals(reducer)

    wanted, got = both(body)
    assert got == wanted and len(wanted[0][0]) == 2


@pytest.mark.parametrize("spec", ["topk:10%,decay=0.95", "int4"])
def test_a_checkpoint_of_local_steps_goes_to_the_gpu_and_back(spec):
    plan = gradwire.make_plan(NAMED, spec, exchange="gather", seed=3)
    left = {}

    def body(make, rank):
        parameters = start()
        reducer = make(plan)
        outer = gt.DiLoCo(parameters, reducer, every=3)
        inner = torch.optim.SGD(parameters, lr=0.1)
        local_run(outer, inner, parameters, rank, range(7))  # in the middle of local steps
        left[make.side, rank] = (saved(reducer), outer.state_dict(),
                                 [p.detach().clone() for p in parameters])  # fmt: skip
        return local_run(outer, inner, parameters, rank, range(7, 12))

    def go_on(make, rank):
        other = {"cpu": "gpu", "gpu": "cpu"}[make.side]
        parameters = start(seed=5)
        reducer = make(plan)
        outer = gt.DiLoCo(parameters, reducer, every=3, lr=0.1)
        local_run(outer, torch.optim.SGD(parameters, lr=0.3), parameters, rank, range(50, 54))
        _, state, values = left[other, rank]
        with torch.no_grad():
            for p, q in zip(parameters, values):
                p.copy_(q)
        outer.load_state_dict(state)
        reducer.load(lambda of: left[other, of][0] if of < RANKS else None)
        assert (outer.steps, outer.lr) == (7, 0.7)
        return local_run(outer, torch.optim.SGD(parameters, lr=0.1), parameters, rank, range(7, 12))

    wanted, got = both(body)
    assert got == wanted and len(wanted[0]) == 2
    assert both(go_on) == [wanted, wanted]


def log_calls(outer, log):
    """The calls of an optimizer over arrays, and their streams, from now on."""

    class Logged:
        def __getattr__(self, name):
            found = getattr(optimizer, name)
            if not callable(found):
                return found

            def call(*arguments, stream=None, **options):
                log.append((name, stream if name != "follow" else arguments[0]))
                return found(*arguments, **({} if stream is None else {"stream": stream}), **options)

            return call

    optimizer = outer._arrays
    outer._arrays = outer._order._optimizer = Logged()


EXCHANGE = [("prepare", CURRENT), ("follow", REDUCERS), ("step", REDUCERS), ("follow", REDUCERS),
            ("follow", CURRENT)]  # fmt: skip


def test_an_exchange_is_ordered_behind_the_current_stream_and_before_it():
    plan = gradwire.make_plan(NAMED, "int4", exchange="gather")

    def body(make, rank):
        parameters, log = start(), []
        outer = gt.DiLoCo(parameters, make(plan), every=3)
        log_calls(outer, log)
        seen = []
        for step in range(3):
            give_gradients(parameters, rank, step)
            torch.optim.SGD(parameters, lr=0.1).step()
            outer.step()
            seen.append(len(log))
        log2 = []
        other = gt.OneBitAdam(start(), make(gradwire.make_plan(NAMED, "none")), plan, freeze_step=9)
        log_calls(other, log2)
        give_gradients(other._values, rank, 0)
        other.step()
        return seen, log, log2

    _, got = both(body)
    for seen, log, log2 in got:
        assert seen == [0, 0, len(EXCHANGE)]  # local steps call nothing
        assert log == log2 == EXCHANGE


def test_what_does_not_fit_is_refused_when_it_is_made():
    plan = gradwire.make_plan(NAMED, "int4", exchange="gather")
    transport = gradwire.make_transport("nccl", rank=0, world_size=1, store=uuid.uuid4().hex)
    on_gpu = gradwire.Reducer(plan, transport, stream=REDUCERS)
    on_cpu = gradwire.Reducer(plan, gradwire.make_in_process_group(1)[0])
    assert (on_gpu.device, on_gpu.stream) == ("cuda:0", REDUCERS)
    assert (on_cpu.device, on_cpu.stream) == ("cpu", None)
    with pytest.raises(gradwire.InvalidArgument, match=r"is on cpu, must be on cuda:0, where the reducer"):
        gt.DiLoCo(start(), on_gpu, every=2)
    ON_GPU.add(threading.get_ident())
    with pytest.raises(gradwire.InvalidArgument, match=r"must be on cpu, where the reducer has"):
        gt.OneBitAdam(start(), on_cpu, plan, freeze_step=2)
    with pytest.raises(gradwire.InvalidArgument, match="left_out is 'zero', must be 'nan' on cuda:0"):
        gt.DiLoCo(start(), on_gpu, every=2)
    with pytest.raises(gradwire.InvalidArgument, match="left_out is 'zero', must be 'nan' on cuda:0"):
        gt.OneBitAdam(start(), on_gpu, plan, freeze_step=2)
    half = [torch.nn.Parameter(p.detach().half()) for p in start()]
    with pytest.raises(gradwire.InvalidArgument, match="is torch.float16 on cpu, must be torch.float32"):
        gt.DiLoCo(half, on_gpu, every=2)
