"""Lists of the command line: links, methods, seeds, and what is wrong with them."""

import argparse
import re
from types import SimpleNamespace

import bench_support  # noqa: F401  (makes the package importable)
import pytest

from gradwire.bench import add_arguments, arguments, links, measure
from gradwire.bench.errors import UsageError


@pytest.mark.parametrize(
    ("text", "bits", "burst"),
    [
        ("50mbit", 50_000_000, 8000),
        ("64mbit", 64_000_000, 8000),  # 1 ms of it is exactly the 8000 bytes
        ("100mbit", 100_000_000, 12_500),
        ("1gbit", 1_000_000_000, 125_000),
        ("2.5Gbit", 2_500_000_000, 312_500),
        ("100kbit", 100_000, 8000),
        ("50 Mbit/s", 50_000_000, 8000),  # as reports print it
        ("none", None, None),
    ],
)
def test_a_rate_is_bits_per_second_and_its_burst_the_larger_of_8_kb_and_1_ms(text, bits, burst):
    link = arguments.parse_link(text)
    assert (link.bits_per_s, link.burst_bytes) == (bits, burst)


@pytest.mark.parametrize("text", ["50", "fast", "50mb", "50mb/s", "50mbps",
                                  "-1mbit", "0mbit", "1kbit", "9999gbit", ""])
def test_what_is_no_rate_is_refused_with_the_text_and_the_expectation(text):
    with pytest.raises(UsageError, match="(?s)--links.*(expected|empty)"):
        arguments.parse_links(text)


@pytest.mark.parametrize(
    ("text", "methods"),
    [
        ("none,fp16,topk:1%,int4", ["none", "fp16", "topk:1%", "int4"]),
        ("none,topk:1%+int4", ["none", "topk:1%,int4"]),
        ("none;topk:1%,int4", ["none", "topk:1%,int4"]),
        ('none,"topk:1%,int4",int4', ["none", "topk:1%,int4", "int4"]),
        ("'topk:1%,int4'", ["topk:1%,int4"]),
        ("int4+stochastic+block=64", ["int4,stochastic,block=64"]),
        ("int8;", None),
        ("NONE, FP16", ["none", "fp16"]),
    ],
)
def test_methods_split_at_commas_unless_a_semicolon_quote_or_plus_says_otherwise(text, methods):
    if methods is None:
        with pytest.raises(UsageError, match="empty part"):
            arguments.parse_methods(text)
    else:
        assert arguments.parse_methods(text) == methods


@pytest.mark.parametrize("text", ["int4,stochastic", "none,block=64", "topk:1%,ef", "none,fp32"])
def test_an_option_that_stands_alone_is_named_with_the_way_to_join_it(text):
    with pytest.raises(UsageError, match=r"is an option, not a method.*\+"):
        arguments.parse_methods(text)


@pytest.mark.parametrize(("text", "says"), [
    ("topk:1%,int4", "topk:1% and int4 are two methods here; .* write topk:1%\\+int4"),
    ("none,fp16,chunktopk:64/4096,2bit", "write chunktopk:64/4096\\+2bit"),
    ("none,int4,topk:1%", None),
    ("none;topk:1%,int4", None),
    ("none,topk:1%+int4,int8", None),
])  # fmt: skip
def test_two_methods_that_are_one_spec_too_are_told(text, says):
    import gradwire

    if not hasattr(gradwire, "parse_spec"):
        pytest.skip("the compiled module is not built: nothing knows specs")
    told = arguments.torn_apart(text)
    assert told is None if says is None else re.search(says, told)


def test_a_link_is_called_by_its_rate_however_it_is_written():
    assert arguments.parse_link("50 Mbit/s").name == "50mbit"
    with pytest.raises(UsageError, match="given twice"):
        arguments.parse_links("50mbit,50 Mbit/s")


@pytest.mark.parametrize("text", ["none,none", "topk:1%+int4;topk:1%,int4"])
def test_a_method_given_twice_is_refused(text):
    with pytest.raises(UsageError, match="given twice"):
        arguments.parse_methods(text)


