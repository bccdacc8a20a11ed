"""Steps of optimizers on a GPU from payloads that lie there: the bits of the CPU's steps from the dense
sum, and faults that are kept there."""

import numpy as np
import pytest

import gradwire

SHAPES = [(60, 70), (800,), (30, 50), (1,)]
SIZES = [int(np.prod(shape)) for shape in SHAPES]
NUMEL = sum(SIZES)
RANKS = 3
SCALE = 1 / 3


def values(seed):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def split(whole):
    return [a.reshape(s) for a, s in zip(np.split(whole, np.cumsum(SIZES)[:-1]), SHAPES)]


class Sent:
    """What the ranks sent in a step: payloads on the CPU and, at their capacity, on the GPU, and their
    mean."""

    def __init__(self, gpu, spec, step, parameters=(0, 1, 2, 3)):
        self.parameters = list(parameters)
        self.shapes = [SHAPES[p] for p in self.parameters]
        numel = sum(SIZES[p] for p in self.parameters)
        self.made = gradwire.Compressor(spec, numel, shapes=self.shapes)
        gradients = [np.concatenate([values(100 * step + rank)[p].reshape(-1) for p in self.parameters])
                     for rank in range(RANKS)]  # fmt: skip
        self.payloads = [self.made.compress(g).copy() for g in gradients]
        self.mean = self.made.decompress(self.payloads, SCALE)
        self.rooms = []
        for payload in self.payloads:
            room = np.full(self.made.capacity_bytes, 0xA5, np.uint8)
            room[: payload.size] = payload
            self.rooms.append(room)
        self.there = [gpu.array(room) for room in self.rooms]

    def group(self, payloads=None):
        return gradwire.GroupPayloads(self.made.spec, self.parameters, self.shapes,
                                      self.there if payloads is None else payloads, SCALE)  # fmt: skip


def pair(gpu, optimizer):
    """On the CPU, which steps from the dense sum, and on the GPU; and their parameters."""
    here, there = values(1), [gpu.array(v) for v in values(1)]
    gradients = [np.zeros_like(v) for v in here]
    unread = [gpu.array(np.zeros_like(v)) for v in here]
    return (gradwire.Optimizer(optimizer, here, gradients, 0.1), here, gradients,
            gradwire.Optimizer(optimizer, there, unread, 0.1, stream=gpu.stream), there)  # fmt: skip


def same(gpu, there, here):
    for a, b in zip(there, here):
        np.testing.assert_array_equal(gpu.host(a), b)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "lamb:weight_decay=0.01", "lars"])
@pytest.mark.parametrize("spec", ["none", "int8", "topk:5%", "topk:5%,int4", "tensortopk:5%",
                                  "chunktopk:5%", "dgc:5%"])  # fmt: skip
def test_steps_from_payloads_have_the_bits_of_the_dense_sum(gpu, spec, optimizer):
    cpu, here, gradients, on_gpu, there = pair(gpu, optimizer)
    sent = []
    for step in range(3):
        sent.append(Sent(gpu, spec, step))
        for gradient, mean in zip(gradients, split(sent[-1].mean)):
            gradient[...] = mean
        cpu.step(gradient_scale=0.5)
        on_gpu.step(gradient_scale=0.5, known_finite=step == 2, payloads=[sent[-1].group()],
                    stream=gpu.stream)  # fmt: skip
    on_gpu.check(gpu.stream)
    same(gpu, there, here)
    # The same group of the CPU's payloads, where the parameters are there.
    other, values_there, _, _, _ = pair(gpu, optimizer)
    for each in sent:
        other.step(gradient_scale=0.5, payloads=[each.group(each.payloads)])
    for a, b in zip(values_there, here):
        np.testing.assert_array_equal(a, b)


