"""Fills the marked parts of README.md and docs/*.md: example regions, tables from registries and programs.

`python docs/readme.py` rewrites them; `--check` only says whether they are up to date (exit 1).
A part begins with `<!-- region NAME of FILE -->` before a code block, or with
`<!-- gradwire info --markdown TABLE -->` or `<!-- output of PROGRAM.py -->` and ends at `<!-- end -->`.
Needs the installed package.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def region(path: Path, name: str = "readme") -> str:
    """The lines of `path` between `[name]` and `[name-end]` marks, without common indentation."""
    lines = path.read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if f"[{name}]" in line)
    end = next(i for i, line in enumerate(lines) if f"[{name}-end]" in line)
    last = re.sub(rf"\s*(//|#)\s*\[{name}-end\].*", "", lines[end])
    body = lines[begin + 1 : end] + ([last] if last.strip() else [])
    indent = min(len(line) - len(line.lstrip()) for line in body if line.strip())
    return "\n".join(line[indent:].rstrip() for line in body)


def table(name: str) -> str:
    """A registry as the command line prints it."""
    command = [sys.executable, "-m", "gradwire", "info", "--markdown", name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def output(name: str) -> str:
    """What a Python program of the tree prints."""
    command = [sys.executable, str(ROOT / name)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def filled(text: str) -> str:
    """`text` with every marked part made anew."""
    text = re.sub(
        r"(<!-- region (\S+) of (\S+) -->\n```(\w+)\n).*?(```)",
        lambda m: m[1] + region(ROOT / m[3], m[2]) + "\n" + m[5],
        text,
        flags=re.DOTALL,
    )
    text = re.sub(
        r"(<!-- output of (\S+) -->\n).*?(<!-- end -->)",
        lambda m: m[1] + output(m[2]) + "\n" + m[3],
        text,
        flags=re.DOTALL,
    )
    return re.sub(
        r"(<!-- gradwire info --markdown (\w+) -->\n).*?(<!-- end -->)",
        lambda m: m[1] + table(m[2]) + "\n" + m[3],
        text,
        flags=re.DOTALL,
    )


def main() -> int:
    stale = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        old = page.read_text()
        new = filled(old)
        if "--check" not in sys.argv[1:]:
            page.write_text(new)
        elif old != new:
            print(f"{page.relative_to(ROOT)} is out of date: run python docs/readme.py",
                  file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
