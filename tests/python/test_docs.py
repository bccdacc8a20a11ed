"""Every Python code block of the documents runs, docstrings' examples give what they say."""

import doctest
import importlib
import os
import pkgutil
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from rank_processes import HAS_TORCH, free_port_pair

import gradwire

ROOT = Path(__file__).resolve().parents[2]
HAS_PLANNER = gradwire.build_info()["features"]["planner"]
NOT_OURS = {"build", "node_modules", "dist", "out"}


class Block(NamedTuple):
    """A code block of Python, and the heading above it."""

    page: str
    heading: str
    number: int  # of the page's Python blocks
    code: str


class Stage(NamedTuple):
    """What stands around a block, as the text before it says it does, and what must hold after it."""

    before: str = ""
    after: str = ""
    ranks: int = 1


MODEL = """
import torch
import gradwire, gradwire.torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
loss = torch.nn.functional.cross_entropy
inputs = torch.randn(64, 20)
batches = [(inputs, inputs[:, :4].argmax(1))] * 60
first = loss(model(inputs), batches[0][1]).item()
"""
LEARNED = """
last = loss(model(batches[0][0]), batches[0][1]).item()
assert last < 0.9 * first, (first, last)
"""
ALONE = """
import torch.distributed as dist
dist.init_process_group("gloo")
"""
LEFT = "\ntransport.close(), dist.destroy_process_group()\n"

DDP = MODEL + """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
own = torch.randn(64, 20, generator=torch.Generator().manual_seed(int(os.environ["RANK"])))
"""
SAME = LEARNED.replace("batches[0][0]", "inputs").replace("batches[0][1]", "inputs[:, :4].argmax(1)") + """
print("same on all ranks:", [p.detach().sum().item() for p in model.parameters()])
exchange.close()
dist.destroy_process_group()
"""

# By page and heading. A block that needs nothing needs no line here.
STAGES = {
    ("docs/torch.md", "Gradients of DistributedDataParallel"): Stage(
        DDP, """
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(60):
    loss(model(own), own[:, :4].argmax(1)).backward()
    optimizer.step(), optimizer.zero_grad()
assert exchange.stats()["committed"] and exchange.stats()["bytes_sent"] < 600
""" + SAME, ranks=2),
    ("docs/torch.md", "Scripts without DDP"): Stage(
        DDP + """
batches = [(own, own[:, :4].argmax(1))] * 60
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
""", SAME, ranks=2),
    ("docs/torch.md", "Gradients of FSDP2"): Stage(
        DDP, """
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(60):
    loss(model(own), own[:, :4].argmax(1)).backward()
    optimizer.step(), optimizer.zero_grad()
assert exchange.step == 60 and exchange.stats()["bytes_sent"] < 1200
""" + SAME, ranks=2),
    ("docs/torch.md", "Optimizers"): Stage(
        MODEL + "batches *= 6  # the rate grows for 300 steps\n",
        LEARNED + "assert optimizer.state_dict()['state']"),
    ("docs/torch.md", "Local steps"): Stage(
        MODEL + ALONE + "inner = torch.optim.SGD(model.parameters(), lr=0.1)\n",
        LEARNED + "assert reducer.committed_steps == 2" + LEFT),
    ("docs/torch.md", "Checkpoints of local steps"): Stage(
        MODEL + ALONE + """
import copy, tempfile
transport, folder = gradwire.torch.transport(), tempfile.mkdtemp()
plan = gradwire.make_plan([(n, tuple(p.shape)) for n, p in model.named_parameters()], "topk:25%")
def make():
    reducer = gradwire.Reducer(plan, transport)
    return reducer, gradwire.torch.DiLoCo(model.parameters(), reducer, every=2)
reducer, outer = make()
for step in range(3):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    outer.step()
    if step == 1:
        agreed = copy.deepcopy(model.state_dict())
reducer.save(f"{folder}/residuals-0")
saved = outer.state_dict()
reducer, outer = make()
""", """
assert outer.steps == 2 and reducer.committed_steps == 1
assert all(torch.equal(agreed[name], p) for name, p in model.state_dict().items())
""" + LEFT),
    ("docs/torch.md", "1-bit Adam and 1-bit LAMB"): Stage(
        MODEL + ALONE, LEARNED + "assert reducer.committed_steps == len(batches)" + LEFT),
    ("docs/torch.md", "gradwire over torch.distributed"): Stage(
        MODEL + """
import os
shared = (inputs, batches[0][1])
own = torch.randn(64, 20, generator=torch.Generator().manual_seed(int(os.environ["RANK"])))
loss = lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
batches = [(own, own[:, :4].argmax(1))] * 60
first = loss(model, shared).item()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""", """
assert loss(model, shared).item() < 0.9 * first
print("same on all ranks:", [p.detach().sum().item() for p in model.parameters()])
dist.destroy_process_group()
""", ranks=2),
    ("docs/optimizers.md", "Sharded parameters: slices"): Stage(
        "", """
values = np.linspace(-1, 1, 1000).astype(np.float32)
of_whole = gradwire.LAMB([values], [np.full_like(values, 0.01)], lr=0.1, weight_decay=0.01)
for step in range(3):
    of_whole.step()
np.testing.assert_allclose(mine, np.array_split(values, transport.world_size)[transport.rank], 1e-5)
print("same on all ranks:", optimizer.spec)
""", ranks=2),
    ("docs/large-batch.md", "How large a batch still pays: NoiseScale"): Stage(
        "", """
assert scale.steps == 200 and scale.value > 0
assert scale.rate_for(0.01, 64, 1024) > 0.01 and scale.steps_for(200, 64, 1024) < 200
print("same on all ranks:", scale, weights.tobytes().hex())
""", ranks=2),
    ("bindings/python/README.md", "The package gradwire"): Stage(
        "import gradwire\n", """
assert (reducer.gradient(1) == 1.5).all()  # 1-D, so bf16: exact
print("same on all ranks:", reducer.gradient(0).tobytes().hex()[:2000])
""", ranks=2),
}


