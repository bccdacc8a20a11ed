"""A model whose parameters have any order of elements in memory and whose gradients are given, for the tests
of memory formats. Its numbers are read and written in the order of shapes alone."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SHAPES = {
    "contiguous": (6, 4, 3, 3),
    "channels_last": (6, 4, 3, 3),
    "channels_last_3d": (4, 3, 2, 3, 2),
    "transposed": (12, 9),
    "gaps": (12, 9),
}
DENSE = [name for name in SHAPES if name != "gaps"]


def laid_out(values, form):
    """The same values in memory as `form` says."""
    if form == "channels_last":
        return values.contiguous(memory_format=torch.channels_last)
    if form == "channels_last_3d":
        return values.contiguous(memory_format=torch.channels_last_3d)
    if form == "transposed":
        return values.t().contiguous().t()
    if form == "gaps":
        wide = torch.zeros(values.shape[0], 2 * values.shape[1])
        wide[:, ::2] = values
        return wide[:, ::2]
    return values.contiguous()


class Given(torch.nn.Module):
    """Two weights in that format beside a bias. Gradients are the factors of the loss."""

    def __init__(self, form, of=None):
        super().__init__()
        shape = SHAPES[of or form]
        torch.manual_seed(11)
        self.first = torch.nn.Parameter(laid_out(torch.randn(shape), form))
        self.bias = torch.nn.Parameter(torch.randn(5))
        self.last = torch.nn.Parameter(laid_out(torch.randn(shape), form))
        assert self.first.is_contiguous() == (form == "contiguous")

    def forward(self, factors):
        return sum((p * c).sum() for p, c in zip(self.parameters(), factors))


def factors(form, rank, step):
    """Gradients of a rank. As matrices they have rank 1, so that two ranks' mean has rank 2."""
    generator = torch.Generator().manual_seed(1000 * rank + step + 1)

    def drawn(shape):
        rows = torch.randn(shape[0], 1, generator=generator)
        return (rows * torch.randn(1, shape[1:].numel(), generator=generator)).reshape(shape)

    return [drawn(torch.Size(shape)) for shape in (SHAPES[form], (5, 1), SHAPES[form])]


def given(form, rank, step):
    """Those, in the shapes of the parameters."""
    first, bias, last = factors(form, rank, step)
    return [first, bias.reshape(5), last]


def sums(tensors):
    """Over all ranks, by torch alone, in C order."""
    totals = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]
    for total in totals:
        dist.all_reduce(total)
    return totals


def in_ddp(model, **options):
    return DistributedDataParallel(model, bucket_cap_mb=25, **options)


def exchanged(model, exchange, mine):
    """The means of one step."""
    model.zero_grad()
    model(mine).backward()
    if hasattr(exchange, "wait"):  # attach()'s
        assert exchange.wait()
    return [p.grad for p in model.parameters()]


def residuals(exchange):
    found = [exchange.residual(name) for name in ("first", "bias", "last")]
    return [torch.zeros(()) if r is None else r for r in found]
