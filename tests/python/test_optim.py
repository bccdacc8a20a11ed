"""Optimizers against the papers' formulas, written here in NumPy float64."""

import math
import pickle

import numpy as np
import pytest

import gradwire

SHAPES = [(40, 30), (30,), (1,), (5000,)]
STEPS = 7


def norm(x):
    return math.sqrt(float((x * x).sum()))


def sgd(w, g, state, lr, group, momentum=0.9, nesterov=False, weight_decay=0.0):
    decay = group.get("weight_decay", weight_decay)
    d = g + decay * w
    v = state["v"] = momentum * state.get("v", 0.0) + d
    return w - lr * group.get("learning_rate_scale", 1.0) * (d + momentum * v if nesterov else v)


def lars(w, g, state, lr, group, momentum=0.9, weight_decay=0.0, trust_coefficient=1e-3,
         epsilon=1e-6):
    decay = group.get("weight_decay", weight_decay)
    ratio = 1.0
    if group.get("adapt", True) and norm(w) > 0 and norm(g) > 0:
        ratio = trust_coefficient * norm(w) / (norm(g) + decay * norm(w) + epsilon)
    rate = lr * group.get("learning_rate_scale", 1.0) * ratio
    v = state["v"] = momentum * state.get("v", 0.0) + rate * (g + decay * w)
    return w - v


def lamb(w, g, state, lr, group, beta1=0.9, beta2=0.999, epsilon=1e-6, weight_decay=0.0):
    decay = group.get("weight_decay", weight_decay)
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * g
    v = state["s"] = beta2 * state.get("s", 0.0) + (1 - beta2) * g * g
    r = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon) + decay * w
    ratio = 1.0
    if group.get("adapt", True) and norm(w) > 0 and norm(r) > 0:
        ratio = norm(w) / norm(r)
    return w - lr * group.get("learning_rate_scale", 1.0) * ratio * r


def adamw(w, g, state, lr, group, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01):
    decay = group.get("weight_decay", weight_decay)
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = beta1 * state.get("m", 0.0) + (1 - beta1) * g
    v = state["s"] = beta2 * state.get("s", 0.0) + (1 - beta2) * g * g
    r = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
    return w - lr * group.get("learning_rate_scale", 1.0) * (r + decay * w)


def larc(w, g, state, lr, group, momentum=0.9, weight_decay=0.0):
    rate = lr * group.get("learning_rate_scale", 1.0)
    decay, d = group.get("weight_decay", weight_decay), g
    if norm(w) > 0 and norm(g) > 0:
        local = 0.02 * norm(w) / (norm(g) + decay * norm(w) + 1e-8)
        d = (g + decay * w) * (min(local / rate, 1.0) if group.get("adapt", True) else 1.0)
    v = state["v"] = momentum * state.get("v", 0.0) + d
    return w - rate * v


