"""`gradwire bench --trainer torch`: DDP workers, gradwire's specs and peers beside each other."""

import argparse
import dataclasses
import json
import os
import re
import signal

import numpy
import pytest
from bench_support import alive, bench, forked_workers, start, wait_until
from rank_processes import HAS_TORCH, needs_torch

from gradwire.bench import add_arguments, torch_job
from gradwire.bench.errors import UsageError

pytestmark = needs_torch
pytest.importorskip("sklearn", reason="the digits come from scikit-learn")
pytest.importorskip("matplotlib", reason="the benchmark draws plots")

if HAS_TORCH:
    import torch
    import torch.distributed as dist
    from rank_processes import run_ranks

    import gradwire
    import gradwire.torch
    from gradwire.bench.torch_trainer import data, methods, optimizers, workloads

PEERS = ["ddp", "ddp-fp16", "ddp-powersgd:1", "ddp-post-local-sgd:2", "ddp-topk:1%"]
OURS = ["none", "int4@two_shot"]


@pytest.fixture
def options(tmp_path):
    return [
        *("--trainer", "torch", "--json", tmp_path / "out.json", "--output", tmp_path / "plots"),
        *("--workers", 2, "--links", "none", "--link-mode", "pacing", "--timeout", 60),
    ]


def document(tmp_path):
    return json.loads((tmp_path / "out.json").read_text())


def test_every_method_trains_and_ends_with_the_same_bits_on_all_ranks(options, tmp_path):
    code, out, err = bench(
        *options, "--methods", ";".join(OURS + PEERS), "--max-steps", 14, "--eval-every", 7,
        "--stop-at-target", 0, "--batch-size", 8, timeout=600,
    )  # fmt: skip
    assert code == 0, err  # ranks whose parameters differ end it with code 1
    found = document(tmp_path)
    assert found["ended"] == "complete"
    assert [row["method"] for row in found["rows"]] == OURS + PEERS
    for row in found["rows"]:
        assert row["peer"] == row["method"].startswith("ddp")
        assert row["steps"] == 14
        assert 1.1e6 < row["parameters"] < 1.3e6
        assert 0 <= row["final_accuracy"] <= 1
        assert row["step_ms"] >= row["compute_ms"] > 0
        assert row["exposed_exchange_ms"] >= 0
        assert row["step_ms"] >= row["step_ms_least"] > 0
        assert (row["wire_bytes_per_step"] is None) == row["peer"]
        assert f"{row['method']} (peer)" in out or not row["peer"]
    by_method = {row["method"]: row for row in found["rows"]}
    # Nothing but the exchange differs: one model, and DDP's mean up to the order of two summands.
    assert by_method["none"]["final_accuracy"] == by_method["ddp"]["final_accuracy"]
    assert by_method["int4@two_shot"]["exchange"] == "two_shot"


def test_optimizers_that_torch_lacks_step_too(options, tmp_path):
    code, _, err = bench(
        *options, "--methods", "none", "--optimizer", "lars,lamb", "--max-steps", 12, "--batch-size",
        32, "--stop-at-target", 0, timeout=300,
    )  # fmt: skip
    assert code == 0, err
    found = document(tmp_path)["rows"]
    assert [(row["optimizer"], row["learning_rate"]) for row in found] == [("lars", 3.0), ("lamb", 0.005)]
    assert all(row["final_accuracy"] > 0.2 for row in found)  # guessing reaches 0.1


def test_layerwise_optimizers_keep_biases_from_decay_adaptation_and_the_rate_of_lars():
    model = torch.nn.Linear(3, 2)
    options = argparse.Namespace(optimizer="lars:weight_decay=0.5,momentum=0", learning_rate=2.0)
    torch.nn.init.ones_(model.weight), torch.nn.init.ones_(model.bias)
    made = optimizers.make(options, model)
    model.weight.grad, model.bias.grad = torch.full((2, 3), 0.1), torch.full((2,), 0.1)
    made.step(2.0)
    # By hand: the bias moves by 2 * 0.001 * 0.1; a weight by lr * 0.001 * |w| / (|g| + wd |w|) * (g + wd w).
    assert torch.allclose(model.bias, torch.full((2,), 1 - 2 * 0.001 * 0.1), atol=1e-7, rtol=0)
    moved = 2 * 0.001 * 6**0.5 / (0.1 * 6**0.5 + 0.5 * 6**0.5 + 1e-6) * (0.1 + 0.5)
    assert torch.allclose(model.weight, torch.full((2, 3), 1 - moved), atol=1e-7, rtol=0)


