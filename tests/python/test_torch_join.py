"""gradwire.torch.register() under torch's Join: ranks that have fewer batches than others."""

import logging

import pytest
import rank_processes
from rank_processes import needs_torch
from test_torch_ddp import check

pytestmark = needs_torch

if rank_processes.HAS_TORCH:
    import torch
    from ddp_case import assert_ranks_agree, ddp, loss_of, parameters, sgd
    from torch.distributed.algorithms.join import Join

    import gradwire
    import gradwire.torch


def _batches(world):
    return range(4 + 2 * world.rank)


def _like_plain_ddp(world):
    ways = [(dict(find_unused_parameters=True), {}), ({}, dict(divide_by_initial_world_size=False))]
    for options, joined in ways:
        plain, hooked = ddp(**options), ddp(**options)
        exchange = gradwire.torch.register(hooked, "none", timeout=30.0)
        for model in (plain, hooked):
            optimizer = sgd(model)
            with Join([model], **joined):
                for step in _batches(world):
                    optimizer.zero_grad()
                    use = step % 2 == 0 or not options
                    loss_of(model, world.rank, step, use=use).backward()
                    optimizer.step()
        torch.testing.assert_close(parameters(hooked), parameters(plain), msg=f"{options}, {joined}")
        assert exchange.stats()["step"] == 5
        exchange.close()


def test_ranks_that_have_joined_take_part_as_in_plain_ddp(tmp_path):
    check(2, _like_plain_ddp, tmp_path)


class _Said(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []
        logging.getLogger("gradwire").addHandler(self)

    def emit(self, record):
        self.texts.append(record.getMessage())


def _not_finite(world):
    said, caught = _Said(), 0
    model = ddp(find_unused_parameters=True)
    exchange = gradwire.torch.register(model, "tensortopk:10%", exempt_1d="never", timeout=30.0)
    optimizer = sgd(model)
    with Join([model]):
        for step in _batches(world):
            optimizer.zero_grad()
            loss = loss_of(model, world.rank, step) * (float("nan") if step == 4 else 1.0)
            try:
                loss.backward()
            except gradwire.NonFiniteGradient as error:
                assert step == 4 and "rank 1's gradient holds NaN" in str(error)
                caught += 1
                continue
            optimizer.step()
    # Rank 0 has joined behind its step 3, and says what rank 1 has caught.
    assert caught == world.rank
    told = [text for text in said.texts if "on a rank that has joined" in text]
    assert len(told) == 1 - world.rank and all("rank 1's gradient holds NaN" in each for each in told)
    assert_ranks_agree(parameters(model))
    assert parameters(model).isfinite().all()
    assert exchange.stats()["step"] == 5


def test_a_bad_gradient_does_not_end_a_rank_that_has_joined(tmp_path):
    check(2, _not_finite, tmp_path)


def _ended(world):
    model = ddp()
    exchange = gradwire.torch.register(model, "none", timeout=30.0)
    with pytest.raises(gradwire.TransportError):
        with Join([model]):
            for step in _batches(world):
                if step == 5:  # which rank 0 has joined before, and does not know of
                    exchange.set_spec("int8")
                loss_of(model, world.rank, step).backward()
    torch.distributed.barrier()  # both are there all the time


def test_what_ends_the_group_is_raised_on_a_rank_that_has_joined(tmp_path):
    check(2, _ended, tmp_path)
