"""A sweep from a TOML file: its words are the command line's, and the command line goes before it."""

import argparse
from pathlib import Path

import bench_support
import pytest

from gradwire.bench import add_arguments, config, options, sweep
from gradwire.bench.errors import UsageError

PUBLISHED = bench_support.ROOT / "bench" / "sweeps" / "published.toml"


@pytest.fixture
def read(tmp_path):
    """Options and those of single workloads, from TOML and words of the command line."""

    def of(text, *words):
        file = tmp_path / "sweep.toml"
        file.write_text(text)
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        args = parser.parse_args(["--config", str(file), *map(str, words)])
        return args, config.read(args)

    return of


@pytest.fixture
def trials(read, monkeypatch, tmp_path):
    """The runs of a sweep; no data, trainer or torch is looked for."""
    monkeypatch.setattr(sweep, "find_trainer", lambda given: Path("/trainer"))
    monkeypatch.setattr(sweep, "digits_folder", lambda: tmp_path)
    monkeypatch.setattr(sweep.torch_job.importlib.util, "find_spec", lambda name: name)
    return lambda text, *words: sweep.Sweep(*read(text, *words)).trials


def test_values_are_read_as_the_command_line_reads_them(read):
    args, own = read(
        'links = ["50mbit", "none"]\nmethods = ["none", "topk:1%,int4"]\nseeds = [7]\nworkers = 2\n'
        'quick = true\nkeep_going = false\nstop-at-target = false\ntarget-accuracy = 0.5\n'
        "hidden = [64, 32]\n"
    )
    assert own == {}
    assert (args.links, args.methods, args.workers) == ("50mbit,none", "none;topk:1%,int4", 2)
    assert (args.quick, args.keep_going, args.stop_at_target) == (True, False, 0)
    assert (args.seeds, args.hidden, args.target_accuracy) == ("7,", "64,32", 0.5)
    assert args.epochs is None and args.timeout == 30.0  # what nobody said has its default


def test_the_command_line_goes_before_the_file_also_where_it_says_the_default(read, trials):
    args, _ = read("workers = 2\nepochs = 3\n", "--workers", 4)
    assert (args.workers, args.epochs) == (4, 3)
    text = 'workload = ["mlp"]\n[workloads.mlp]\nepochs = 3\nbatch-size = 8\n'
    assert {trial.job.epochs for trial in trials(text)} == {3}
    found = trials(text, "--epochs", 5)
    assert {(trial.job.epochs, trial.job.batch_size) for trial in found} == {(5, 8)}


def test_one_spec_with_a_comma_stays_one(read):
    from gradwire.bench.arguments import parse_methods, parse_optimizers

    args, _ = read('methods = ["topk:1%,int4"]\noptimizer = ["sgd:momentum=0.9,nesterov=1"]\n')
    assert parse_methods(args.methods) == ["topk:1%,int4"]
    assert parse_optimizers(args.optimizer) == ["sgd:momentum=0.9,nesterov=1"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("metods = 'none'", r"sweep\.toml: 'metods' is unknown, did you mean 'methods'\?"),
        ("batch_sise = 8", "'batch-sise' is unknown, did you mean 'batch-size'"),
        ("zzz = 1", "'zzz' is unknown, expected batch-size, "),
        ("config = 'other.toml'", "'config' is unknown"),
        ("[workloads.cnm]", r"\[workloads\.cnm\]: 'cnm' is unknown, did you mean 'cnn'"),
        ("[workloads.cnn]\nlinks = 'none'", "'links' is unknown, "),
        ("workloads = 3", "expected tables such as"),
        ("workers = 'two'", r"sweep\.toml: workers: invalid int value: 'two'"),
        ("schedule = 'cosine'", "schedule: invalid choice: 'cosine'"),
        ("quick = 1", "quick: 1, expected true or false"),
        ("links = {a = 1}", "links: {'a': 1}, expected a word, a number or a list"),
        ("links = [[1]]", r"links: \[\[1\]\], expected a list of words or numbers"),
        ("links = ", "is no TOML"),
    ],
)
def test_what_cannot_be_is_refused_with_file_key_and_value(read, text, says):
    with pytest.raises(UsageError, match=says):
        read(text)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"--config .*gone\.toml: No such file"):
        config.read(argparse.Namespace(config=str(tmp_path / "gone.toml")))


def test_optimizers_and_batch_sizes_multiply(trials):
    found = trials('methods = "none"\nlinks = "none"\n', "--optimizer",
                   "sgd:momentum=0.9,nesterov=1,lars,lamb", "--batch-size", "64,256")  # fmt: skip
    made = [(t.job.optimizer, t.job.batch_size, t.job.learning_rate) for t in found]
    assert made[:3] == [("sgd:momentum=0.9,nesterov=1", 64, None),
                        ("sgd:momentum=0.9,nesterov=1", 256, 0.2), ("lars", 64, None)]  # fmt: skip
    assert len({trial.key for trial in found}) == len(found) == 6


def test_workloads_that_are_not_trained_have_no_options(trials):
    with pytest.raises(UsageError, match=r"\[workloads\.cnn\]: is not trained, expected one of mlp"):
        trials("[workloads.cnn]\nepochs = 1\n")


def test_the_published_sweep_is_read_and_is_as_large_as_it_says(trials):
    found = trials(PUBLISHED.read_text())
    assert len(found) == 288 == len({trial.key for trial in found})
    assert {trial.job.workload for trial in found} == {"mlp", "conv", "bytes"}
    assert len({trial.case.link for trial in found}) == 4
    assert len({trial.case.method for trial in found}) == 8
    assert {trial.case.seed for trial in found} == {1, 2, 3}
    assert not any(trial.job.stop_at_target for trial in found)
    # A third of it compares everything with the first seed.
    assert {trial.case.seed for trial in found[:96]} == {1}
    assert {t.job.batch_size for t in found if t.job.workload == "conv"} == {32}
    assert {t.job.max_steps for t in found if t.job.workload == "bytes"} == {50}


def test_given_names_the_options_that_were_said():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--quick", "--workers", "4", "--accuracy-at-equal-epochs"])
    assert options.given(args) == {"quick", "workers", "stop_at_target"}
    assert options.given(parser.parse_args([])) == frozenset()
