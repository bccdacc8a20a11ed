"""tests/structure/counts.py counts what it says."""

import importlib.util
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "structure" / "counts.py"
spec = importlib.util.spec_from_file_location("counts", FILE)
counts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(counts)

LONG = "  x();\n" * 300
TREE = {
    "kernels/compress/compressor.h": "class Compressor {\n public:\n  virtual ~Compressor();\n"
                                     "  virtual int a() = 0;\n  virtual int b() {\n    return 1;\n  }\n};\n",
    "kernels/compress/spec.cc": 'bool f() { return name == "topk"; }\n',
    "kernels/internal/split.h": "class Split {\n" + LONG + "};\n",
    "kernels/split.cc": "class Builder {\n" + LONG + "};\nint Split::a(int b) {\n" + LONG + "}\n",
    "comm/other.cc": "class Builder {\n" + LONG + '};\nbool g() { return name == "topk"; }\n',
    "bindings/python/gradwire/page.py": 'unshaped = link == "none"\n',
    "bindings/python/gradwire/_core.pyi": "generated = 1\n",
    "tests/kernels/some_laws_test.cc": "TEST(Law, Holds) {\n}\nTEST_P(Case, Holds) {\n}\n",
    "tests/python/test_it.py": "def test_it():\n    pass\n",
}  # fmt: skip


def test_numbers_of_a_tree_that_is_known():
    found = counts.counts(TREE)
    numbers = {row: number for row, (number, _) in found.items()}
    assert numbers["lines of bindings"] == 1 and numbers["files of the three"] == 6
    assert numbers["public headers"] == 1
    assert (numbers["virtuals of Compressor"], numbers["virtuals of Exchange"]) == (2, 0)
    # Neither Builder is large; they have nothing but their name in common.
    (large,) = found["classes of more than 400 lines"][1]
    assert large.startswith("Split: 604 lines, in 2 files of ")
    (compared,) = found["compressors compared by name"][1]
    assert compared.startswith("comm/other.cc:303: ")
    assert numbers["laws in C++ (tests in *laws*)"] == numbers["test cases in C++"] == 2
    assert numbers["test cases in Python"] == 1
