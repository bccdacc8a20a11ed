"""The site of these pages, for Sphinx: `./run.sh docs` writes it to build/site, and fails where a link, an
anchor, a picture or a page is missing. The same Markdown is what a code host shows.

The lists of docs/README.md are the table of contents: a page of docs/ that is in none of them is an error.
READMEs and other pages beside the code follow by themselves, under a heading of their own.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pages():
    """Every Markdown page of the tree, tracked or new, as paths from its root."""
    if not (ROOT / ".git").exists():
        return sorted(str(p.relative_to(ROOT)) for p in ROOT.rglob("*.md") if "build" not in p.parts)
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in set(listed.split()) if (ROOT / name).exists())


project = "gradwire"
root_doc = "docs/README"
include_patterns = pages()
exclude_patterns = [".*", "build", "dist", "out", "gradwire-bench",
                    *(str(p.parent.relative_to(ROOT)) for p in ROOT.glob("*/pyvenv.cfg"))]
extensions = ["myst_parser"]
myst_heading_anchors = 4  # named as code hosts name them
# What a code host shows as text is text here, too.
myst_disable_syntax = ["myst_line_comment", "myst_block_break", "myst_target", "myst_role", "math_inline",
                       "footnote_ref", "footnote_def"]
highlight_language = "none"

html_theme = "furo"
html_title = "gradwire"
html_copy_source = html_show_sourcelink = html_show_copyright = False
html_use_index = html_domain_indices = False

TREE = """
```{{toctree}}
:hidden:
:caption: {caption}

{entries}
```
"""


def contents(app, docname, source):
    """Behind the lists of the first page the same as Sphinx has it, and the pages that lie beside code."""
    if docname != root_doc:
        return
    listed = set()
    trees = []
    for section in re.split(r"^## ", source[0], flags=re.M)[1:]:
        caption, _, body = section.partition("\n")
        links = [(title, f"/docs/{path[:-3]}" if path[:3] != "../" else path[2:-3])
                 for title, path in re.findall(r"^- \[([^\]]+)\]\(([^)#]+\.md)\)", body, re.M)]
        listed |= {path for title, path in links}
        trees.append((caption, [f"{title.replace('`', '')} <{path}>" for title, path in links]))
    rest = [f"/{name[:-3]}" for name in pages() if not name.startswith("docs/")]
    trees.append(("Beside the code", [path for path in rest if path not in listed]))
    source[0] += "".join(TREE.format(caption=caption, entries="\n".join(entries))
                         for caption, entries in trees if entries)


def entrance(app, exception):
    """index.html, where a reader expects the first page."""
    if exception is None and app.builder.name == "html":
        target = f"{root_doc}.html"
        Path(app.outdir, "index.html").write_text(
            f'<!doctype html><meta charset="utf-8"><title>{project}</title>'
            f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">{project}</a>\n')


def setup(app):
    app.connect("source-read", contents)
    app.connect("build-finished", entrance)
    return {"parallel_read_safe": True}
