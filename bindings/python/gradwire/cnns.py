"""Convolutional networks from their published layer definitions: parameters and work per tensor."""

from typing import Callable, Dict, List, Tuple

__all__ = ["CNNS", "Row"]

Row = Tuple[str, int, float]  #: tensor, elements, operations of a forward pass per image


class _Net:
    """Layers in the order of the forward pass. A multiplication and its addition are two operations;
    normalization, activation and pooling are left out, as in published counts."""

    def __init__(self, channels: int, size: int) -> None:
        self.rows: List[Row] = []
        self.channels, self.size = channels, size

    def conv(self, name: str, out: int, kernel: int, stride: int = 1, pad: int = -1,
             norm: str = "", bias: bool = False) -> None:
        """A square convolution; pad -1 keeps the size but for the stride; norm names its batch norm."""
        pad = kernel // 2 if pad < 0 else pad
        self.size = (self.size + 2 * pad - kernel) // stride + 1
        weights = self.channels * out * kernel * kernel
        self.rows.append((f"{name}.weight", weights, 2.0 * weights * self.size * self.size))
        if bias:
            self.rows.append((f"{name}.bias", out, 0.0))
        if norm:
            self.rows += [(f"{norm}.weight", out, 0.0), (f"{norm}.bias", out, 0.0)]
        self.channels = out

    def pool(self, kernel: int, stride: int, pad: int = 0, round_up: bool = False) -> None:
        span = self.size + 2 * pad - kernel + (stride - 1 if round_up else 0)
        self.size = span // stride + 1

    def linear(self, name: str, inputs: int, outputs: int) -> None:
        self.rows += [(f"{name}.weight", inputs * outputs, 2.0 * inputs * outputs),
                      (f"{name}.bias", outputs, 0.0)]


def _resnet(blocks: Tuple[int, int, int, int]) -> List[Row]:
    """He et al., arXiv:1512.03385; the stride in the 3 x 3 convolution, as in torchvision."""
    net = _Net(3, 224)
    net.conv("conv1", 64, 7, 2, norm="bn1")
    net.pool(3, 2, 1)
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            stride = 2 if stage > 0 and block == 0 else 1
            inputs, size = net.channels, net.size
            net.conv(f"{name}.conv1", width, 1, norm=f"{name}.bn1")
            net.conv(f"{name}.conv2", width, 3, stride, norm=f"{name}.bn2")
            net.conv(f"{name}.conv3", 4 * width, 1, norm=f"{name}.bn3")
            if block == 0:
                net.channels, net.size = inputs, size
                net.conv(f"{name}.downsample.0", 4 * width, 1, stride, norm=f"{name}.downsample.1")
    net.linear("fc", 2048, 1000)
    return net.rows


def _vgg(convolutions: Tuple[int, int, int, int, int]) -> List[Row]:
    """Simonyan and Zisserman, arXiv:1409.1556, configurations D and E."""
    net = _Net(3, 224)
    place = 0
    for stage, count in enumerate(convolutions):
        for _ in range(count):
            net.conv(f"features.{place}", min(64 << stage, 512), 3, bias=True)
            place += 2
        net.pool(2, 2)
        place += 1
    for name, inputs, outputs in (("0", 512 * 49, 4096), ("3", 4096, 4096), ("6", 4096, 1000)):
        net.linear(f"classifier.{name}", inputs, outputs)
    return net.rows


def _alexnet() -> List[Row]:
    """Krizhevsky, arXiv:1404.5997: without groups, as in torchvision."""
    net = _Net(3, 224)
    net.conv("features.0", 64, 11, 4, 2, bias=True)
    net.pool(3, 2)
    net.conv("features.3", 192, 5, bias=True)
    net.pool(3, 2)
    net.conv("features.6", 384, 3, bias=True)
    net.conv("features.8", 256, 3, bias=True)
    net.conv("features.10", 256, 3, bias=True)
    for name, inputs, outputs in (("1", 256 * 36, 4096), ("4", 4096, 4096), ("6", 4096, 1000)):
        net.linear(f"classifier.{name}", inputs, outputs)
    return net.rows


# Channels of each inception module: 1 x 1, 3 x 3 after its reduction, 5 x 5 after its, behind pooling.
_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64), "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64), "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128), "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def _googlenet() -> List[Row]:
    """Szegedy et al., arXiv:1409.4842, table 1, with the two auxiliary classifiers of training."""
    net = _Net(3, 224)
    net.conv("conv1", 64, 7, 2, bias=True)
    net.pool(3, 2, round_up=True)
    net.conv("conv2_reduce", 64, 1, bias=True)
    net.conv("conv2", 192, 3, bias=True)
    net.pool(3, 2, round_up=True)
    for name, (one, reduce3, three, reduce5, five, pooled) in _INCEPTIONS.items():
        inputs = net.channels
        for path in ((("1x1", one, 1),), (("3x3_reduce", reduce3, 1), ("3x3", three, 3)),
                     (("5x5_reduce", reduce5, 1), ("5x5", five, 5)), (("pool", pooled, 1),)):
            net.channels = inputs
            for part, out, kernel in path:
                net.conv(f"inception_{name}.{part}", out, kernel, bias=True)
        net.channels = one + three + five + pooled
        if name in ("4a", "4d"):
            _auxiliary(net, "aux1" if name == "4a" else "aux2")
        if name in ("3b", "4e"):
            net.pool(3, 2, round_up=True)
    net.linear("fc", 1024, 1000)
    return net.rows


def _auxiliary(net: _Net, name: str) -> None:
    channels, size = net.channels, net.size
    net.pool(5, 3)
    net.conv(f"{name}.conv", 128, 1, bias=True)
    net.linear(f"{name}.fc1", 128 * 16, 1024)
    net.linear(f"{name}.fc2", 1024, 1000)
    net.channels, net.size = channels, size


#: Of images of 224 x 224, 1000 classes.
CNNS: Dict[str, Callable[[], List[Row]]] = {
    "resnet50": lambda: _resnet((3, 4, 6, 3)),
    "resnet101": lambda: _resnet((3, 4, 23, 3)),
    "resnet152": lambda: _resnet((3, 8, 36, 3)),
    "vgg16": lambda: _vgg((2, 2, 3, 3, 3)),
    "vgg19": lambda: _vgg((2, 2, 4, 4, 4)),
    "alexnet": _alexnet,
    "googlenet": _googlenet,
}
