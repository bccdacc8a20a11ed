"""gradwire.profile(): gradwire.torch.profile(), and what it says without torch."""

import importlib.util

import pytest

import gradwire
from gradwire import profiling


def test_without_torch_it_says_what_to_install(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else found(name, *a))
    with pytest.raises(gradwire.InvalidArgument, match="profile: torch is not installed, must be: pip"):
        gradwire.profile(lambda data: None, [], model=None, batch=1)


def test_it_is_the_profile_of_torch():
    torch = pytest.importorskip("torch", reason="gradwire.torch needs torch")
    import gradwire.torch

    assert gradwire.profile is profiling.profile
    model = torch.nn.Linear(3, 2)

    def step(x):
        model(x).sum().backward()

    found = gradwire.profile(step, [torch.ones(4, 3)], model=model, batch=4, name="tiny", steps=2)
    assert isinstance(found, gradwire.torch.StepProfile)
    assert found.document["model"] == "tiny" and [r["numel"] for r in found.layers] == [6, 2]
    with pytest.raises(gradwire.InvalidArgument, match="loader: gave 0 batches"):
        gradwire.profile(step, [], model=model, batch=4)