def test_accuracy_is_known_at_the_end_of_each_epoch(options, tmp_path):
    code, out, err = bench(
        *options, "--methods", "none;ddp-fp16", "--epochs", 2, "--eval-every", 7,
        "--stop-at-target", 0, "--batch-size", 128, timeout=300,
    )  # fmt: skip
    assert code == 0, err
    found = document(tmp_path)
    (equal,) = found["at_equal_epochs"]  # of the only training
    for row, curve, at_end in zip(found["rows"], found["curves"], equal["rows"]):
        by_step = {point["step"]: point["accuracy"] for point in curve["points"]}
        assert sorted(by_step) == [5, 7, 10]  # 1,437 digits, 256 a step
        assert row["accuracy_by_epoch"] == [by_step[5], by_step[10]]
        assert (at_end["method"], at_end["accuracy"]) == (row["method"], by_step[10])
    assert equal["epoch"] == 2 and "epoch 2" in out


def test_gradients_alone_are_exchanged_and_have_no_accuracy(options, tmp_path):
    code, _, err = bench(
        *options, "--workload", "gradients:resnet50", "--methods", "int4,ddp-fp16",
        "--max-steps", 3, timeout=300,
    )  # fmt: skip
    assert code == 0, err
    for row in document(tmp_path)["rows"]:
        assert (row["parameters"], row["steps"]) == (25_557_032, 3)
        assert row["final_accuracy"] is None


def test_a_model_of_bytes_trains_on_a_text(options, tmp_path):
    text = tmp_path / "text"
    text.write_bytes(b"the cat sat on the mat and the dog sat on the log. " * 1500)
    code, _, err = bench(
        *options, "--workload", "bytes", "--text", text, "--methods", "int8", "--epochs", 1,
        "--batch-size", 8, "--max-steps", 60, timeout=300,
    )  # fmt: skip
    assert code == 0, err
    (row,) = document(tmp_path)["rows"]
    assert row["final_accuracy"] > 0.3  # the most frequent byte is a quarter of the text


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--methods", "none;zip"), "zip.*topk.*peers: ddp, ddp-fp16"),
        (("--methods", "none;ddp-zip"), "ddp-zip.*expected one of ddp, ddp-fp16, ddp-powersgd"),
        (("--methods", "ddp-powersgd"), "ddp-powersgd:1"),
        (("--methods", "ddp-topk:200%"), r"\(0, 1\]"),
        (("--methods", "ddp-post-local-sgd", "--workload", "gradients:resnet50"), "none that move"),
        (("--links", "50mbit"), "cannot be paced"),
        (("--hidden", "64"), "--hidden: 64 is not for --trainer torch"),
        (("--text", "/nowhere", "--workload", "bytes"), "/nowhere: no such file"),
        (("--optimizer", "lion"), "'lion' is not one of --trainer torch, expected sgd, adamw, lars, larc"),
        (("--optimizer", "lars:speed=9"), "speed"),
        (("--methods", "none;diloco:20"), "'diloco:20' is not for --workload cnn, expected mlp or conv"),
        (("--optimizer", "sgd:speed=9"), "sgd:speed=9.*torch.optim.SGD"),
    ],
)
def test_what_cannot_be_trained_is_told_before_anything_runs(options, tmp_path, more, named):
    code, out, err = bench(*options, "--methods", "none", *more)
    assert (code, out) == (2, ""), err
    assert re.search(named, err.strip().splitlines()[-1]), err
    assert not (tmp_path / "out.json").exists()


@pytest.mark.skipif(HAS_TORCH and torch.cuda.device_count() >= 2, reason="there are GPUs")
@pytest.mark.parametrize("method", ["ddp", "topk:1%,int4"])
def test_cuda_is_refused_where_there_is_no_gpu(options, method):
    code, _, err = bench(*options, "--device", "cuda", "--methods", method)
    assert code == 2
    why = "" if torch.version.cuda else "built without CUDA, "
    assert f"{why}can use, expected one for each of 2 workers" in err.strip().splitlines()[-1]


