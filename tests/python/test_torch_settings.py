"""Settings of gradwire.torch's optimizers: from a spec, and refused where they are given."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is an optional extra")

import gradwire  # noqa: E402
import gradwire.torch as gt  # noqa: E402

BAD = [
    ("SGD", {"weight_decay": -1}, "weight_decay is -1"),
    ("SGD", {"momentum": 1.0}, "momentum is 1, must be in"),
    ("SGD", {"weight_decay": "much"}, "weight_decay: is 'much', must be a number"),
    ("AdamW", {"betas": (1.0, 0.9)}, "beta1 is 1, must be in"),
    ("AdamW", {"betas": (0.9, -0.1)}, "beta2 is -0.1"),
    ("AdamW", {"betas": 0.9}, "betas: is 0.9, must be two numbers"),
    ("AdamW", {"betas": (0.9,)}, "betas: is .0.9,., must be two numbers"),
    ("AdamW", {"eps": 0}, "epsilon is 0, must be > 0"),
    ("LAMB", {"eps": float("nan")}, "epsilon is nan"),
    ("LARS", {"lr": 0.1, "adapt": "no"}, "adapt: is 'no', must be True or False"),
    ("LAMB", {"adapt": 0}, "adapt: is 0, must be True or False"),
]


def one():
    return torch.nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("name, settings, message", BAD)
def test_a_bad_setting_is_refused_at_once(name, settings, message):
    kind = getattr(gt, name)
    with pytest.raises(gradwire.InvalidArgument, match=message):
        kind([one()], **settings)
    group = {"params": [one()], **settings}
    with pytest.raises(gradwire.InvalidArgument, match=f"group 1: {message}|^{message}"):
        kind([{"params": [one()]}, group], lr=0.1)
    with pytest.raises(gradwire.InvalidArgument, match=message):  # though no group takes it
        kind([{"params": [one()], **{key: good(kind, key) for key in settings}}], **settings)
    optimizer = kind([one()], lr=0.1)
    before = copy.deepcopy(optimizer.param_groups)
    with pytest.raises(gradwire.InvalidArgument, match=message):
        optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1 and optimizer.param_groups[0].keys() == before[0].keys()
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    optimizer.step()


def good(kind, key):
    return kind([one()], lr=0.1).param_groups[0][key]


@pytest.mark.parametrize("name, key, meant", [
    ("SGD", "wd", "weight_decay"), ("SGD", "momentm", "momentum"), ("AdamW", "weight_decy", "weight_decay"),
    ("LAMB", "beta1", "betas"), ("LARS", "learning_rate", "lr"), ("AdamW", "epsilon", "eps")])
def test_a_misspelt_key_of_a_group_is_refused(name, key, meant):
    kind, settings = getattr(gradwire.torch, name), {"lr": 0.1} if name == "LARS" else {}
    with pytest.raises(gradwire.InvalidArgument, match=f"'{key}', which nothing reads, must be '{meant}'"):
        kind([{"params": [torch.nn.Parameter(torch.ones(2))], key: 0.1}], **settings)
    optimizer = kind([torch.nn.Parameter(torch.ones(2))], **settings)
    with pytest.raises(gradwire.InvalidArgument, match=f"'{key}', which nothing reads"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], key: 0.1})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_keys_of_torch_and_of_schedulers_stay(kind):
    """Groups of an optimizer of torch's, which has had every scheduler, are another's."""
    theirs = kind([{"params": [torch.nn.Parameter(torch.ones(2))], "name": "rest", "lr_scale": 0.5,
                    "weight_decay_mult": 2.0}], lr=0.1)  # fmt: skip
    schedulers = torch.optim.lr_scheduler
    schedulers.CyclicLR(theirs, 0.01, 0.1, cycle_momentum=kind is torch.optim.SGD)
    torch.optim.swa_utils.SWALR(theirs, 0.05)
    schedulers.OneCycleLR(theirs, 0.1, total_steps=9, cycle_momentum=kind is torch.optim.SGD)
    mine = getattr(gradwire.torch, kind.__name__)(theirs.param_groups)
    assert set(theirs.param_groups[0]) <= set(mine.param_groups[0])
    schedulers.ExponentialLR(mine, 0.9)
    mine.param_groups[0]["params"][0].grad = torch.ones(2)
    mine.step()


def test_whether_state_stays_full_is_true_or_false():
    with pytest.raises(gradwire.InvalidArgument, match="full_state: is 'no', must be True or False"):
        gt.AdamW([{"params": [one()], "full_state": "no"}], state="8bit")


@pytest.mark.parametrize("spec, same", [
    ("sgd:weight_decay=0.01,nesterov=1",
     lambda p: gt.SGD(p, 0.05, momentum=0.9, weight_decay=0.01, nesterov=True)),
    ("adamw:beta2=0.95,epsilon=1e-6,state=8bit",
     lambda p: gt.AdamW(p, 0.05, (0.9, 0.95), 1e-6, state="8bit")),
    ("lars:preset=timm,momentum=0.8", lambda p: gt.LARS(p, 0.05, 0.8, preset="timm")),
    ("larc:trust_coefficient=0.01", lambda p: gt.LARC(p, 0.05, trust_coefficient=0.01)),
    ("lamb:preset=apex,weight_decay=0.01", lambda p: gt.LAMB(p, 0.05, weight_decay=0.01, preset="apex")),
])
def test_an_optimizer_of_a_spec_is_its_classs(spec, same):
    torch.manual_seed(20261123)
    mine = [torch.nn.Parameter(torch.randn(5000)), torch.nn.Parameter(torch.randn(7, 3))]
    peers = [torch.nn.Parameter(p.detach().clone()) for p in mine]
    ours, theirs = gt.make_optimizer(spec, mine, 0.05), same(peers)
    assert type(ours) is type(theirs) and ours.spec == theirs.spec
    assert ours.defaults == theirs.defaults and repr(ours) == repr(theirs)
    for _ in range(4):
        for a, b in zip(mine, peers):
            a.grad = torch.randn(a.shape)
            b.grad = a.grad.clone()
        ours.step(), theirs.step()
    for a, b in zip(mine, peers):
        assert torch.equal(a, b)
    theirs.load_state_dict(copy.deepcopy(ours).state_dict())


def test_what_no_gradient_alone_steps_and_what_nobody_knows_is_refused():
    with pytest.raises(gradwire.InvalidArgument, match="'diloco', must be of sgd, adamw, lars, larc"):
        gt.make_optimizer("diloco", [one()])
    with pytest.raises(gradwire.InvalidArgument, match="unknown name 'adam'"):
        gt.make_optimizer("adam", [one()])


def test_a_large_batchs_optimizer_follows_its_schedule():
    large = gradwire.large_batch("sgd:weight_decay=5e-4", 0.1, 8, 32, examples=640, epochs=1)
    weight, bias = torch.nn.Parameter(torch.ones(3, 3)), one()
    rest = {"params": [bias], "weight_decay": 0.0, "adapt": False}
    optimizer = gt.make_optimizer(large.optimizer, [{"params": [weight]}, rest], lr=1.0)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, large.schedule.at)
    assert type(optimizer) is gt.LARC
    assert [g["weight_decay"] for g in optimizer.param_groups] == [5e-4, 0.0]
    for step in range(3):
        assert [g["lr"] for g in optimizer.param_groups] == [pytest.approx(large.schedule.at(step))] * 2
        weight.grad, bias.grad = torch.ones(3, 3), torch.ones(3)
        optimizer.step(), rates.step()
