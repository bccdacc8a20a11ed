"""Parameter tensors of well-known models, from their published dimensions: names and shapes."""

import math
from dataclasses import dataclass
from typing import Dict, List, Tuple

__all__ = ["MODELS", "Model", "layers", "shapes"]

Layers = List[Tuple[str, int]]
Shapes = List[Tuple[str, Tuple[int, ...]]]


@dataclass(frozen=True)
class Model:
    """A transformer by its dimensions."""

    family: str  #: "bert" (Devlin et al., arXiv:1810.04805) or "gpt2" (Radford et al., 2019)
    depth: int
    width: int
    vocabulary: int
    tokens: int  #: of a sample


MODELS: Dict[str, Model] = {
    "bert-base": Model("bert", 12, 768, 30522, 512),
    "bert-large": Model("bert", 24, 1024, 30522, 512),
    "gpt2": Model("gpt2", 12, 768, 50257, 1024),
    "gpt2-medium": Model("gpt2", 24, 1024, 50257, 1024),
    "gpt2-xl": Model("gpt2", 48, 1600, 50257, 1024),
}


def layers(model: Model) -> Layers:
    """Name and elements of each parameter tensor, in the order of the forward pass."""
    return [(name, math.prod(shape)) for name, shape in shapes(model)]


def shapes(model: Model) -> Shapes:
    """Name and shape of each parameter tensor, in the order of the forward pass."""
    return _bert(model) if model.family == "bert" else _gpt2(model)


def _pair(name: str, inputs: int, outputs: int) -> Shapes:
    return [(f"{name}.weight", (outputs, inputs)), (f"{name}.bias", (outputs,))]


def _norm(name: str, width: int) -> Shapes:
    return [(f"{name}.weight", (width,)), (f"{name}.bias", (width,))]


def _bert(model: Model) -> Shapes:
    d = model.width
    out: Shapes = [
        ("embeddings.word_embeddings.weight", (model.vocabulary, d)),
        ("embeddings.position_embeddings.weight", (512, d)),
        ("embeddings.token_type_embeddings.weight", (2, d)),
        *_norm("embeddings.LayerNorm", d),
    ]
    for i in range(model.depth):
        layer = f"encoder.layer.{i}."
        for part in ("query", "key", "value"):
            out += _pair(f"{layer}attention.self.{part}", d, d)
        out += _pair(f"{layer}attention.output.dense", d, d)
        out += _norm(f"{layer}attention.output.LayerNorm", d)
        out += _pair(f"{layer}intermediate.dense", d, 4 * d)
        out += _pair(f"{layer}output.dense", 4 * d, d)
        out += _norm(f"{layer}output.LayerNorm", d)
    out += _pair("pooler.dense", d, d)
    out.append(("cls.predictions.bias", (model.vocabulary,)))
    out += _pair("cls.predictions.transform.dense", d, d)
    out += _norm("cls.predictions.transform.LayerNorm", d)
    return out + _pair("cls.seq_relationship", d, 2)


def _gpt2(model: Model) -> Shapes:
    d = model.width
    out: Shapes = [("wte.weight", (model.vocabulary, d)), ("wpe.weight", (1024, d))]
    for i in range(model.depth):
        layer = f"h.{i}."
        out += _norm(f"{layer}ln_1", d)
        out += _pair(f"{layer}attn.c_attn", d, 3 * d)
        out += _pair(f"{layer}attn.c_proj", d, d)
        out += _norm(f"{layer}ln_2", d)
        out += _pair(f"{layer}mlp.c_fc", d, 4 * d)
        out += _pair(f"{layer}mlp.c_proj", 4 * d, d)
    return out + _norm("ln_f", d)
