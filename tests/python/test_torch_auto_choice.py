"""gradwire.torch's 'auto' with the pilot itself: what it chooses on a slow link and where an exchange
is short."""

import time

import pytest
from rank_processes import HAS_TORCH, needs_torch

import gradwire

pytestmark = needs_torch
if not gradwire.build_info()["features"]["planner"]:
    pytest.skip("this build has no planner", allow_module_level=True)

if HAS_TORCH:
    import torch
    from auto_case import check
    from ddp_case import assert_ranks_agree, ddp, parameters, sgd, train
    from slow_link import make_the_link_slow, wide

    import gradwire.torch


def _slow_link(world):
    make_the_link_slow()
    model = ddp(wide())
    exchange = gradwire.torch.register(model, "auto:window=10", timeout=60.0)
    optimizer = sgd(model)
    dense = 0
    for step in range(40):
        train(model, optimizer, step, step + 1)
        stats = exchange.stats()
        dense += int(stats["bytes_sent"] > 0.6 * stats["dense_bytes"])
    assert_ranks_agree(parameters(model), "behind all steps")
    found = [exchange.spec, str(exchange.plan), exchange.decisions(), dense]
    exchange.close()
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_on_a_slow_link_it_compresses_and_says_why(tmp_path, world_size):
    # Dense gradients take 0.15 s a step and more there, 4 bits an eighth of that.
    ends = check(world_size, _slow_link, tmp_path)
    assert all(each == ends[0] for each in ends[1:])
    spec, plan, records, dense = ends[0]
    assert spec != "none" and spec in plan
    kinds = [r["what"] for r in records]
    assert kinds[:3] == ["probe", "probe", "begin"] and "choose" in kinds
    assert next(k for k in kinds[3:] if k != "probe") == "predict"
    assert [r["step"] for r in records[:3]] == [0, 0, 0] and records[2]["to"] != "none"
    assert dense == 0  # bytes of the first steps, beside those of dense gradients
    link = records[0]["numbers"]
    assert 1 / 4e6 < link["s_per_byte"] < 1 / 1e6  # 2 MB/s
    choice = next(r for r in records if r["what"] == "choose")
    assert choice["reason"] and choice["to"] != "none" and choice["numbers"]
    assert [r["step"] for r in records] == sorted(r["step"] for r in records)


def _other_choices(world):
    make_the_link_slow()
    spec = f"auto:specs=int{4 if world.rank == 0 else 8}"
    with pytest.raises(gradwire.TransportError, match="what it may choose.*disagree"):
        gradwire.torch.register(ddp(wide()), spec, timeout=60.0)


def test_ranks_that_may_choose_otherwise_are_told_so_before_they_choose(tmp_path):
    check(2, _other_choices, tmp_path)


def _factors(world):
    # What the products of factors take beside other work is little beside bf16's bytes (0.3 s) here.
    make_the_link_slow(4e6)
    ends = []
    for steps in ((0, 18), (18, 22)):  # the guard judges behind step 21 first
        model = ddp(wide())
        exchange = gradwire.torch.register(model, "auto:window=10,specs=powersgd:2", timeout=60.0)
        if ends:
            exchange.load_state_dict(ends[0][1])
        optimizer = sgd(model)
        for step in range(*steps):
            train(model, optimizer, step, step + 1)
        assert_ranks_agree(parameters(model), f"behind step {steps[1]}")
        ends.append([(exchange.spec, str(exchange.plan)), exchange.state_dict(), exchange.decisions()])
        exchange.close()
    assert ends[1][0] == ends[0][0]  # a checkpoint's plan is kept
    return ends[0][0][0], ends[0][2]


def test_factors_of_matrices_are_taken_where_they_are_asked_for(tmp_path):
    (spec, records), other = check(2, _factors, tmp_path)
    assert other == (spec, records)
    assert spec == "powersgd:2"
    predicted = next(r for r in records if r["what"] == "predict")["numbers"]
    assert any(name.startswith("predicted_s of powersgd:2") for name in predicted)


def _short_exchange(world):
    models = []
    for spec in ("none", "auto"):
        model = ddp()
        exchange = gradwire.torch.register(model, spec, timeout=30.0)
        optimizer = sgd(model)
        for step in range(12):
            time.sleep(0.25)
            train(model, optimizer, step, step + 1)
        models.append((parameters(model), str(exchange.plan)))
        found = exchange.spec, exchange.decisions()
        exchange.close()
    assert torch.equal(models[0][0], models[1][0]) and models[0][1] == models[1][1]
    return found


def test_where_the_exchange_is_short_it_stays_off(tmp_path):
    # 5 KB on the loopback, of steps of a quarter of a second.
    (spec, records), other = check(2, _short_exchange, tmp_path)
    assert other == (spec, records)
    assert spec == "none"
    probe, record = records
    assert probe["what"] == "probe" and probe["step"] == 0
    assert record["what"] == "choose" and record["to"] == "none" and record["step"] == 8
    assert "too small a part of the step" in record["reason"]
    assert 0 < record["numbers"]["exposed_s"] < 0.1 * record["numbers"]["step_s"]