def test_on_a_gpu_gradwire_goes_over_its_own_nccl_or_says_why_not(monkeypatch):
    found = methods.find("topk:1%,int4", "auto")
    with monkeypatch.context() as without:
        info = dict(gradwire.build_info(), cuda_unavailable_reason="no driver")
        without.setattr(gradwire, "build_info", lambda: info)
        with pytest.raises(gradwire.InvalidArgument, match="device cuda here: no driver.*peer: ddp"):
            found.check([("w", (8, 8))], "cuda")
        found.check([("w", (8, 8))], "cpu")
    usable = [dataclasses.replace(row, unavailable_reason="") for row in gradwire.transports()]
    monkeypatch.setattr(gradwire, "transports", lambda: usable)
    monkeypatch.setattr(gradwire, "build_info", lambda: {"cuda_unavailable_reason": ""})
    carriers = []
    monkeypatch.setattr(
        gradwire.torch, "register", lambda ddp, spec, **how: carriers.append(how["carrier"])
    )
    for device in ("cuda", "cpu"):
        found.check([("w", (8, 8))], device)
        found.install(None, 30.0, 1)
    assert carriers == ["nccl", "gloo"]


def test_options_of_torch_are_refused_with_the_other_trainer():
    for words, says in [
        (("--device", "cuda"), "--device cuda: expected with a --workload in torch alone (cnn, bytes,"),
        (("--text", "x"), "--text x: expected with a --workload in torch alone"),
        (("--trainer", "torch", "--workload", "mlp,cnn"), "--workload mlp: is trained by the C++"),
        (("--trainer", "torch", "--workload", "conv"), "--workload conv: is trained by the C++"),
        (("--convolutions", "8"), "--convolutions 8: not for --workload mlp, expected conv"),
        (("--workload", "conv", "--convolutions", "8,x"), "--convolutions: '8,x', expected widths from"),
        (("--trainer", "/t", "--workload", "bytes"), "--workload bytes is trained in torch, expected no"),
        (("--workload", "cnn,cnm"), "--workload: 'cnm' is unknown, expected mlp, conv, cnn, bytes,"),
        (("--workload", "cnn,cnn"), "--workload: cnn is given twice"),
        (("--workload", "bytes", "--data", "x"), "--data x: not for --workload bytes, expected mlp or conv"),
    ]:
        code, out, err = bench("--methods", "none", *words)
        assert (code, out) == (2, ""), words
        assert says in err.strip().splitlines()[-1], err


def test_without_torch_the_way_to_get_it_is_told(monkeypatch):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    monkeypatch.setattr(torch_job.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="torch is not installed.*pip install torch"):
        torch_job.check(parser.parse_args(["--trainer", "torch"]), "cnn", [])


def long_run(options):
    process = start(*options, "--methods", "topk:1%,int4", "--epochs", 100000, "--stop-at-target", 0)

    def workers():
        found = {rank: worker for rank, (_, worker) in forked_workers(process.pid).items()}
        return found if len(found) == 2 else None

    found = wait_until(workers, 120, "two workers")
    line = ""
    while "step" not in line:  # into the training
        line = process.stderr.readline()
        assert line, "it ended before a step"
    return process, found


