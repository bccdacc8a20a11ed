"""Parameter tensors of well-known models, from their published dimensions: names and elements."""

from dataclasses import dataclass
from typing import Dict, List, Tuple

__all__ = ["MODELS", "Model", "layers"]

Layers = List[Tuple[str, int]]


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
    return _bert(model) if model.family == "bert" else _gpt2(model)


def _pair(name: str, inputs: int, outputs: int) -> Layers:
    return [(f"{name}.weight", inputs * outputs), (f"{name}.bias", outputs)]


def _bert(model: Model) -> Layers:
    d = model.width
    out = [
        ("embeddings.word_embeddings.weight", model.vocabulary * d),
        ("embeddings.position_embeddings.weight", 512 * d),
        ("embeddings.token_type_embeddings.weight", 2 * d),
        *_pair("embeddings.LayerNorm", 1, d),
    ]
    for i in range(model.depth):
        layer = f"encoder.layer.{i}."
        for part in ("query", "key", "value"):
            out += _pair(f"{layer}attention.self.{part}", d, d)
        out += _pair(f"{layer}attention.output.dense", d, d)
        out += _pair(f"{layer}attention.output.LayerNorm", 1, d)
        out += _pair(f"{layer}intermediate.dense", d, 4 * d)
        out += _pair(f"{layer}output.dense", 4 * d, d)
        out += _pair(f"{layer}output.LayerNorm", 1, d)
    out += _pair("pooler.dense", d, d)
    out.append(("cls.predictions.bias", model.vocabulary))
    out += _pair("cls.predictions.transform.dense", d, d)
    out += _pair("cls.predictions.transform.LayerNorm", 1, d)
    return out + _pair("cls.seq_relationship", d, 2)


def _gpt2(model: Model) -> Layers:
    d = model.width
    out = [("wte.weight", model.vocabulary * d), ("wpe.weight", 1024 * d)]
    for i in range(model.depth):
        layer = f"h.{i}."
        out += _pair(f"{layer}ln_1", 1, d)
        out += _pair(f"{layer}attn.c_attn", d, 3 * d)
        out += _pair(f"{layer}attn.c_proj", d, d)
        out += _pair(f"{layer}ln_2", 1, d)
        out += _pair(f"{layer}mlp.c_fc", d, 4 * d)
        out += _pair(f"{layer}mlp.c_proj", 4 * d, d)
    return out + _pair("ln_f", 1, d)
