"""README says what the program says: its examples are those that run, its tables the registries'."""

import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _readme_module():
    spec = importlib.util.spec_from_file_location("readme", ROOT / "docs" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_marked_parts_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "readme.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_changed_part_is_noticed():
    text = (ROOT / "README.md").read_text()
    assert "| `topk` |" in text or "topk" in text
    assert _readme_module().filled(text.replace("topk:10%", "topk:11%")) != text.replace(
        "topk:10%", "topk:11%"
    )


def test_the_examples_have_the_promised_lengths():
    region = _readme_module().region
    assert len(region(ROOT / "examples" / "minimal.cc").splitlines()) <= 12
    assert len(region(ROOT / "examples" / "minimal.py").splitlines()) <= 6