def test_what_is_the_same_in_other_words_is_given_twice_too():
    with pytest.raises(UsageError, match=r"given twice \(as 1gbit and as 1000mbit\)"):
        arguments.parse_links("1gbit,1000mbit")
    import gradwire

    if not hasattr(gradwire, "parse_spec"):
        pytest.skip("the compiled module is not built: specs are compared as texts")
    with pytest.raises(UsageError, match=r"given twice \(as topk:1% and as topk:0.01\)"):
        arguments.parse_methods("topk:1%,topk:0.01")
    assert arguments.parse_methods("zip,none") == ["zip", "none"]  # the trainer's to refuse


def test_an_unclosed_quote_is_refused():
    with pytest.raises(UsageError, match="unclosed"):
        arguments.parse_methods('none,"topk:1%')


def test_seeds_are_a_count_or_a_list():
    assert arguments.parse_seeds("3") == [1, 2, 3]
    assert arguments.parse_seeds("7,2") == [7, 2]
    assert arguments.parse_seeds("7,") == [7]
    for bad in ("0", "x", "1,x", "-1", "", "2000", "²", "1,²", "٣", "9" * 5000):
        with pytest.raises(UsageError, match="--seeds"):
            arguments.parse_seeds(bad)


@pytest.mark.parametrize("text", ["²", "64,²", "٣", "0", "", "9" * 5000])
def test_widths_are_plain_numbers(text):
    with pytest.raises(UsageError, match="--hidden"):
        arguments.parse_widths(text)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--batch-size", "0"),
        ("--epochs", "0"),
        ("--target-accuracy", "1.5"),
        ("--learning-rate", "nan"),
        ("--timeout", "0"),
        ("--eval-every", "-1"),
        ("--time-budget", "-1"),
    ],
)
def test_numbers_outside_their_range_name_option_value_and_range(option, value):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(UsageError, match=rf"{option}: {value}.*expected .* to "):
        arguments.check_ranges(parser.parse_args([option, value]))


def test_the_help_text_explains_how_methods_are_read():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert "none,topk:1%+int4" in parser.format_help()


def test_a_link_may_change_behind_a_step():
    same, changing = arguments.parse_links("1gbit,1Gbit:50mbit@100")
    assert changing.name == "1gbit:50mbit@100" and changing.behind == 100
    assert changing.bits_per_s == same.bits_per_s == 10**9
    assert changing.then == arguments.parse_link("50mbit")
    assert same.mbit_per_s == 1000 and changing.mbit_per_s is None  # of which there is no one
    assert arguments.parse_link("none:50mbit@7").bits_per_s is None
    for text in ("1gbit:50mbit", "1gbit:50mbit@0", "1gbit:50mbit@x", "1gbit:@3", ":1gbit@3", "1gbit:1@3"):
        with pytest.raises(UsageError, match="--links"):
            arguments.parse_link(text)
    with pytest.raises(UsageError, match="1gbit:50mbit@100: a link that changes needs"):
        links.open_network("pacing", 2, "gloo", [same, changing])


def test_it_changes_when_that_step_is_over(monkeypatch):
    """Of a run whose steps are told by hand."""
    asked, told = [], []

    class Told:
        stopped_early = False

        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def watch(self, observe, end_at):
            for step in range(1, 5):
                told.append((step, list(asked)))
                observe({"event": "step", "step": step})

    class Kept:
        decisions = ()

        def __init__(self, *_):
            pass

        def observe(self, event):
            pass

        def hashes_differ(self):
            return None

        def row(self, early):
            return {"link": "l", "method": "m", "seed": 1}

        def curve(self):
            return []

        def timeline(self):
            return None

    monkeypatch.setattr(measure, "Run", Told)
    monkeypatch.setattr(measure, "Recorder", Kept)
    network = SimpleNamespace(set_link=lambda link: asked.append(link.bits_per_s))
    session = SimpleNamespace(network=network, folders=lambda: ["", ""],
                              report=SimpleNamespace(add=lambda *_: None))  # fmt: skip
    link = arguments.parse_link("1gbit:50mbit@3")
    trial = SimpleNamespace(job=SimpleNamespace(workload="mlp"), case=SimpleNamespace(link=link),
                            variant="", key="")  # fmt: skip
    measure._measure_one(trial, session, SimpleNamespace(observe=lambda _: None), None)
    assert told == [(step, [10**9]) for step in (1, 2, 3)] + [(4, [10**9, 5 * 10**7])]
