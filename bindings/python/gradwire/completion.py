"""`gradwire completion bash|zsh|fish`: a script that completes commands and options, made of the parser."""

import argparse
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List

__all__ = ["SHELLS", "script"]


@dataclass(frozen=True)
class Option:
    """One spelling of one option."""

    name: str  #: with its dashes
    help: str  #: one line
    choices: List[str]
    takes: str  #: "nothing", "file", "word"


@dataclass(frozen=True)
class Command:
    """One command of `gradwire`."""

    name: str
    help: str
    options: List[Option]
    words: List[str]  #: that stand without an option


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for one of SHELLS; how it is installed stands on top of it."""
    return SHELLS[shell](_commands(parser))


def _commands(parser: argparse.ArgumentParser) -> List[Command]:
    found: Any = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    told = {choice.dest: choice.help or "" for choice in found._choices_actions}
    return [_command(name, told.get(name, ""), made) for name, made in found.choices.items()]


def _command(name: str, told: str, parser: argparse.ArgumentParser) -> Command:
    options, words = [], []
    for action in parser._actions:
        choices = [str(each) for each in action.choices or ()]
        if not action.option_strings:
            words += choices
        text = re.sub(r"\s+", " ", action.help or "").replace("%%", "%")
        takes = "nothing" if action.nargs == 0 else "word"
        if takes == "word" and str(action.metavar) in ("FILE", "DIR", "PATH"):
            takes = "file"
        for each in action.option_strings:
            if each.startswith("--"):
                options.append(Option(each, text, choices, takes))
    return Command(name, told, options, words)


def _bash(commands: List[Command]) -> str:
    cases, files, words = [], [], []
    for command in commands:
        for option in command.options:
            if option.choices:
                cases.append(f"    {command.name}:{option.name}) words='{' '.join(option.choices)}' ;;")
            elif option.takes == "file":
                files.append(f"{command.name}:{option.name}")
            elif option.takes == "word":
                cases.append(f"    {command.name}:{option.name}) return ;;")
        names = " ".join([*command.words, *(option.name for option in command.options)])
        words.append(f"      {command.name}) words='{names}' ;;")
    names = " ".join(command.name for command in commands)
    lines = [
        "# gradwire completion bash > ~/.local/share/bash-completion/completions/gradwire",
        "_gradwire() {",
        '  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=""',
        "  COMPREPLY=()",
        '  if [ "$COMP_CWORD" -eq 1 ]; then',
        f"    COMPREPLY=($(compgen -W '{names} --help --version' -- \"$current\"))",
        "    return",
        "  fi",
        '  case "${COMP_WORDS[1]}:$before" in',
        *cases,
        *([f"    {'|'.join(files)})", '      COMPREPLY=($(compgen -f -- "$current"))',
           "      return ;;"] if files else []),
        '    *) case "${COMP_WORDS[1]}" in',
        *words,
        "    esac ;;",
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o filenames -F _gradwire gradwire",
    ]  # fmt: skip
    return "\n".join(lines)


def _zsh(commands: List[Command]) -> str:
    lines = [
        "#compdef gradwire",
        '# gradwire completion zsh > "${fpath[1]}/_gradwire"',
        "_gradwire() {",
        "  if (( CURRENT == 2 )); then",
        "    local -a commands=(",
        *(f"      {_quoted(f'{command.name}:{command.help}')}" for command in commands),
        "    )",
        "    _describe command commands",
        "    return",
        "  fi",
        "  local command=${words[2]}",
        "  shift words",
        "  (( CURRENT-- ))",
        "  case $command in",
    ]
    for command in commands:
        given = [_zsh_option(option) for option in command.options]
        given += [f"1:word:({' '.join(command.words)})"] if command.words else []
        lines.append(f"    {command.name}) _arguments \\")
        lines += [f"      {_quoted(each)} \\" for each in given[:-1]]
        lines.append(f"      {_quoted(given[-1])} ;;")
    return "\n".join([*lines, "  esac", "}", "compdef _gradwire gradwire"])


def _zsh_option(option: Option) -> str:
    told = re.sub(r"([\[\]:])", r"\\\1", option.help)
    text = f"{option.name}[{told}]"
    if option.takes == "nothing":
        return text
    values = f"({' '.join(option.choices)})" if option.choices else ""
    return f"{text}:value:{'_files' if option.takes == 'file' else values}"


def _fish(commands: List[Command]) -> str:
    names = " ".join(command.name for command in commands)
    lines = [
        "# gradwire completion fish > ~/.config/fish/completions/gradwire.fish",
        "complete -c gradwire -f",
    ]
    for command in commands:
        first = f"not __fish_seen_subcommand_from {names}"
        lines.append(
            f"complete -c gradwire -n {_quoted(first)} -a {command.name} -d {_quoted(command.help)}"
        )
        here = f"complete -c gradwire -n '__fish_seen_subcommand_from {command.name}'"
        lines += [f"{here} -a {_quoted(' '.join(command.words))}"] if command.words else []
        for option in command.options:
            line = f"{here} -l {option.name[2:]} -d {_quoted(option.help)}"
            if option.choices:
                line += f" -x -a {_quoted(' '.join(option.choices))}"
            elif option.takes != "nothing":
                line += " -r -F" if option.takes == "file" else " -x"
            lines.append(line)
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """For a shell: fish and zsh alike read '\\'' outside of the quotes as one quote."""
    return "'" + text.replace("'", "'\\''") + "'"


SHELLS: Dict[str, Callable[[List[Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
