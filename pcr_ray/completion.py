"""Shell completion for bash and zsh: a script with the commands and options of this version."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
import sys
from collections.abc import Mapping, Sequence

from pcr_ray.clusters import BACKENDS
from pcr_ray.console import Parser
from pcr_ray.datasets import DATASETS
from pcr_ray.methods import METHODS
from pcr_ray.study.presets import PRESETS

SCRIPT = """\
# Completion of pcr-ray for bash and zsh: source this file.
[ -n "$ZSH_VERSION" ] && autoload -U +X bashcompinit && bashcompinit
_pcr_ray() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "$before" in
            {values}
        esac
        if [ -z "$words" ]; then
            case "${{COMP_WORDS[1]}}:$COMP_CWORD:$word" in
                {options}
                {names}
            esac
        fi
    fi
    [ -n "$words" ] && COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _pcr_ray pcr-ray
"""


def main(argv: Sequence[str]) -> int:
    p = Parser(
        prog="pcr-ray completion", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Print a script that completes commands, options and names, for bash and zsh:\n"
        "  pcr-ray completion > ~/.pcr-ray-completion\n"
        "  echo 'source ~/.pcr-ray-completion' >> ~/.bashrc   # or ~/.zshrc",
    )  # fmt: skip
    p.add_argument("shell", nargs="?", choices=("bash", "zsh"), help="both have the same script")
    p.parse_args(argv)
    from pcr_ray.cli import COMMANDS

    sys.stdout.write(script({name: target for name, (target, _) in COMMANDS.items()}))
    return 0


def script(commands: Mapping[str, str]) -> str:
    """`commands` are functions, as module:function, by the command's name."""
    helps = {name: _help(target) for name, target in commands.items()}
    helps["submit"] += "".join(_help(commands["submit"], backend) for backend in BACKENDS.names())
    values = {o: v.split(",") for text in helps.values() for o, v in re.findall(r"(--[a-z-]+) {([\w,-]+)}", text)}
    values |= {"--method": METHODS.names(), "--dataset": DATASETS.names(), "--preset": list(PRESETS)}
    names = {"methods": METHODS.names(), "presets": list(PRESETS), "bench": METHODS.names()}
    places = {f"{command}:*": found for command, found in names.items()}
    places |= {"submit:2": BACKENDS.names(), "job:2": ["status", "logs", "cancel"]}  # files and handles follow
    return SCRIPT.format(
        commands=" ".join(commands),
        values="\n            ".join(f'{option}) words="{" ".join(v)}" ;;' for option, v in values.items()),
        options="\n                ".join(f'{c}:*:-*) words="{" ".join(_options(h))}" ;;' for c, h in helps.items()),
        names="\n                ".join(f'{c}:*) words="{" ".join(v)}" ;;' for c, v in places.items()),
    )


def _help(target: str, *words: str) -> str:
    module, _, function = target.partition(":")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        getattr(importlib.import_module(module), function)([*words, "--help"])
    return shown.getvalue()


def _options(text: str) -> list[str]:
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)))
