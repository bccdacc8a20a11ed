"""The site of the documents: built strictly, complete, and without a word from the network."""

import importlib.util
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from test_links import anchors, pages

ROOT = Path(__file__).resolve().parents[2]
MISSING = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install -r docs/requirements.txt")


def build(source, out, *options):
    """Builds with the settings that lie in `source`; what was said, and whether it was an error."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-E", "-c", str(source / "docs"),
               "-d", str(out / "cache"), *options, str(source), str(out / "site")]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out / "site"


class Reader(HTMLParser):
    """What a page loads by itself, where it leads, and the names in it."""

    def __init__(self, page):
        super().__init__()
        self.loads, self.links, self.names = [], [], set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if "id" in given:
            self.names.add(given["id"])
        if tag == "a":
            self.links.append(given.get("href") or "")
        elif tag == "link" and given.get("rel") in ("prev", "next", "search", "index"):
            self.links.append(given["href"])
        else:
            self.loads += [given[name] for name in ("src", "href", "data") if given.get(name)]


def test_every_page_is_there_under_the_names_that_code_hosts_give_its_headings(site):
    assert (site / "index.html").exists()
    for page in pages():
        made = (site / page.relative_to(ROOT)).with_suffix(".html")
        assert made.exists(), page
        missing = anchors(page) - Reader(made).names
        assert not missing, f"{page}: {missing}"


def test_no_page_needs_a_network_and_every_link_leads_into_the_site(site):
    read = {page: Reader(page) for page in site.rglob("*.html")}
    assert len(read) > 50
    for page, has in read.items():
        for target in has.loads:
            if target.startswith(("data:", "#")):
                continue
            assert not urlsplit(target).netloc, f"{page.name} loads {target}"
            assert (page.parent / unquote(urlsplit(target).path)).exists(), f"{page.name}: {target}"
        for target in has.links:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or not parts.path:
                continue
            file = (page.parent / unquote(parts.path)).resolve()
            assert file.is_file(), f"{page.name}: {target}"
            if parts.fragment and file.suffix == ".html" and "search" not in file.name:
                assert unquote(parts.fragment) in read[file].names, f"{page.name}: {target}"
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"url\(\s*['\"]?(?:https?:)?//", styles)


def test_what_is_missing_fails(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "conf.py", tmp_path / "docs")
    (tmp_path / "README.md").write_text("# Tree\n## There\n[fine](docs/README.md#first)\n")
    (tmp_path / "docs" / "README.md").write_text(
        "# First\n## Start\n- [Tree](../README.md): [a heading](../README.md#there)\n- [Two](two.md)\n")
    (tmp_path / "docs" / "two.md").write_text("# Two\n")
    assert build(tmp_path, tmp_path / "out").returncode == 0
    (tmp_path / "docs" / "two.md").write_text(
        "# Two\n[a](gone.md) [b](../README.md#gone) [c](#gone) ![d](gone.svg) [e](../gone.cc)\n")
    (tmp_path / "docs" / "three.md").write_text("# A page that no list names\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    for what in ("two.md:2: .*'gone.md'", "two.md:2: .*'README': 'gone'", "two.md:2: .*not found: 'gone'",
                 "image file not readable: docs/gone.svg", "'../gone.cc'",
                 "three.md: .*isn't included in any toctree"):
        assert re.search(what, done.stderr), f"{what}\n{done.stderr}"
