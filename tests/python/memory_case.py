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
    "one": (1, 1),
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
    if form == "one":  # torch takes any stride of a single element for C order
        return torch.zeros(8).as_strided((1, 1), (7, 3)).copy_(values)
    return values.contiguous()


def forms_of(form):
    return list(SHAPES) if form == "all" else [form, form]


class Given(torch.nn.Module):
    """Weights in that format, or of "all" one in each, and a bias between them. Gradients are the factors of
    the loss."""

    def __init__(self, form, of=None):
        super().__init__()
        torch.manual_seed(11)
        forms = forms_of(of or form)
        weights = [laid_out(torch.randn(SHAPES[each]), form if of else each) for each in forms]
        self.first = torch.nn.Parameter(weights[0])
        self.bias = torch.nn.Parameter(torch.randn(5))
        for i, weight in enumerate(weights[1:]):
            self.register_parameter(f"other{i}", torch.nn.Parameter(weight))

    def forward(self, factors):
        return sum((p * c).sum() for p, c in zip(self.parameters(), factors))


def given(form, rank, step):
    """Gradients of a rank. As matrices they have rank 1, so that two ranks' mean has rank 2."""
    generator = torch.Generator().manual_seed(1000 * rank + step + 1)

    def drawn(shape):
        rows = torch.randn(shape[0], 1, generator=generator)
        return (rows * torch.randn(1, shape[1:].numel(), generator=generator)).reshape(shape)

    shapes = [torch.Size(SHAPES[each]) for each in forms_of(form)]
    return [drawn(shape) for shape in (shapes[0], torch.Size([5]), *shapes[1:])]


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


def residuals(model, exchange):
    """By parameter, in shapes of their own; zero without feedback."""
    names = [name.removeprefix("module.") for name, _ in model.named_parameters()]
    found = [exchange.residual(name) for name in names]
    return [torch.zeros(()) if r is None else r for r in found]
