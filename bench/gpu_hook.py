"""Do gradients of CUDA tensors come back as on the CPU? Several processes on the first GPU:
gradwire.torch.register() and attach(), DiLoCo and the 1-bit optimizers over gradwire's NCCL, beside the
same on the CPU.

    python3 bench/gpu_hook.py [--ranks 2]

A correctness check, and no measure of speed. Losses are made so that their gradients are the same
bits on both: means, residuals and checkpoints are then compared bit for bit. NCCL refuses two ranks
on one GPU unless it takes them for two machines (NCCL_HOSTID, from 2.28 on, over sockets). Exit: 0
all was right, 1 something was wrong, 3 nothing could run, with the reason.
"""

import argparse
import os
import subprocess
import sys
import tempfile

SPECS = ("none", "topk:10%", "int4,stochastic", "topk:10%,int8,momentum=0.8", "powersgd:2")
EXCHANGED = ("DiLoCo", "OneBitAdam", "OneBitLAMB")
SHAPES = ((40, 30), (30,), (64, 50), (1,))
STEPS = 4
AUTO_STEPS = 100
LIMIT_S = 100


def why_not():
    """Why nothing can run here; empty where it can."""
    try:
        import torch
    except ImportError as error:
        return str(error)
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    try:
        import gradwire
    except ImportError as error:
        return str(error)
    for row in gradwire.transports():
        if row.name == "nccl" and row.unavailable_reason:
            return f"gradwire's nccl: {row.unavailable_reason}"
    version = torch.cuda.nccl.version()
    if version < (2, 28):
        return f"two ranks on one GPU need NCCL 2.28, here is {'.'.join(map(str, version))}"
    return ""


