"""The optimizer of a spec: torch's own sgd and adamw; lars, larc and lamb, which torch lacks, gradwire's."""

from __future__ import annotations

from typing import Any, Dict, List

import torch

from gradwire.errors import InvalidArgument

_TORCH: Dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
_GRADWIRE = ("lars", "larc", "lamb")


class Stepped:
    """An optimizer whose rate is told at every step."""

    def __init__(self, optimizer: Any, scales: List[float]) -> None:
        self._optimizer = optimizer
        self._scales = scales  # of the param groups' rates

    def step(self, rate: float) -> None:
        for group, scale in zip(self._optimizer.param_groups, self._scales):
            group["lr"] = rate * scale
        self._optimizer.step()


def make(options: Any, model: torch.nn.Module) -> Stepped:
    """From 'sgd:momentum=0.9,nesterov=1', 'adamw:weight_decay=0.01' or 'lamb'.

    Raises:
        InvalidArgument: an unknown name, or a setting that it does not take.
    """
    name = options.optimizer.partition(":")[0]
    if name in _GRADWIRE:
        return _layerwise(options, model, name)
    if name not in _TORCH:
        raise InvalidArgument(
            f"--optimizer: '{name}' is not one of --trainer torch, expected "
            f"{', '.join((*_TORCH, *_GRADWIRE))}"
        )
    return Stepped(_own(options, model, _TORCH[name]), [1.0])


def _own(options: Any, model: torch.nn.Module, made: Any) -> Any:
    settings: Dict[str, Any] = {}
    try:
        for word in filter(None, options.optimizer.partition(":")[2].split(",")):
            key, _, value = word.partition("=")
            settings[key] = bool(int(value)) if key == "nesterov" else float(value)
        return made(model.parameters(), lr=options.learning_rate, **settings)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"--optimizer: '{options.optimizer}' is not what torch.optim.{made.__name__} takes "
            f"({error}), expected e.g. sgd:momentum=0.9,nesterov=1"
        ) from error


def _layerwise(options: Any, model: torch.nn.Module, name: str) -> Stepped:
    """Biases and norms have neither decay nor adaptation, as in the C++ trainer; with lars their rate
    is multiplied by its trust coefficient, which others have in their ratio."""
    from gradwire._core import optimizer_settings
    from gradwire.torch import make_optimizer

    layers = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups: List[Dict[str, Any]] = [{"params": layers}]
    scales = [1.0]
    if rest:
        groups.append({"params": rest, "weight_decay": 0.0, "adapt": False})
        trust = optimizer_settings(options.optimizer).get("trust_coefficient", "1")
        scales.append(float(trust) if name == "lars" else 1.0)
    return Stepped(make_optimizer(options.optimizer, groups, options.learning_rate), scales)
