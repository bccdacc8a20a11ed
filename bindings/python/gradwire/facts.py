"""What this installation is: how it was built, where its files lie, which rows it has.

`gradwire info` prints it, `gradwire doctor` judges it.
"""

import dataclasses
import sys
from typing import Any, Dict, List

import gradwire

from . import paths, registries

__all__ = ["all_facts", "build_facts"]


def build_facts() -> Dict[str, Any]:
    """What was built, for which Python, and where it lies; paths are text or None."""
    trainer, plugin = paths.trainer(), paths.plugin("gloo")
    facts: Dict[str, Any] = dict(gradwire.build_info())
    facts["python"] = sys.version.split()[0]
    facts["package"] = str(paths.package())
    facts["trainer"] = str(trainer) if trainer else None
    facts["gloo_plugin"] = str(plugin) if plugin else None
    return facts


def all_facts() -> Dict[str, Any]:
    """The same and the registries' rows as dicts."""
    facts = build_facts()
    for name in ("transports", "compressors", "exchanges", "optimizers"):
        rows: List[Any] = getattr(registries, name)()
        facts[name] = [dataclasses.asdict(row) for row in rows]
    return facts
