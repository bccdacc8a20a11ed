"""Every relative link of the Markdown pages leads to a file, and to a heading where it names one."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+(?:\([^()]*\))?[^()\s]*)\)")
CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def pages():
    if not (ROOT / ".git").exists():
        return sorted(p for p in ROOT.rglob("*.md") if "build" not in p.parts)
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True,
                            capture_output=True, text=True)  # fmt: skip
    return [ROOT / name for name in listed.stdout.split()]


def prose(page):
    """A page without its blocks of code and its `code`."""
    return re.sub(r"`[^`\n]*`", "`code`", CODE.sub("", page.read_text()))


def anchors(page):
    """The names that GitHub gives the headings of a page."""
    names = set()
    for heading in re.findall(r"^#+ +(.*?) *$", CODE.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        times = sum(1 for n in names if n == name or re.fullmatch(re.escape(name) + r"-\d+", n))
        names.add(f"{name}-{times}" if times else name)
    return names


def broken(page):
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue  # another site
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{target}: there is no {path}"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{target}: no heading of {file.name} has that name"


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert not list(broken(page))


def test_broken_links_are_seen(tmp_path):
    (tmp_path / "there.md").write_text("# A heading, with `code`!\n# Twice\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#a-heading-with-code) [c](there.md#twice-1) [d](https://x.y/z)\n"
        "[e](gone.md) [f](there.md#gone) `[g](code.md)` [h](#gone)\n```\n[i](block.md)\n```\n")  # fmt: skip
    assert [line.split(":")[0] for line in broken(page)] == ["gone.md", "there.md#gone", "#gone"]


def test_there_are_pages():
    assert len(pages()) > 30
