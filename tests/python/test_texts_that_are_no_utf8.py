"""Text of C++ is any bytes: what quotes or cuts it becomes the error that it is, not UnicodeDecodeError.
Text of Python that has no UTF-8 is refused by what it holds, not by a list of signatures."""

import os
import subprocess
import sys

import numpy as np
import pytest

import gradwire
from gradwire import planner as planning

gloo_reason = next(r.unavailable_reason for r in gradwire.transports() if r.name == "gloo")
planner = pytest.mark.skipif(not gradwire.build_info()["features"]["planner"],
                             reason="built without the planner")


@pytest.mark.skipif(gloo_reason != "", reason=f"gloo: {gloo_reason}")
def test_bytes_of_another_rank_are_quoted_by_a_transport_error(tmp_path):
    (tmp_path / "address.1.key").write_bytes(b"\xff2 127.0.0.1")  # what rank 1 says, damaged
    with pytest.raises(gradwire.TransportError, match=r"rank 1 has \\xff2") as caught:
        gradwire.make_transport("gloo", rank=0, world_size=2, store=f"file:{tmp_path}", timeout=10.0)
    assert caught.value.peer == 1


@planner
def test_a_line_that_is_cut_within_a_letter_is_quoted():
    with pytest.raises(gradwire.InvalidArgument, match=r"'a?é+\\xc3'"):
        gradwire._core.planner_profile("b-caffe", "a" + "é" * 60, "x", {})


def test_a_carriers_error_with_half_a_surrogate_pair_is_a_transport_error():
    class Broken:
        rank, world_size = 0, 1

        def all_gather(self, mine, everyones):
            raise OSError("cannot open '/\udcff'")

        broadcast = all_to_all = split = all_gather

        def interrupt(self):
            pass

        close = interrupt

    with pytest.raises(gradwire.TransportError, match=r"OSError: cannot open '/\\udcff'"):
        gradwire._core.make_carrier_transport("broken", Broken(), timeout=5.0).all_gather(b"x")


def test_an_exception_with_half_a_surrogate_pair_ends_the_group_as_any_other():
    transport = gradwire.make_transport("in_process")
    with pytest.raises(ValueError, match="surrogate"), transport:
        raise ValueError("surrogate \udcff")
    assert transport.closed


def test_a_variable_that_is_no_utf8_is_refused_by_what_it_gives():
    code = "import gradwire\ntry:\n    gradwire.from_environment()\n"
    code += "except gradwire.InvalidArgument as error:\n    print(error)\n"
    environment = {**os.environb, b"GRADWIRE_RANK": b"0", b"GRADWIRE_WORLD_SIZE": b"1",
                   b"GRADWIRE_STORE": b"file:/tmp/\xff"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "environment: store holds bytes that are no UTF-8" in done.stdout, done.stderr


HALF = "a\udcff"  # what Python makes of a byte that is no UTF-8, in arguments and names of files
ONE = [("w", (2,))]
TAKES_TEXT = [
    lambda text: gradwire.parse_spec(text),
    lambda text: gradwire.Compressor(text, 4),
    lambda text: gradwire.Compressor("int8", 4, device=text),
    lambda text: gradwire.Feedback(text, 4),
    lambda text: gradwire.make_plan(ONE, text),
    lambda text: gradwire.make_plan(ONE, exchange=text),
    lambda text: gradwire.make_plan(ONE, exchanges=[text]),
    lambda text: gradwire.make_transport(text),
    lambda text: gradwire.make_transport("gloo", world_size=2, store=text),
    lambda text: gradwire._core.transports(text),
    lambda text: gradwire.make_transport("in_process").barrier(what=text),
    lambda text: gradwire.Optimizer(text, [np.zeros(2, np.float32)], [np.zeros(2, np.float32)], 0.1),
    lambda text: gradwire.Optimizer("sgd", [np.zeros(2, np.float32)], [np.zeros(2, np.float32)], 0.1,
                                    names=[text]),
    lambda text: gradwire._core.canonical_optimizer(text),
    lambda text: gradwire._core.DeviceArray(text, [2]),
]
OF_THE_PLANNER = [
    lambda text: planning.PlannedLink(text),
    lambda text: planning.parse_rate(text),
    lambda text: planning.spec_traffic(text, 2),
    lambda text: gradwire._core.planner_profile("profile", text, "x", {}),
    lambda text: gradwire._core.planner_profile("profile", "{", text, {}),
    lambda text: planning.simulate(
        planning.profile_of_model("gpt2", 1e12), planning.Cluster(workers=2, link=text)),
]


def refused(call, text):
    with pytest.raises(gradwire.InvalidArgument) as caught:
        call(text)
    return str(caught.value)


@pytest.mark.parametrize("call", TAKES_TEXT + [pytest.param(call, marks=planner) for call in OF_THE_PLANNER])
def test_text_with_half_a_surrogate_pair_is_refused_by_what_it_holds(call):
    said = "holds half of a surrogate pair, which UTF-8 has no bytes for, expected a str of whole characters"
    assert refused(call, HALF) == rf"text: 'a\udcff' {said}"
    assert refused(call, HALF + "x" * 200) == rf"text: 'a\udcff{'x' * 72}... {said}"
    said = "holds bytes that are no UTF-8, expected a str of whole characters"
    assert refused(call, b"a\xff") == rf"text: b'a\xff' {said}"


def test_text_within_an_argument_is_refused_by_its_place():
    for place, call in [
        ("parameters[1]", lambda text: gradwire.make_plan([*ONE, (text, (2,))])),
        ("rules[0]['spec']", lambda text: gradwire.make_plan(ONE, rules=[{"spec": text}])),
        ("rules[0]['name']", lambda text: gradwire.make_plan(ONE, rules=[{"name": text, "spec": "int8"}])),
    ]:
        assert refused(call, HALF).startswith(rf"{place}: text: 'a\udcff' holds half of a surrogate pair")


def test_a_dtype_with_half_a_surrogate_pair_is_an_unknown_one():
    assert refused(lambda text: gradwire.Compressor("int8", 4, text), HALF) == (
        r"dtype: unknown name 'a\udcff', known: float32, float16, bfloat16")


def test_another_type_than_text_stays_a_type_error_and_letters_stay_letters():
    with pytest.raises(TypeError, match="incompatible function arguments"):
        gradwire.parse_spec(3)
    assert gradwire.make_plan([("gewicht_ß", (2,))], "int8").parameters[0] == "gewicht_ß"


def test_a_reason_with_half_a_surrogate_pair_ends_the_group():
    first, second = gradwire._core.make_in_process_group(2, timeout=20.0)
    first.abort(f"cannot open {HALF}")
    with pytest.raises(gradwire.TransportError, match=r"cannot open a\\udcff"):
        second.barrier()


@planner
@pytest.mark.parametrize("words", [
    ["simulate", "--model", "gpt2", "--workers", "2", "--link", b"\xff"],
    ["simulate", "--model", b"\xff", "--workers", "2"],
    ["simulate", "--profile", b"/none/\xff", "--workers", "2"],
    ["plan", "--model", "gpt2", "--workers", "2", "--specs", b"\xff"],
    ["report", b"/none/\xff.json"],
    ["bench", "--methods", b"\xff"],
])  # fmt: skip
def test_commands_answer_words_that_are_no_utf8_in_a_line(words):
    done = subprocess.run([sys.executable, "-m", "gradwire", *words], capture_output=True, timeout=120)
    assert done.returncode == 2, done
    assert done.stderr.count(b"\n") == 1 and rb"\udcff" in done.stderr, done.stderr
    assert b"Traceback" not in done.stderr and b"Error:" not in done.stderr
