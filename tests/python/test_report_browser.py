"""Reports in a real browser, where there is one: no error, every plot drawn, nothing too wide or too small.

Needs Chromium: chromium, or chromium-headless-shell (`apt-get install --no-install-recommends
chromium-headless-shell`, as ./run.sh test does: 96 MB to fetch, 290 MB besides its libraries), or the
path of one in GRADWIRE_CHROMIUM.
"""

import json
import os
import re
import shutil
import subprocess

import pytest
from report_case import document

from gradwire.report import sources
from gradwire.report.build import build
from gradwire.report.document import Span, Timeline, Track
from gradwire.report.html import html

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")

# Runs behind the page's own script and leaves what it saw in the page.
_PROBE = """<pre id="probe"></pre><script>
const plots = [...document.querySelectorAll("svg.plot")];
const seen = {};
seen.width = innerWidth;
seen.scrollWidth = document.documentElement.scrollWidth;
seen.plots = plots.length;
seen.empty = plots.filter((plot) => {
  const box = plot.getBoundingClientRect();
  const marks = [...plot.querySelectorAll("polyline, path, rect")].map((mark) => mark.getBBox());
  return !(box.width > 100 && box.height > 30 && marks.some((mark) => mark.width + mark.height > 0));
}).map((plot) => plot.getAttribute("aria-label"));
seen.outside = plots.filter((plot) => {
  const whole = plot.getBoundingClientRect();
  return [...plot.querySelectorAll("text")].some((text) => {
    const box = text.getBoundingClientRect();
    return box.left < whole.left - 6 || box.right > whole.right + 6 || box.bottom > whole.bottom + 4;
  });
}).map((plot) => plot.getAttribute("aria-label"));
seen.smallest = Math.min(...plots.flatMap((plot) => {
  const zoom = plot.getBoundingClientRect().width / plot.viewBox.baseVal.width;
  return [...plot.querySelectorAll("text")].map((text) => parseFloat(getComputedStyle(text).fontSize) * zoom);
}));
const table = document.querySelector(".link table.sortable");
const column = (number) => [...table.tBodies[0].rows].map((row) => Number(row.cells[number].dataset.value));
table.tHead.rows[0].cells[1].firstChild.click();
seen.up = column(1);
table.tHead.rows[0].cells[1].firstChild.click();
seen.down = column(1);
const curves = () => [...document.querySelectorAll('svg[data-plot^="accuracy"] [data-method="none"]')];
document.querySelector('[data-toggle="none"]').click();
seen.shownWhenHidden = curves().filter((part) => part.getBoundingClientRect().width > 0).length;
document.querySelector('[data-toggle="none"]').click();
seen.shownAgain = curves().filter((part) => part.getBoundingClientRect().width > 0).length;
seen.curves = curves().length;
const first = document.querySelector('svg[data-plot="accuracy-seconds"]');
first.scrollIntoView();
const end = first.querySelector("polyline").points;
const last = end[end.length - 1], box = first.getBoundingClientRect();
const zoom = box.width / first.viewBox.baseVal.width;
first.dispatchEvent(new PointerEvent("pointermove",
  { clientX: box.left + last.x * zoom, clientY: box.top + last.y * zoom }));
seen.tip = document.getElementById("tip").textContent;
document.getElementById("probe").textContent = JSON.stringify(seen);
</script>"""


@pytest.fixture(scope="module")
def browser():
    named = os.environ.get("GRADWIRE_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, _NAMES)), None)
    if not found:
        pytest.skip("no Chromium here (apt-get install chromium-headless-shell, or GRADWIRE_CHROMIUM)")
    return found


def run(browser, tmp_path, *options):
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000",
         *options],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not re.findall(r".*CONSOLE.*", done.stderr)
    return done.stdout


def page():
    results = [document(workers=n) for n in (2, 4)] + [document(speed=1.2)]
    found = [sources.of(f"{n}.json", d) for n, d in enumerate(results)]
    spans = [Span("backward", 0.0, 40.0), Span("wait", 40.0, 8.0)]
    other = [Span("bucket 0", 9.0, 30.0)]
    step = Timeline("trace.json", 3, [Track("caller", spans), Track("exchange", other)])
    return html(build(found, [step]), found)


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_every_plot_without_an_error(browser, tmp_path, width):
    whole = page()
    path = tmp_path / "page.html"
    path.write_text(whole.replace("</body>", _PROBE + "</body>"), encoding="utf-8")
    shown = run(browser, tmp_path, f"--window-size={width},1000", "--dump-dom", path.as_uri())
    seen = json.loads(re.search(r'<pre id="probe">(.*?)</pre>', shown).group(1))
    assert seen["width"] == width
    assert seen["scrollWidth"] <= width  # tables scroll by themselves, the page does not
    assert seen["plots"] == len(re.findall(r'data-plot="', whole)) > 40
    assert seen["empty"] == []
    assert seen["outside"] == []
    assert seen["smallest"] >= 8.5
    assert seen["up"] == sorted(seen["up"]) and seen["down"] == sorted(seen["up"], reverse=True)
    assert seen["up"][0] < seen["up"][-1]
    assert seen["shownWhenHidden"] == 0 and seen["shownAgain"] == seen["curves"] > 0
    assert re.fullmatch(r"no compression, seed 1: 95\.\d% after [\d.]+ (s|ms)", seen["tip"])


def test_a_screenshot_is_no_blank_page(browser, tmp_path):
    path, picture = tmp_path / "page.html", tmp_path / "page.png"
    path.write_text(page(), encoding="utf-8")
    run(browser, tmp_path, "--window-size=1280,2000", f"--screenshot={picture}", path.as_uri())
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(data) > 100_000  # text and curves do not compress to nothing
