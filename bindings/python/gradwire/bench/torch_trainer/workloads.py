"""What is trained: a model, its data, its loss. One class each, the same on all ranks for a seed."""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Tuple

import torch
from torch import nn

from gradwire import models
from gradwire.bench.torch_trainer import data
from gradwire.bench.workloads import IN_TORCH
from gradwire.errors import InvalidArgument

_DENSE = 9216 * 128  # weights behind the convolutions: 1.2 million parameters for any image size
_CLASSES = 10
_MOST_TEST_ROWS = 2000


class Training:
    """A classifier of images, or of the byte that follows."""

    moves_parameters = True

    def __init__(self, model: nn.Module, rows: data.Rows, device: str) -> None:
        self.model = model.to(device)
        self._rows = data.Rows(*(each.to(device) for each in rows))
        self.train_examples = len(rows.inputs)
        self.test_examples = min(_MOST_TEST_ROWS, len(rows.test_inputs))
        self._cost = nn.CrossEntropyLoss()

    def loss(self, model: Any, rows: torch.Tensor) -> torch.Tensor:
        """Of a batch: the rows' numbers among the training examples."""
        scores = model(self._rows.inputs[rows])
        loss: torch.Tensor = self._cost(scores.flatten(0, -2), self._rows.targets[rows].flatten())
        return loss

    @torch.no_grad()
    def evaluate(self, rank: int, world_size: int) -> torch.Tensor:
        """Sum of losses, right answers and answers over this rank's part of the held-out rows."""
        self.model.eval()
        found = torch.zeros(3, dtype=torch.float64)
        mine = torch.arange(rank, self.test_examples, world_size)
        for rows in torch.split(mine, 250):
            scores = self.model(self._rows.test_inputs[rows]).flatten(0, -2)
            targets = self._rows.test_targets[rows].flatten()
            loss = nn.functional.cross_entropy(scores, targets, reduction="sum")
            right = (scores.argmax(-1) == targets).sum()
            found += torch.tensor([float(loss), float(right), float(len(targets))])
        self.model.train()
        return found


class Gradients:
    """Parameters whose gradients cost nothing: a step is the exchange. The last layer's come first."""

    moves_parameters = False
    train_examples: Optional[int] = None
    test_examples = 0
    _SHIFTS = 4099  # a prime: each step has other gradients, without a set of its own

    def __init__(self, shapes: List[Tuple[int, ...]], seed: int, rank: int, device: str) -> None:
        self.model = _Receivers(shapes).to(device)
        numel = sum(p.numel() for p in self.model.parameters())
        generator = torch.Generator().manual_seed(seed * 1000 + rank)
        self._values = torch.randn(numel + self._SHIFTS, generator=generator).to(device)
        self._step = 0

    def loss(self, model: Any, rows: torch.Tensor) -> torch.Tensor:
        self._step += 1
        loss: torch.Tensor = model(self._values[self._step * 17 % self._SHIFTS :])
        return loss

    def evaluate(self, rank: int, world_size: int) -> torch.Tensor:
        raise RuntimeError("gradients alone reach no accuracy: there is nothing to evaluate")


class _Receivers(nn.Module):
    """Parameters, each of which is handed its gradient in backward, from a flat one of all."""

    def __init__(self, shapes: List[Tuple[int, ...]]) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self, gradients: torch.Tensor) -> torch.Tensor:
        begin = 0
        chain = torch.zeros((), device=gradients.device)
        for parameter in self.layers:
            gradient = gradients[begin : begin + parameter.numel()].view(parameter.shape)
            begin += parameter.numel()
            chain = _Given.apply(chain, parameter, gradient)  # type: ignore[no-untyped-call]
        return chain


class _Given(torch.autograd.Function):
    """Hands a parameter the gradient it is told."""

    @staticmethod
    def forward(ctx: Any, chain: Any, parameter: Any, gradient: Any) -> Any:
        ctx.gradient = gradient
        return chain.clone()

    @staticmethod
    def backward(ctx: Any, *above: Any) -> Any:
        return above[0], ctx.gradient, None


class ByteModel(nn.Module):
    """A transformer over bytes: 4 layers of width 128, 0.87 million parameters."""

    def __init__(self, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Parameter(torch.randn(data.WINDOW, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.last = nn.Linear(width, 256)
        seen = nn.Transformer.generate_square_subsequent_mask(data.WINDOW)
        self.register_buffer("mask", seen, persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.bytes(values) + self.places, mask=self.mask, is_causal=True)
        scores: torch.Tensor = self.last(hidden)
        return scores


def cnn(channels: int, height: int, width: int) -> nn.Module:
    """Two convolutions and two dense layers; 1.2 million parameters."""
    if min(height, width) < 6:
        raise InvalidArgument(f"images: are {height}x{width}, must be 6x6 at least")
    flat = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    hidden = max(16, _DENSE // flat)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, _CLASSES),
    )  # fmt: skip


def shapes_of(name: str) -> List[Tuple[int, ...]]:
    """Of resnet50, or of a model that gradwire knows by its dimensions, in forward order."""
    if name == "resnet50":
        return resnet50()
    return [shape for _, shape in models.shapes(models.MODELS[name])]


def resnet50() -> List[Tuple[int, ...]]:
    """Shapes of the 161 parameters in forward order (He et al., arXiv 1512.03385), 25.6 million."""
    return list(_resnet50())


def _resnet50() -> Iterator[Tuple[int, ...]]:
    def convolution(inputs: int, outputs: int, kernel: int) -> Iterator[Tuple[int, ...]]:
        yield (outputs, inputs, kernel, kernel)
        yield (outputs,)  # of its batch norm: weight and bias
        yield (outputs,)

    yield from convolution(3, 64, 7)
    inputs = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(depth):
            yield from convolution(inputs, width, 1)
            yield from convolution(width, width, 3)
            yield from convolution(width, 4 * width, 1)
            if block == 0:
                yield from convolution(inputs, 4 * width, 1)
            inputs = 4 * width
    yield (1000, inputs)
    yield (1000,)


def make(options: Any) -> Any:
    """The workload asked for; the model's weights are the seed's.

    Raises:
        InvalidArgument: an unknown name, or data that is not as expected.
    """
    torch.manual_seed(options.seed)
    if options.workload == "cnn":
        rows = data.images(options.data)
        return Training(cnn(*rows.inputs.shape[-3:]), rows, options.device)
    if options.workload == "bytes":
        return Training(ByteModel(), data.text(options.text), options.device)
    kind, _, name = options.workload.partition(":")
    if kind == "gradients" and (name == "resnet50" or name in models.MODELS):
        return Gradients(shapes_of(name), options.seed, options.rank, options.device)
    raise InvalidArgument(
        f"--workload: '{options.workload}' is unknown, expected one of {', '.join(IN_TORCH)}"
    )