def ranks_of(count):
    """Runs this file once per rank; whether all ended well."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0",
                       "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2",
                       "CUDA_MODULE_LOADING": "EAGER"}  # fmt: skip
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank), "--ranks", str(count), "--meet",
                 os.path.join(folder, "store")],
                env={**os.environ, **environment, "NCCL_HOSTID": f"rank{rank}"},
            )
            for rank in range(count)
        ]  # fmt: skip
        good = True
        for rank in ranks:
            try:
                good &= rank.wait(timeout=LIMIT_S) == 0
            except subprocess.TimeoutExpired:
                print(f"gpu_hook.py: a rank did not end within {LIMIT_S} s")
                rank.kill()
                good = False
        return good


class Model:
    """Parameters on both devices, and losses whose gradients have the same bits there."""

    def __init__(self, torch, rank):
        self.torch, self.rank = torch, rank

    def on(self, device):
        torch = self.torch
        module = torch.nn.Module()
        for i, shape in enumerate(SHAPES):
            module.register_parameter(f"p{i}", torch.nn.Parameter(torch.ones(shape, device=device)))
        parameters = list(module.parameters())
        module.forward = lambda factors: sum(
            (p * c).sum() for p, c in zip(parameters, factors)
        )
        return module

    def factors(self, step, device, bad=False):
        """The gradients of this rank in that step."""
        torch = self.torch
        generator = torch.Generator().manual_seed(1000 * self.rank + step + 1)
        factors = [torch.randn(shape, generator=generator) for shape in SHAPES]
        if bad and self.rank == 1:
            factors[2][3, 4] = float("inf")
        return [c.to(device) for c in factors]


def gradients(module):
    return [p.grad.detach().cpu().clone() for p in module.parameters()]


def same(left, right):
    """Bit for bit, NaN being NaN."""
    import numpy as np

    return all(
        (a is None) == (b is None) and (a is None or np.array_equal(a.numpy(), b.numpy(), equal_nan=True))
        for a, b in zip(left, right)
    )


def expect(what, condition):
    if not condition:
        raise AssertionError(what)


def names():
    return [f"p{i}" for i in range(len(SHAPES))]


def attached(torch, gradwire, model, spec):
    """attach() on both devices: means, residuals and checkpoints, with a loss scale and a step that
    is left out; then a checkpoint goes from one to the other."""
    sides = {}
    for device in ("cpu", "cuda"):
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=10**6)
        scaler.scale(torch.zeros(1, device=device))
        module = model.on(device)
        exchange = gradwire.torch.attach(module, spec, scaler=scaler, exchange="gather", seed=5,
                                         timeout=45.0)  # fmt: skip
        sides[device] = (module, exchange, scaler)
    for step in range(STEPS):
        seen = {}
        for device, (module, exchange, scaler) in sides.items():
            module.zero_grad()
            loss = module(model.factors(step, device, bad=step == 1))
            scaler.scale(loss).backward()
            exchange.wait()
            seen[device] = (gradients(module), [exchange.residual(name) for name in names()],
                            exchange.state_dict()["reducer"])  # fmt: skip
        for i, what in enumerate(("means", "residuals")):
            expect(f"{what} of step {step}", same(seen["cpu"][i], seen["cuda"][i]))
        expect(f"checkpoint of step {step}", torch.equal(seen["cpu"][2], seen["cuda"][2]))
        finite = all(bool(g.isfinite().all()) for g in seen["cuda"][0])
        expect(f"step {step} is left out or not", finite == (step != 1))
    on_gpu, on_cpu = sides["cuda"][1], sides["cpu"][1]
    states = on_cpu.state_dict(), on_gpu.state_dict()
    on_gpu.load_state_dict(states[0])
    on_cpu.load_state_dict(states[1])
    expect("the checkpoint that was loaded",
           torch.equal(on_gpu.state_dict()["reducer"], states[0]["reducer"]))  # fmt: skip
    for _, exchange, _ in sides.values():
        exchange.synchronize()
        exchange.close()


def hooked(torch, gradwire, model, spec):
    """register() on both devices."""
    from torch.nn.parallel import DistributedDataParallel

    seen = {}
    for device in ("cpu", "cuda"):
        ddp = DistributedDataParallel(model.on(device), bucket_cap_mb=0.01)
        exchange = gradwire.torch.register(ddp, spec, exchange="gather", seed=5, timeout=45.0,
                                           exempt_1d="never", scaler=False)  # fmt: skip
        seen[device] = []
        for step in range(STEPS):
            ddp.zero_grad()
            if device == "cuda" and step == STEPS - 1:
                factors = model.factors(step, device)  # which waits, as copies from the host do
                torch.cuda.synchronize()
                held = torch.cuda.Event()
                torch.cuda._sleep(2_000_000_000)  # cycles: about a second
                held.record()
                ddp(factors).backward()
                expect("backward() waited for the GPU", not held.query())
            else:
                ddp(model.factors(step, device)).backward()
            seen[device].append(gradients(ddp))
        exchange.synchronize()
        exchange.close()
    if spec == "none":  # else DDP's other buckets, which the CPU's plan follows, group otherwise
        for step in range(STEPS):
            expect(f"means of step {step}", same(seen["cpu"][step], seen["cuda"][step]))


def exchanging(torch, gradwire, model, kind):
    """Optimizers whose step is an exchange, on both devices: parameters, residuals and states."""
    from gradwire.torch.joining import join

    shapes, seen = list(zip(names(), SHAPES)), {}
    for device in ("cpu", "cuda"):
        transport = join(None, "auto", 45.0, torch.device(device))
        stream = torch.cuda.Stream() if device == "cuda" else None
        how = {} if stream is None else {"stream": stream.cuda_stream, "left_out": "nan"}
        parameters = [torch.nn.Parameter(torch.ones(shape, device=device)) for shape in SHAPES]
        if kind == "DiLoCo":
            plan = gradwire.make_plan(shapes, "topk:10%,decay=0.95", exchange="gather", seed=5)
            reducer = gradwire.Reducer(plan, transport, **how)
            local = gradwire.torch.SGD(parameters, lr=0.1, momentum=0.9, threads=1)
            made = gradwire.torch.DiLoCo(parameters, reducer, every=2)
        else:
            reducer = gradwire.Reducer(gradwire.make_plan(shapes, "none"), transport, **how)
            momenta = gradwire.make_plan(shapes, "1bit", exchange="two_shot", seed=5)
            local = None
            made = getattr(gradwire.torch, kind)(parameters, reducer, momenta, lr=0.01, freeze_step=3)
        seen[device] = []
        for step in range(2 * STEPS):
            for parameter, factor in zip(parameters, model.factors(step, device)):
                parameter.grad = factor
            if local is not None:
                local.step()
            made.step()
            seen[device].append([p.detach().cpu().clone() for p in parameters])
        made.synchronize()
        kept = [reducer.residual(i) for i in range(len(SHAPES))]
        seen[device].append([None if k is None else torch.from_numpy(k) for k in kept])
        state = made.state_dict()
        tensors = state["state"]
        seen[device].append([tensors[i][key] for i in sorted(tensors) for key in sorted(tensors[i])])
        transport.close()
    for i, (left, right) in enumerate(zip(seen["cpu"], seen["cuda"])):
        what = {2 * STEPS: "residuals", 2 * STEPS + 1: "states"}.get(i, f"parameters of step {i}")
        expect(what, same(left, right))


def decided(torch, gradwire, model):
    """attach() with 'auto': ranks decide alike whatever the line, no step waits but where a window ends,
    and a checkpoint goes on with what was chosen."""
    import torch.distributed as dist

    module = model.on("cuda")
    exchange = gradwire.torch.attach(module, "auto:budget=500ms,window=4,specs=int8|topk:10%,int4",
                                     scaler=False, on_nonfinite="skip", timeout=45.0)  # fmt: skip
    step = 0

    def train(bad=False, factors=None):
        nonlocal step
        module.zero_grad()
        module(factors or model.factors(step, "cuda", bad=bad)).backward()
        exchange.wait()
        exchange.note_loss(torch.ones((), device="cuda"))
        step += 1

    while not any(row["what"] == "choose" for row in exchange.decisions()):
        expect(f"a choice within {AUTO_STEPS} steps", step < AUTO_STEPS)
        if step == 4:  # in the middle of the first window
            factors = model.factors(step, "cuda")  # which waits, as copies from the host do
            torch.cuda.synchronize()
            held = torch.cuda.Event()
            torch.cuda._sleep(2_000_000_000)  # cycles: about a second
            held.record()
            train(factors=factors)
            expect("a step waited for the GPU", not held.query())
        else:
            train()
    for bad in (False, True, False, False, False):
        train(bad)
    seen = [exchange.spec, exchange.decisions(), [g.tolist() for g in gradients(module)]]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, seen)
    expect("what ranks have decided and exchanged is the same", all(each == seen for each in everyone))
    expect("the link and compressors were timed", seen[1][0]["what"] == "probe")
    state, spec = exchange.state_dict(), exchange.spec
    exchange.load_state_dict(state)
    train()
    expect("the plan of the checkpoint", exchange.spec == spec)
    exchange.synchronize()
    exchange.close()


def refused(gradwire, model):
    for carrier in ("gloo", "torch"):
        try:
            gradwire.torch.attach(model.on("cuda"), "none", carrier=carrier)
        except gradwire.InvalidArgument as error:
            expect(f"what is said of carrier {carrier}: {error}", "carries CPU memory" in str(error))
        else:
            raise AssertionError(f"carrier {carrier} was taken for CUDA tensors")


def one_rank(rank, count, meet):
    import torch
    import torch.distributed as dist

    import gradwire
    import gradwire.torch

    torch.cuda.set_device(0)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=count)
    model = Model(torch, rank)
    code = 0
    for name, body in [(f"attach {s}", lambda s=s: attached(torch, gradwire, model, s)) for s in SPECS] + [
        (f"register {s}", lambda s=s: hooked(torch, gradwire, model, s)) for s in SPECS[:2]
    ] + [(kind, lambda kind=kind: exchanging(torch, gradwire, model, kind)) for kind in EXCHANGED] + [
        ("auto", lambda: decided(torch, gradwire, model)),
        ("refusals", lambda: refused(gradwire, model)),
    ]:  # fmt: skip
        try:
            body()
            print(f"rank {rank}: ok: {name}", flush=True)
        except AssertionError as error:
            print(f"rank {rank}: FAILED: {name}: {error}", flush=True)
            code = 1
    dist.barrier()
    dist.destroy_process_group()
    return code


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--why-not", action="store_true", help="only says why nothing can run here")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return one_rank(arguments.rank, arguments.ranks, arguments.meet)
    reason = why_not()
    if arguments.why_not:
        print(reason, end="\n" if reason else "")
        return 0
    if reason:
        print(f"skipped: {reason}")
        return 3
    good = ranks_of(arguments.ranks)
    end = "all was right" if good else "FAILED"
    print(f"the hook and optimizers on one GPU, {arguments.ranks} ranks: {end}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
