"""What every command of `gradwire` has: help with an example, exit codes, JSON, completion."""

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

gradwire = pytest.importorskip("gradwire", reason="the compiled module is not built")
cli = pytest.importorskip("gradwire.cli", reason="the compiled module is not built")

COMMANDS = list(cli._EXAMPLES)


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "gradwire", *words], capture_output=True, text=True, timeout=120
    )


def test_every_command_is_listed_and_has_an_example():
    parser = cli._parser(COMMANDS)
    (commands,) = [a for a in parser._actions if a.dest == "command"]
    listed = {choice.dest for choice in commands._choices_actions}
    assert listed == set(commands.choices) and set(COMMANDS) <= listed
    for name in COMMANDS:
        text = commands.choices[name].format_help()
        assert f"gradwire {name}" in text.partition("example")[2], name


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("bench", "check")])
def test_an_example_is_words_that_the_command_takes(name):
    words = cli._EXAMPLES[name].partition(" > ")[0].split()[1:]
    assert cli._parser(words).parse_args(words).command == name


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("info",), 0),
        (("--help",), 0),
        (("completion", "bash"), 0),
        ((), 2),
        (("no-such-command",), 2),
        (("completion", "csh"), 2),
        (("bench", "--no-such-option"), 2),
        (("bench", "--links", "fast"), 2),
        (("plan", "--profile", "/no/such/file", "--workers", "2"), 2),
        (("simulate", "--model", "no-such-model"), 2),
    ],
)
def test_exit_codes_are_those_of_the_table(words, code):
    done = run(*words)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == bool(code)  # an error is one line


@pytest.mark.parametrize("words", [
    ("info", "--json"),
    ("simulate", "--model", "gpt2", "--json", "-"),
    ("recommend", "--step", "V100=210ms", "--gradient", "102MB", "--samples", "100000", "--batch",
     "64", "--budget", "2h", "--json", "-"),
])  # fmt: skip
def test_json_is_one_document_on_standard_output(words):
    done = run(*words)
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert isinstance(json.loads(text[text.index("{"):]), dict)


def test_a_benchmark_says_which_build_it_measured():
    from gradwire.bench import machine

    assert machine.commit() == (gradwire.build_info()["commit"] or None)
    found = machine.machine()
    assert found["memory_gib"] > 0 and found["system"]
    assert (found["torch"] is None) == (importlib.util.find_spec("torch") is None)


def completed(script, *words):
    """What bash offers for the last of these words."""
    program = f"""
source {script}
COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
COMP_CWORD={len(words) - 1}
_gradwire
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash here")
def test_bash_completes_commands_options_choices_and_files(tmp_path):
    script = tmp_path / "gradwire.bash"
    script.write_text(run("completion", "bash").stdout)
    assert set(COMMANDS) <= set(completed(script, "gradwire", ""))
    assert completed(script, "gradwire", "be") == ["bench"]
    assert completed(script, "gradwire", "bench", "--bud") == ["--budget"]
    assert completed(script, "gradwire", "bench", "--schedule", "") == ["constant", "polynomial"]
    assert completed(script, "gradwire", "completion", "") [:3] == ["bash", "fish", "zsh"]
    (tmp_path / "sweep.toml").write_text("")
    beginning = str(tmp_path / "swe")
    assert completed(script, "gradwire", "bench", "--config", beginning) == [
        str(tmp_path / "sweep.toml")
    ]
    assert completed(script, "gradwire", "bench", "--workers", "") == []


@pytest.mark.parametrize(("shell", "line"), [
    ("zsh", "      '--budget[90s, 3m, 1h\\: all ends within it;"),
    ("fish", "complete -c gradwire -n '__fish_seen_subcommand_from bench' -l schedule "),
    ("fish", "complete -c gradwire -n '__fish_seen_subcommand_from completion' -a 'bash fish zsh'"),
])  # fmt: skip
def test_the_scripts_of_other_shells_have_every_option_and_their_shell_reads_them(
    tmp_path, shell, line
):
    text = run("completion", shell).stdout
    assert any(each.startswith(line) for each in text.splitlines())
    assert not any(ord(character) < 32 and character != "\n" for character in text)
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(text)
        subprocess.run([shell, "-n", str(file)], check=True, timeout=30)


def test_ctrl_c_is_130_whatever_the_command():
    def interrupted(*_):
        raise KeyboardInterrupt

    before = cli._run
    cli._run = interrupted
    try:
        assert cli.main(["info"]) == 130
    finally:
        cli._run = before