def test_payloads_that_were_made_there_stay_there(gpu):
    cpu, here, gradients, on_gpu, there = pair(gpu, "lamb")
    spec = "topk:5%,int4"
    compressors = [gradwire.Feedback(spec, NUMEL, shapes=SHAPES, device="cuda") for _ in range(RANKS)]
    of_cpu = [gradwire.Feedback(spec, NUMEL, shapes=SHAPES) for _ in range(RANKS)]
    for step in range(3):
        given = [np.concatenate([v.reshape(-1) for v in values(100 * step + r)]) for r in range(RANKS)]
        payloads = [c.compress(gpu.array(g), stream=gpu.stream) for c, g in zip(compressors, given)]
        group = gradwire.GroupPayloads(spec, [0, 1, 2, 3], SHAPES, payloads, SCALE)
        assert all(a is b for a, b in zip(group.payloads, payloads))
        on_gpu.step(payloads=[group], stream=gpu.stream)
        mean = of_cpu[0].decompress([c.compress(g).copy() for c, g in zip(of_cpu, given)], SCALE)
        for gradient, part in zip(gradients, split(mean)):
            gradient[...] = part
        cpu.step()
        for feedback in (*compressors, *of_cpu):
            feedback.commit()
    on_gpu.check(gpu.stream)
    same(gpu, there, here)


def test_groups_may_be_several_and_the_rest_is_in_memory(gpu):
    cpu, here, gradients, on_gpu, there = pair(gpu, "adamw")
    for step in range(3):
        groups = [Sent(gpu, "topk:5%", step, [1, 2]), Sent(gpu, "int8", step, [0])][:: 1 if step < 2 else -1]
        for sent in groups:
            begin = 0
            for p in sent.parameters:
                gradients[p][...] = sent.mean[begin : begin + SIZES[p]].reshape(SHAPES[p])
                begin += SIZES[p]
        cpu.step()
        on_gpu.step(payloads=[sent.group() for sent in groups], stream=gpu.stream)
    on_gpu.check(gpu.stream)
    same(gpu, there, here)
    for gradient in gradients:
        gradient[...] = 0
    cpu.step(), on_gpu.step(stream=gpu.stream)  # from memory again, which holds zeros
    same(gpu, there, here)


def test_a_payload_that_does_not_decode_leaves_the_step_out_until_it_is_told(gpu):
    cpu, here, gradients, on_gpu, there = pair(gpu, "sgd")
    sent = Sent(gpu, "int8", 1)
    sent.rooms[1][4] = 77  # its version
    broken = [gpu.array(room) for room in sent.rooms]
    on_gpu.step(payloads=[sent.group(broken)], stream=gpu.stream)  # nothing is raised here
    on_gpu.step(payloads=[sent.group()], stream=gpu.stream)
    same(gpu, there, here)
    with pytest.raises(gradwire.InvalidArgument, match=r"payloads\[0\]: .*part 1: its version is not 1"):
        on_gpu.check(gpu.stream)
    on_gpu.check(gpu.stream)
    on_gpu.step(payloads=[sent.group()], stream=gpu.stream)
    for gradient, mean in zip(gradients, split(sent.mean)):
        gradient[...] = mean
    cpu.step()
    on_gpu.check(gpu.stream)
    same(gpu, there, here)
    on_gpu.step(stream=gpu.stream, loss_scale=gpu.array(np.float32([0])))
    with pytest.raises(gradwire.InvalidArgument, match="loss_scale in GPU memory is 0"):  # and no payload
        on_gpu.check(gpu.stream)


def test_what_did_not_decode_is_told_whatever_else_left_the_step_out(gpu):
    _, here, _, on_gpu, there = pair(gpu, "sgd")
    sent, other = Sent(gpu, "int8", 1), Sent(gpu, "topk:5%", 1)
    sent.rooms[1][4] = 77  # its version
    broken = sent.group([gpu.array(room) for room in sent.rooms])
    words = r"payloads\[0\]: .*part 1: its version is not 1"
    on_gpu.step(payloads=[broken], stream=gpu.stream, found_inf=gpu.array(np.float32([1])))
    with pytest.raises(gradwire.InvalidArgument, match=words):
        on_gpu.check(gpu.stream)
    whole = Sent(gpu, "int8", 1)
    on_gpu.step(payloads=[whole.group()], stream=gpu.stream, loss_scale=gpu.array(np.float32([0])))
    with pytest.raises(gradwire.InvalidArgument, match="loss_scale in GPU memory is 0"):
        on_gpu.check(gpu.stream)
    on_gpu.step(payloads=[broken], stream=gpu.stream)
    on_gpu.step(payloads=[other.group()], stream=gpu.stream)  # of another group, in its place
    with pytest.raises(gradwire.InvalidArgument, match=words):
        on_gpu.check(gpu.stream)
    on_gpu.check(gpu.stream)
    same(gpu, there, here)