CASES = [
    (gradwire.SGD, sgd, {}),
    (gradwire.SGD, sgd, {"momentum": 0.0}),
    (gradwire.SGD, sgd, {"momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
    (gradwire.AdamW, adamw, {}),
    (gradwire.AdamW, adamw, {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-4, "weight_decay": 0.1}),
    (gradwire.LARC, larc, {"weight_decay": 0.1}),
    (gradwire.LARS, lars, {}),
    (gradwire.LARS, lars, {"weight_decay": 0.1, "trust_coefficient": 0.02, "epsilon": 1e-3}),
    (gradwire.LAMB, lamb, {}),
    (gradwire.LAMB, lamb, {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-4, "weight_decay": 0.1}),
]


def problem(rng):
    parameters = [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    return parameters, [np.zeros_like(p) for p in parameters]


def close(actual, expected):
    # Float32 storage of weights and state over a few steps, relative to the largest weight.
    atol = 4e-6 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("optimizer, reference, settings", CASES)
def test_steps_follow_the_paper(optimizer, reference, settings, threads, rng):
    parameters, gradients = problem(rng)
    groups = [{"parameters": [1], "weight_decay": 0.0, "adapt": False},
              gradwire.ParamGroup([2], learning_rate_scale=2.0)]
    group_of = [{}, {"weight_decay": 0.0, "adapt": False}, {"learning_rate_scale": 2.0}, {}]
    steps = optimizer(parameters, gradients, 0.05, groups=groups, threads=threads, **settings)
    expected = [p.astype(np.float64) for p in parameters]
    states = [{} for _ in parameters]
    for step in range(STEPS):
        lr = 0.05 if step % 2 else 0.02
        for i, gradient in enumerate(gradients):
            gradient[...] = rng.standard_normal(gradient.shape)
            expected[i] = reference(expected[i], gradient.astype(np.float64), states[i], lr,
                                    group_of[i], **settings)
        steps.step(lr if step % 2 == 0 else None)
    for actual, wanted in zip(parameters, expected):
        close(actual, wanted)


@pytest.mark.parametrize("optimizer, reference, settings", CASES[3:])
def test_ratio_is_one_when_a_norm_is_zero(optimizer, reference, settings):
    for w, g in ((np.zeros(4), np.ones(4)), (np.ones(4), np.zeros(4)), (np.zeros(4), np.zeros(4))):
        parameter, gradient = w.astype(np.float32), g.astype(np.float32)
        optimizer([parameter], [gradient], 0.1, **settings).step()
        close(parameter, reference(w, g, {}, 0.1, {}, **settings))


def test_presets_are_those_of_the_registry_and_leave_settings_to_it(rng):
    rows = {row.name: row for row in gradwire.optimizers()}
    assert set(rows["lamb"].presets) >= {"paper", "apex", "nvlamb", "tf-addons", "lambc", "optax"}
    assert rows["sgd"].presets == {}
    parameters, gradients = problem(rng)
    steps = gradwire.LAMB(parameters, gradients, 0.1, preset="apex", weight_decay=0.01)
    assert steps.spec == "lamb:weight_decay=0.01,max_grad_norm=1,adapt_undecayed=0"
    steps = gradwire.LARS(parameters, gradients, 0.1, preset="torch-optimizer", nesterov=True)
    assert "trust_coefficient=0.01" in steps.spec and "nesterov=1" in steps.spec
    with pytest.raises(gradwire.InvalidArgument, match="known: paper, timm, torch-optimizer, optax"):
        gradwire.LARS(parameters, gradients, 0.1, preset="apex")


@pytest.mark.parametrize("spec, name, settings", [
    ("sgd:momentum=0.9,weight_decay=0.01", "SGD", {"momentum": 0.9, "weight_decay": 0.01}),
    ("sgd:momentum=0.8,nesterov=1", "SGD", {"momentum": 0.8, "nesterov": True}),
    ("adamw", "AdamW", {}),
    ("adamw:beta1=0.8,beta2=0.95,weight_decay=0.1,epsilon=1e-6", "AdamW",
     {"betas": (0.8, 0.95), "weight_decay": 0.1, "eps": 1e-6}),
])
def test_steps_are_those_of_torch(spec, name, settings, rng):
    torch = pytest.importorskip("torch", reason="torch is an optional extra")
    parameters, gradients = problem(rng)
    theirs = [torch.nn.Parameter(torch.from_numpy(p.copy())) for p in parameters]
    peer = getattr(torch.optim, name)(theirs, lr=0.01, **settings)
    steps = gradwire.make_optimizer(spec, parameters, gradients, lr=0.01)
    for _ in range(200):
        for gradient, parameter in zip(gradients, theirs):
            gradient[...] = rng.standard_normal(gradient.shape)
            parameter.grad = torch.from_numpy(gradient.copy())
        steps.step()
        peer.step()
    for actual, wanted in zip(parameters, theirs):
        np.testing.assert_allclose(actual, wanted.detach().numpy(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("spec", [row.name for row in gradwire.optimizers()])
def test_a_parameter_without_elements_is_left_alone(spec):
    empty, weight = np.zeros((0, 3), np.float32), np.ones(3, np.float32)
    steps = gradwire.make_optimizer(spec, [empty, weight], [empty.copy(), np.ones(3, np.float32)])
    steps.step()
    assert weight[0] < 1 and np.isfinite(weight).all()
    again = gradwire.make_optimizer(spec, [empty, weight], [empty.copy(), np.ones(3, np.float32)])
    again.load_state_dict(steps.state_dict())


def test_gradients_are_scaled_as_they_are_read(rng):
    parameters, gradients = problem(rng)
    twins = [p.copy() for p in parameters]
    scaled = [np.zeros_like(p) for p in parameters]
    plain = gradwire.AdamW(parameters, gradients, 0.1, max_grad_norm=1.0)
    unscaling = gradwire.AdamW(twins, scaled, 0.1, max_grad_norm=1.0)
    for gradient, large in zip(gradients, scaled):
        gradient[...] = rng.standard_normal(gradient.shape)
        large[...] = 65536 * gradient
    plain.step(known_finite=True)
    unscaling.step(gradient_scale=1 / 65536)
    for actual, wanted in zip(twins, parameters):
        np.testing.assert_array_equal(actual, wanted)
    with pytest.raises(gradwire.InvalidArgument, match="gradient_scale is 2"):
        plain.step(gradient_scale=2)


def test_groups_have_momentum_of_their_own():
    weights, bias = np.full(2, 2, np.float32), np.full(2, 2, np.float32)
    gradients = [np.ones(2, np.float32), np.ones(2, np.float32)]
    steps = gradwire.SGD([weights, bias], gradients, 0.1, momentum=0.5,
                         groups=[{"parameters": [0], "momentum": 0.0}])
    steps.step()
    steps.step()
    np.testing.assert_allclose(weights, 1.8, rtol=1e-6)  # by hand: 2 - 0.1 - 0.1
    np.testing.assert_allclose(bias, 1.75, rtol=1e-6)  # 2 - 0.1 - 0.1 * 1.5
    with pytest.raises(gradwire.InvalidArgument, match="momentum is 1"):
        gradwire.SGD([weights], gradients[:1], 0.1, groups=[{"parameters": [0], "momentum": 1}])


def test_steps_happen_in_the_callers_memory(rng):
    flat = rng.standard_normal(300).astype(np.float32)
    before = flat.copy()
    parameters = [flat[:100].reshape(10, 10), flat[100:200]]
    gradients = [np.ones((10, 10), np.float32), np.ones(100, np.float32)]
    gradwire.SGD(parameters, gradients, lr=0.5, momentum=0.0).step()
    np.testing.assert_array_equal(flat[:200], before[:200] - 0.5)
    np.testing.assert_array_equal(flat[200:], before[200:])


def test_the_optimizer_keeps_its_arrays_alive():
    parameters, gradients = [np.ones(1000, np.float32)], [np.ones(1000, np.float32)]
    optimizer = gradwire.SGD(parameters, gradients, lr=1.0, momentum=0.0)
    view = parameters[0][:]
    del parameters, gradients
    optimizer.step()
    assert not view.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("spec", [row.name for row in gradwire.optimizers()])
def test_a_non_finite_gradient_changes_nothing_and_names_the_parameter(spec, bad, rng):
    parameters, gradients = problem(rng)
    optimizer = gradwire.make_optimizer(spec, parameters, gradients, lr=0.1,
                                        names=["fc.weight", "fc.bias", "scale", "table"])
    for gradient in gradients:
        gradient[...] = 1
    optimizer.step()
    weights, state = [p.copy() for p in parameters], optimizer.state_dict()
    gradients[3][4999] = bad
    with pytest.raises(gradwire.NonFiniteGradient, match="table"):
        optimizer.step()
    for kept, parameter in zip(weights, parameters):
        np.testing.assert_array_equal(kept, parameter)
    after = optimizer.state_dict()
    assert after["scalars"] == state["scalars"]
    for name, pieces in state["tensors"].items():
        for piece, values in pieces.items():
            np.testing.assert_array_equal(after["tensors"][name][piece], values)


@pytest.mark.parametrize("optimizer, reference, settings", CASES)
def test_state_dict_resumes_bit_for_bit(optimizer, reference, settings, rng):
    first, gradients = problem(rng)
    straight = optimizer(first, gradients, 0.1, **settings)
    for _ in range(3):
        for gradient in gradients:
            gradient[...] = rng.standard_normal(gradient.shape)
        straight.step()
    second = [p.copy() for p in first]
    resumed = optimizer(second, gradients, 0.7, **settings)
    resumed.load_state_dict(pickle.loads(pickle.dumps(straight.state_dict())))
    assert resumed.lr == 0.1
    for _ in range(3):
        straight.step()
        resumed.step()
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


def floats(numel=3):
    return np.zeros(numel, np.float32)


def read_only():
    array = floats()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("call, message", [
    (lambda: gradwire.SGD([], [], 0.1), "parameter"),
    (lambda: gradwire.LARS(floats(), [floats()], 0.1), "parameters: is a ndarray, must be a list of arrays"),
    (lambda: gradwire.LARS([floats()], floats(), 0.1), "gradients: is a ndarray, must be a list"),
    (lambda: gradwire.SGD([floats()], [floats()], 0.1, groups=[{"parameters": [0], "lr": 1}]),
     "has the field 'lr', known: parameters, weight_decay, learning_rate_scale"),
    (lambda: gradwire.SGD([floats()], [], 0.1), "gradients: holds 0 arrays, must hold 1"),
    (lambda: gradwire.SGD([floats()], [floats(4)], 0.1),
     "gradients[0]: has 4 elements, must have 3"),
    (lambda: gradwire.SGD([read_only()], [floats()], 0.1), "parameters[0]: is read-only"),
    (lambda: gradwire.SGD([np.zeros(3)], [floats()], 0.1), "parameters[0]: dtype is float64"),
    (lambda: gradwire.SGD([floats(6)[::2]], [floats()], 0.1), "parameters[0]: is not contiguous"),
    (lambda: gradwire.SGD([[0.0]], [floats()], 0.1), "parameters[0]: is a list"),
    (lambda: gradwire.SGD([floats()], [floats()], 0.1, momentum=1.0), "momentum is 1"),
    (lambda: gradwire.SGD([floats()], [floats()], 0.1, momentum="x"), "momentum: is 'x'"),
    (lambda: gradwire.LAMB([floats()], [floats()], 0.1, beta2=math.nan), "beta2"),
    (lambda: gradwire.LARS([floats()], [floats()], 0.1, trust_coefficient=0), "trust_coefficient"),
    (lambda: gradwire.SGD([floats()] * 2, [floats()] * 2, 0.1, names=["a", "a"]),
     "'a' is there twice"),
    (lambda: gradwire.SGD([floats()], [floats()], 0.1, names=[]), "names: holds 0"),
    (lambda: gradwire.SGD([floats()], [floats()], 0.1, groups=[{"parameters": [1]}]),
     "groups[0]: names parameter 1, must be in [0, 1)"),
    (lambda: gradwire.SGD([floats()], [floats()], 0.1,
                          groups=[{"parameters": [0]}, {"parameters": [0]}]),
     "groups[0] has already"),
    (lambda: gradwire.SGD([floats()], [floats()], 0.1, groups=[{"lr": 1}]), "known: parameters"),
    (lambda: gradwire.make_optimizer("adam", [floats()], [floats()]),
     "known: sgd, adamw, lars, larc, lamb, onebit-adam, onebit-lamb, diloco"),
    (lambda: gradwire.make_optimizer("lamb:beta3=1", [floats()], [floats()]), "beta3"),
    (lambda: gradwire.SGD([floats()], [floats()], 0.1, threads=0), "threads"),
    (lambda: gradwire.SGD([floats()], [floats()], 0.1).step(-1.0), "learning"),
    (lambda: gradwire.SGD([floats()], [floats()], 0.1).step(math.inf), "learning"),
])
def test_a_bad_request_is_refused_by_name(call, message):
    with pytest.raises(gradwire.InvalidArgument) as error:
        call()
    assert message in str(error.value)


def test_make_optimizer_reads_a_spec():
    w, g = np.ones(3, np.float32), np.ones(3, np.float32)
    optimizer = gradwire.make_optimizer("lamb:weight_decay=0.01", [w], [g])
    assert optimizer.spec == gradwire.LAMB([w], [g], 0.1, weight_decay=0.01).spec
    assert optimizer.spec == "lamb:weight_decay=0.01"


@pytest.mark.parametrize("call, message", [
    (lambda p: gradwire.SGD(p, p, lr=-0.1), "lr: is -0.1, must be finite and >= 0"),
    (lambda p: gradwire.LAMB(p, p, float("inf")), "lr: is inf, must be finite"),
    (lambda p: gradwire.AdamW(p, p, "fast"), "lr: is 'fast', must be a number"),
    (lambda p: gradwire.SGD(p, p, lr=0.1, momentm=0), r"SGD: unknown setting 'momentm' \(did you mean "
     r"'momentum'\?\), known: momentum, nesterov, weight_decay, .*, groups, names, threads, slices, stream$"),
    (lambda p: gradwire.LARC(p, p, 0.1, beta1=0.9), "LARC: unknown setting 'beta1', known: momentum, "),
    (lambda p: gradwire.DiLoCo(p, p, every=3), "DiLoCo: unknown setting 'every', known: momentum, nesterov"),
    (lambda p: gradwire.make_optimizer("sgd", p, p, lr=0.1, weight_decay=0), "Optimizer: unknown setting"),
])
def test_a_setting_that_cannot_be_is_refused_when_it_is_made(call, message):
    with pytest.raises(gradwire.InvalidArgument, match=message):
        call([np.ones(3, np.float32)])
