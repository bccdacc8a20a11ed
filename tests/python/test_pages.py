"""What pages repeat from other pages, or say of a command, is what stands there or what it does."""

import json
import re
import shlex
from pathlib import Path

import pytest
from test_links import pages

import gradwire
from gradwire import cli

DOCS = Path(__file__).resolve().parents[2] / "docs"


def rows(text):
    """Rows of the tables in a text, by their first cell without its marks."""
    found = {}
    for line in re.findall(r"^\| (.*) \|$", text, re.M):
        cells = [cell.strip().strip("*") for cell in line.split(" | ")]
        found[re.sub(r"[·†‡ `]", "", cells[0])] = cells[1:]
    return found


def section(page, heading):
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", (DOCS / page).read_text(), re.M | re.S)[1]


def test_commands_that_recommend_run_as_they_stand(tmp_path, monkeypatch, capsys):
    """In an empty folder: a file that the page does not make nobody has."""
    if not gradwire.build_info()["features"]["planner"]:
        pytest.skip("this build has no planner")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```sh\n(.*?)^```", (DOCS / "planner.md").read_text(), re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("gradwire recommend ")]
    assert commands
    for words in commands:
        assert cli.main(words[1:]) == 0, capsys.readouterr().err
        assert "in budget" in capsys.readouterr().out


def test_accuracies_of_the_choice_are_those_of_the_measurements():
    digits, mnist = (rows(section("convergence.md", name)) for name in ("Digits", "MNIST"))
    chosen = rows(section("choosing.md", "Accuracy"))
    methods = [name for name in chosen if name in digits and name not in ("none", "method")]
    assert len(methods) == len(chosen) - 2 >= 10  # the head and `none`
    for name in methods:
        assert chosen[name] == [*digits[name][1:], *mnist[name][1:]], name
    for place, (accuracy, points, sent) in ((0, digits["none"]), (2, mnist["none"])):
        assert chosen["none"][place : place + 2] == [f"{100 * float(accuracy.split()[0]):.1f}%", sent]


def test_steps_of_the_choice_are_those_of_the_measurements():
    measured = (DOCS / "measurements.md").read_text() + (DOCS / "predicted.md").read_text()
    tried = 0
    for line in re.findall(r"^\| (.*\]\((?:measurements|predicted)\.md.*) \|$", section(
            "choosing.md", "What was measured"), re.M):
        *_, none, method, step, times, source = line.split(" | ")
        assert float(times) == pytest.approx(float(none) / float(step), rel=0.04), line
        for number in (none, step):  # rounded to whole milliseconds, where the page has tenths
            whole = re.findall(rf"(?<![\d.]){number}(?![\d.])", measured)
            close = [n for n in re.findall(r"\d+\.\d", measured) if f"{float(n):.0f}" == number]
            assert whole or close, f"{number} of {line}"
        tried += 1
    assert tried >= 10


def commands(page):
    """The lines of the page's shell blocks, as words."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (DOCS / page).read_text(), re.M | re.S)
    return [shlex.split(line) for block in blocks for line in block.replace("\\\n", " ").splitlines()]


@pytest.mark.skipif(not gradwire.build_info()["features"]["planner"], reason="this build has no planner")
def test_the_planners_pictures_are_drawn_by_the_commands_beside_them(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    answers = []
    for words in commands("planner-explained.md"):
        name = next(Path(word).name for word in words if word.startswith("docs/images/"))
        assert (DOCS / "images" / name).exists()
        drawn = [str(tmp_path / name) if word.startswith("docs/") else word for word in words[1:]]
        assert cli.main([*drawn, "--json", "-"]) == 0
        assert (tmp_path / name).stat().st_size < 60_000, "a picture in the tree is a small file"
        answers.append(json.loads(capsys.readouterr().out)["predictions"])
    timeline, links = answers
    assert [round(step["step_s"] * 1e3) for step in timeline] == [264, 212, 88]
    assert [step["exchanges"] for step in timeline] == [161, 161, 4]
    there = {p["link"]: (round(p["step_s"] * 1e3), round(p["dense_step_s"] * 1e3))
             for p in links[0]["links"]}
    text = (DOCS / "planner-explained.md").read_text()
    assert there["1gbit"] == (138, 1460) and "138 ms in place of 1460 at 1 Gbit/s" in text
    assert there["10gbit"] == (116, 173) and "116 in place of 173 at 10" in text
    assert there["25gbit"] == (116, 88) and "116 in place of 88" in text


def test_every_picture_has_its_command_beside_it():
    seen = 0
    for page in pages():
        text = page.read_text()
        for picture in re.finditer(r"!\[[^\]]*\]\([^)]+\.svg\)", text):
            around = text[max(0, picture.start() - 900) : picture.end() + 400]
            assert re.search(r"gradwire simulate|\./run\.sh|python bench/", around), f"{page}: {picture[0]}"
            seen += 1
    assert seen >= 4
