"""Files that are written as a whole: what waits in their folder is not touched, and nothing is left over."""

import io
import os
import stat
import threading

import pytest
from reducer_case import plan_of, take_steps

import gradwire
from gradwire.bench.files import write_whole
from gradwire.codec_cache import cached_codecs
from gradwire.whole_files import replacing


def of_reducer(path):
    reducer = gradwire.Reducer(plan_of(), gradwire.make_transport("in_process"))
    take_steps(reducer, 0, 0, 1)
    reducer.save(path)


WRITERS = {
    "save": of_reducer,
    "write_whole": lambda path: write_whole(path, "text"),
    "codecs": lambda path: cached_codecs(["fp16"], file=path, machine="m", measure=lambda _: (1, 2, 3, 4)),
}
writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@writers
def test_a_link_or_a_pipe_at_a_name_that_could_be_guessed_is_not_touched(write, tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("untouched")
    (tmp_path / "file.partial").symlink_to(victim)
    os.mkfifo(tmp_path / "file.tmp")
    done = threading.Thread(target=lambda: write(path), daemon=True)
    done.start()
    done.join(20.0)
    assert not done.is_alive()
    assert victim.read_text() == "untouched" and path.stat().st_size > 0
    assert sorted(os.listdir(tmp_path)) == ["file", "file.partial", "file.tmp", "victim"]


def test_saving_does_not_wait_for_a_pipe_at_the_old_temporary_name(tmp_path):
    os.mkfifo(tmp_path / "file.partial")
    done = threading.Thread(target=lambda: of_reducer(tmp_path / "file"), daemon=True)
    done.start()
    done.join(20.0)
    if done.is_alive():  # it waits for a reader: let it end
        os.close(os.open(tmp_path / "file.partial", os.O_RDONLY | os.O_NONBLOCK))
        pytest.fail("save() blocks")
    assert (tmp_path / "file").stat().st_size > 0


@writers
def test_permissions_are_those_that_open_gives(write, tmp_path):
    def mode(path):
        return stat.S_IMODE(path.stat().st_mode)

    for mask, expected in ((0o027, 0o640), (0o000, 0o666)):
        before = os.umask(mask)
        try:
            path = tmp_path / oct(mask)
            write(path)
        finally:
            os.umask(before)
        assert mode(path) == expected
        path.chmod(0o600)  # which open() would leave alone
        with open(path, "ab"):
            assert mode(path) == 0o600
        write(path)
        assert mode(path) == 0o600


def test_what_was_there_stays_when_the_writer_fails_and_nothing_is_left_over(tmp_path):
    path = tmp_path / ("n" * 255)  # the longest name that there is
    with replacing(path) as out:
        out.write(b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as out:
        out.write(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and len(os.listdir(tmp_path)) == 1
    with replacing(os.fsencode(path)) as out:  # a path of bytes
        out.write(b"new")
    assert path.read_bytes() == b"new" and len(os.listdir(tmp_path)) == 1
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "no folder" / "file"):
        pass


def test_a_link_at_the_path_itself_is_replaced_not_followed(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("untouched")
    path.symlink_to(victim)
    of_reducer(path)
    assert victim.read_text() == "untouched" and not path.is_symlink()
    reducer = gradwire.Reducer(plan_of(), gradwire.make_transport("in_process"))
    reducer.load(lambda rank: io.BytesIO(path.read_bytes()))
    assert reducer.committed_steps == 1
