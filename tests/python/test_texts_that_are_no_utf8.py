"""Text of C++ is any bytes: what quotes or cuts it becomes the error that it is, not UnicodeDecodeError."""

import os
import subprocess
import sys

import pytest

import gradwire

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