def test_a_killed_worker_ends_it_with_its_name_and_leaves_none(options, tmp_path):
    process, workers = long_run(options)
    os.kill(workers[1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    last = err.strip().splitlines()[-1]
    assert f"worker 1 (pid {workers[1]}) was killed by SIGKILL" in last
    assert not alive(workers[0])
    assert document(tmp_path)["ended"] in last


def test_ctrl_c_leaves_no_worker(options, tmp_path):
    process, workers = long_run(options)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not [pid for pid in workers.values() if alive(pid)]
    assert document(tmp_path)["rows"] == []


def test_gradient_sets_have_the_published_sizes():
    for name, tensors, numel in [("bert-base", 206, 110_106_428), ("gpt2", 148, 124_439_808)]:
        shapes = workloads.shapes_of(name)
        assert (len(shapes), sum(int(numpy.prod(shape)) for shape in shapes)) == (tensors, numel)
    assert workloads.shapes_of("bert-base")[0] == (30522, 768)
    assert (768, 3072) in workloads.shapes_of("gpt2") and (768,) in workloads.shapes_of("gpt2")


def test_resnet50_has_161_parameters_and_25557032_elements():
    shapes = workloads.resnet50()
    assert len(shapes) == 161
    assert sum(torch.Size(shape).numel() for shape in shapes) == 25_557_032
    assert shapes[0] == (64, 3, 7, 7) and shapes[-2:] == [(1000, 2048), (1000,)]


def test_gradients_are_handed_over_as_they_are_the_last_layer_first():
    made = workloads.Gradients([(3, 2), (5,)], seed=1, rank=0, device="cpu")
    order = []
    for i, parameter in enumerate(made.model.parameters()):
        parameter.register_hook(lambda _, i=i: order.append(i))
    made.loss(made.model, torch.empty(0)).backward()
    assert order == [1, 0]
    assert torch.equal(
        torch.cat([p.grad.flatten() for p in made.model.parameters()]), made._values[17 : 17 + 11]
    )


def test_one_tenth_of_a_text_is_held_out_and_targets_follow_their_bytes(tmp_path):
    file = tmp_path / "text"
    file.write_bytes(bytes(range(256)) * 1024)
    rows = data.text(file)
    assert torch.equal(rows.targets, (rows.inputs + 1) % 256)
    assert torch.equal(rows.test_targets, (rows.test_inputs + 1) % 256)
    share = len(rows.test_inputs) / (len(rows.inputs) + len(rows.test_inputs))
    assert 0.08 < share < 0.12


def _hand_top_k(world):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 1, bias=False))
    method = methods.find("ddp-topk:20%", "auto")
    method.install(model, 30.0, 0)
    gradients = [torch.tensor([9.0, -8, 1, 1, 1, 1, 1, 1, 1, 7.0]) * (dist.get_rank() + 1)] * 3
    found = []
    for gradient in gradients:
        model.zero_grad()
        (model(torch.eye(10)).flatten() * gradient).sum().backward()
        found.append(model.module.weight.grad.flatten().tolist())
    return found


def test_hand_written_top_k_sends_the_largest_and_keeps_the_rest(tmp_path):
    ends = run_ranks("torch_world", 2, _hand_top_k, folder=tmp_path)
    first, second, _ = ends[0].result()
    # Rank 1 has twice what rank 0 has: the mean is 1.5 times rank 0's.
    assert first == [13.5, -12, 0, 0, 0, 0, 0, 0, 0, 0]
    # 7 waited for a step, and goes as 14; so do 9 ahead of -8.
    assert second == [13.5, 0, 0, 0, 0, 0, 0, 0, 0, 21.0]


def test_peers_hooks_are_torchs_own():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    class Recorder:
        def register_comm_hook(self, state, hook):
            self.found = state, hook

    plain, half, low = Recorder(), Recorder(), Recorder()
    methods.find("ddp", "auto").install(plain, 30.0, 1)
    assert not hasattr(plain, "found")
    methods.find("ddp-fp16", "auto").install(half, 30.0, 1)
    assert half.found == (None, default_hooks.fp16_compress_hook)
    methods.find("ddp-powersgd:4", "auto").install(low, 30.0, 1)
    assert low.found[1] is powerSGD_hook.powerSGD_hook
    assert low.found[0].matrix_approximation_rank == 4
    assert low.found[0].use_error_feedback


def test_an_exchange_may_stand_behind_its_spec():
    assert methods.find("int4@gather", "two_shot").exchange == "gather"
    assert methods.find("int4", "two_shot").exchange == "two_shot"
    with pytest.raises(gradwire.InvalidArgument, match="no exchange behind '@'"):
        methods.find("int4@", "auto")


def test_bytes_of_an_interface_are_those_of_its_row():
    from gradwire.bench.torch_trainer.events import interface_bytes

    assert interface_bytes("lo") is None
    assert interface_bytes(None) is None
    with pytest.raises(OSError, match="no interface 'nowhere'"):
        interface_bytes("nowhere")
    rows = [row.partition(":")[0].strip() for row in open("/proc/self/net/dev") if ":" in row]
    for name in rows:
        if name != "lo":
            assert interface_bytes(name) >= 0
