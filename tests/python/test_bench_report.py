"""Files: whole or absent, valid JSON, plots that are SVG and the same for the same rows."""

import json
import os
import xml.etree.ElementTree as ElementTree

import bench_support  # noqa: F401
import pytest
from test_bench_summary import row

from gradwire.bench.files import scratch_folder, write_whole
from gradwire.bench.report import Report


def curve(scale=1.0):
    return [
        {"step": n, "seconds": scale * n / 10, "bytes": 1000 * n, "accuracy": 1 - 0.9**n}
        for n in range(1, 30)
    ]


def report(rows):
    made = Report(["gradwire", "bench"], {"workers": 4}, [{"name": "50mbit"}], "links: none")
    for number, each in enumerate(rows):
        each = dict(each, world_size=4, stopped_by="target", parameters=1000)
        made.add(each, curve(1.0 + number))
    return made


def test_a_report_is_valid_at_every_moment_and_knows_where_it_was_made(tmp_path):
    path = tmp_path / "out.json"
    made = report([])
    made.write(path)
    assert json.loads(path.read_text())["rows"] == []
    assert json.loads(path.read_text())["ended"] == "running"
    made = report([row("none", 2.0), row("int4", float("nan"))])
    made.ended = "complete"
    made.write(path)
    document = json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, no Infinity
    assert document["rows"][1]["seconds_to_target"] is None
    assert document["machine"]["cores"] == len(os.sched_getaffinity(0))
    assert {"cpu", "kernel", "python", "load_at_start"} <= set(document["machine"])
    assert document["curves"][0]["points"][0]["bytes"] == 1000
    assert document["command_line"] == ["gradwire", "bench"]


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    write_whole(path, "old")

    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.json"]


def test_the_scratch_folder_goes_away_with_the_block():
    with scratch_folder() as folder:
        (folder / "log").write_text("x")
        assert folder.is_dir()
    assert not folder.exists()


def test_plots_are_svg_with_two_panels_and_a_label_for_each_method(tmp_path):
    plots = pytest.importorskip("gradwire.bench.plots")
    pytest.importorskip("matplotlib")
    document = report([row("none", 2.0), row("topk:1%", 1.0)]).document()
    (path,), failed = plots.write_plots(document, tmp_path)
    assert failed == []
    assert path.name == "accuracy-50mbit.svg"
    root = ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for label in ("no compression", "topk:1%"):
        assert texts.count(label) == 2
    assert "training time, seconds" in texts
    assert "bytes sent per worker" in texts
    groups = [element.get("id") for element in root.iter() if element.get("id")]
    assert {"axes_1", "axes_2"} <= set(groups)


def test_the_same_rows_give_the_same_bytes():
    plots = pytest.importorskip("gradwire.bench.plots")
    pytest.importorskip("matplotlib")
    document = report([row("none", 2.0), row("topk:1%", 1.0)]).document()
    assert plots.plot(document, "50mbit") == plots.plot(document, "50mbit")


def test_a_link_without_a_point_gets_no_plot(tmp_path):
    plots = pytest.importorskip("gradwire.bench.plots")
    made = report([])
    made.add(dict(row("none", None), stopped_by="time budget"), [])
    assert plots.write_plots(made.document(), tmp_path) == ([], [])
