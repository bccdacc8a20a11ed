"""gradwire.torch.register_fsdp(): finite gradients whose sum overflows, which one rank alone sees."""

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    from ddp_case import loss_of
    from fsdp_case import gradients, registered, train, weights

    import gradwire
    import gradwire.torch


def _backward_with_large_bias(model, rank, step):
    """The gradient of the last element of a bias becomes 3e38: the last rank owns its sum."""
    extra = []
    hook = model.first.register_forward_hook(
        lambda module, inputs, output: extra.append(3e38 * module.bias[-1])
    )
    loss = loss_of(model, rank, step)
    hook.remove()
    model.zero_grad()
    (loss + extra[0]).backward()


def _overflows(world):
    for spec, policy in [("int8", "error"), ("topk:10%,int4", "skip"), ("none", "error")]:
        model, exchange = registered(spec, whole=True, on_nonfinite=policy)
        calm, _ = registered(spec, whole=True)
        for each in (model, calm):
            train(each, 0, 3)
        before = {name: exchange.residual(name) for name, _ in model.named_parameters()}
        if policy == "error":
            message = "the sum of the ranks' finite gradients of '.*' overflows, expected finite values"
            with pytest.raises(gradwire.NonFiniteGradient, match=message):
                _backward_with_large_bias(model, world.rank, 3)
        else:
            _backward_with_large_bias(model, world.rank, 3)
        assert all(g.isnan().all() for g in gradients(model).values())
        assert exchange.step == 3 and exchange.stats()["committed"] == 0
        for name, residual in before.items():
            assert residual is None or torch.equal(residual, exchange.residual(name))
        for each in (model, calm):
            train(each, 4, 6)  # as if that step had never been
        assert torch.equal(weights(model), weights(calm))
        assert exchange.step == 5


def test_a_sum_that_overflows_on_its_owner_commits_nothing_on_any_rank(tmp_path):
    check(2, _overflows, tmp_path)