def blocks():
    """Of all pages, but those that docs/readme.py fills from an example (which runs as a test).

    A block under a line `<!-- not run: why -->` is left out as well.
    """
    found = []
    for page in sorted(ROOT.rglob("*.md")):
        name = page.relative_to(ROOT)
        if any(part in NOT_OURS or part.startswith(".") for part in name.parts):
            continue
        text = page.read_text()
        for number, match in enumerate(re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S)):
            before = text[: match.start()]
            filled = re.search(r"<!-- region \S+ of (\S+) -->\n$", before)
            if filled:
                assert Path(filled[1]).name in (ROOT / "tests/python/test_examples.py").read_text()
                continue
            if re.search(r"<!-- not run: \S.* -->\n$", before):
                continue
            headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", before, flags=re.S), re.M)
            found.append(Block(str(name), headings[-1] if headings else "", number, match[1]))
    return found


BLOCKS = blocks()


def run(code, ranks, folder):
    """Runs the code in a process per rank with torchrun's variables; returns what each printed."""
    script = folder / "block.py"
    script.write_text(code)
    port = free_port_pair()
    running = []
    try:
        for rank in range(ranks):
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks),
                           "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            running.append(subprocess.Popen([sys.executable, str(script)], env=environment, text=True,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        printed = [process.communicate(timeout=180)[0] for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert all(process.returncode == 0 for process in running), "\n".join(printed)
    return printed


def test_blocks_are_found_and_every_stage_is_some_blocks():
    assert len(BLOCKS) >= len(STAGES)
    assert set(STAGES) <= {(block.page, block.heading) for block in BLOCKS}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: f"{b.page}:{b.heading}:{b.number}")
def test_the_block_runs(block, tmp_path):
    stage = STAGES.get((block.page, block.heading), Stage())
    code = f"{stage.before}\n{block.code}\n{stage.after}\n"
    if "torch" in code and not HAS_TORCH:
        pytest.skip("torch is not installed")
    if "planner" in code and not HAS_PLANNER:
        pytest.skip("this build has no planner")
    if stage.ranks > 1 and "gradwire.torch" not in code:
        reasons = {row.name: row.unavailable_reason for row in gradwire.transports()}
        if reasons["gloo"]:
            pytest.skip(reasons["gloo"])
    printed = run(code, stage.ranks, tmp_path)
    same = [re.findall("same on all ranks:.*", text) for text in printed]
    assert all(lines == same[0] for lines in same), printed
    if stage.ranks > 1:
        assert same[0], "a stage of several ranks says what is the same"


def modules():
    """The package's modules, but the bench's, torch's and the planner's where these cannot be imported."""
    names = [gradwire.__name__]
    for found in pkgutil.walk_packages(gradwire.__path__, "gradwire.", onerror=lambda name: None):
        if found.name.startswith("gradwire.torch") and not HAS_TORCH:
            continue
        if found.name == "gradwire.planning" and not HAS_PLANNER:
            continue
        if not found.name.endswith("__main__"):
            names.append(found.name)
    return names


def test_examples_in_docstrings_give_what_they_say():
    tried = 0
    for name in modules():
        result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
        assert result.failed == 0, name
        tried += result.attempted
    assert tried >= 5


def test_help_begins_with_an_example_of_five_lines_and_names_all_there_is():
    text = pydoc.plain(pydoc.render_doc(gradwire))
    head = text[: text.index("PACKAGE CONTENTS")]
    assert len(re.findall(r"^ +>>> (?!import )", head, re.M)) == 5
    assert all(len(line) <= 110 for line in head.splitlines())
    missing = [name for name in gradwire.__all__ if not re.search(rf"\b{name}\b", head)]
    assert not missing, "the docstring of gradwire does not name " + ", ".join(missing)


def test_a_block_that_fails_is_noticed(tmp_path):
    with pytest.raises(AssertionError, match="NameError"):
        run("nobody_knows_this", 1, tmp_path)