@pytest.mark.parametrize("spec", ["none", "fp16", "int8", "int4", "topk:5%", "topk:5%,int4"])
def test_payloads_of_gradients_that_are_not_finite_leave_the_step_out(gpu, spec):
    cpu, here, _, on_gpu, there = pair(gpu, "adamw")
    before = values(1)
    sent = Sent(gpu, spec, 1)
    bad = np.ones(NUMEL, np.float32)
    bad[3] = np.inf
    payload = sent.made.compress(bad).copy()
    room = np.zeros(sent.made.capacity_bytes, np.uint8)
    room[: payload.size] = payload
    of_cpu = sent.group([sent.payloads[0], payload])
    of_gpu = sent.group([sent.there[0], gpu.array(room)])
    with pytest.raises(gradwire.NonFiniteGradient):
        cpu.step(payloads=[of_cpu])
    on_gpu.step(payloads=[of_gpu], stream=gpu.stream)
    with pytest.raises(gradwire.NonFiniteGradient):
        on_gpu.check(gpu.stream)
    cpu.step(payloads=[of_cpu], on_nonfinite="skip")
    on_gpu.step(payloads=[of_gpu], stream=gpu.stream, on_nonfinite="skip")
    on_gpu.check(gpu.stream)
    assert cpu.skipped_steps() == on_gpu.skipped_steps(gpu.stream) == 1
    same(gpu, there, before)
    for a, b in zip(here, before):
        np.testing.assert_array_equal(a, b)
    good = Sent(gpu, spec, 2)  # the source is good for finite ones again
    cpu.step(payloads=[good.group(good.payloads)]), on_gpu.step(payloads=[good.group()], stream=gpu.stream)
    on_gpu.check(gpu.stream)
    same(gpu, there, here)


def test_a_loss_scale_is_read_on_the_gpu(gpu):
    cpu, here, gradients, on_gpu, there = pair(gpu, "adamw")
    sent = Sent(gpu, "int8", 1)
    scale, found = gpu.array(np.float32([8])), gpu.array(np.float32([1]))
    on_gpu.step(payloads=[sent.group()], stream=gpu.stream, loss_scale=scale, found_inf=found)
    same(gpu, there, here)
    on_gpu.step(payloads=[sent.group()], stream=gpu.stream, loss_scale=scale)
    for gradient, mean in zip(gradients, split(sent.mean)):
        gradient[...] = mean
    cpu.step(gradient_scale=1 / 8)
    on_gpu.check(gpu.stream)
    same(gpu, there, here)
    assert on_gpu.skipped_steps(gpu.stream) == 1


def test_what_does_not_fit_is_refused_and_changes_nothing(gpu):
    _, here, _, on_gpu, there = pair(gpu, "sgd")
    cpu, _, _, _, _ = pair(gpu, "sgd")
    sent = Sent(gpu, "int8", 1)

    def refused(words, call):
        with pytest.raises(gradwire.InvalidArgument, match=words):
            call()

    def step(*groups):
        return lambda: on_gpu.step(payloads=groups, stream=gpu.stream)

    refused(r"payloads\[0\].payloads\[0\]: .*CPU", step(sent.group(sent.payloads)))
    refused("device", lambda: cpu.step(payloads=[sent.group()]))
    refused(r"payloads\[1\]: parameter 0 is in another group", step(sent.group(), sent.group()))
    refused(r"payloads\[0\]: is None", step(None))
    reducer = gradwire.Reducer(gradwire.make_plan([("w", (NUMEL,))], "int8", exchange="gather"),
                               gradwire.make_transport("in_process"))  # fmt: skip
    reducer.deliver(0, "payloads")
    reducer.gradient(0)[...] = 1
    reducer.grad_ready(0)
    reducer.wait()
    refused(r"payloads\[0\]: are copies in CPU memory, expected payloads in memory of GPU 0",
            step(*reducer.take_payloads(0)))  # fmt: skip
    for spec in ("randomk:5%", "powersgd:2"):
        refused("expected one whose payloads decode chunk by chunk", step(Sent(gpu, spec, 1).group()))
    make = gradwire.GroupPayloads
    refused("shapes: are 1, must be 2, one of each parameter", lambda: make("int8", [0, 1], [(3,)], [b""]))
    refused(r"shapes\[0\]: is \(0,\), must hold", lambda: make("int8", [0], [(0,)], [b""]))
    refused("payloads: is empty, must hold at least one", lambda: make("int8", [0], [(3,)], []))
    on_gpu.check(gpu.stream)
    same(gpu, there, here)
