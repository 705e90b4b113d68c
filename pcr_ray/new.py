"""A file to start from: pcr-ray new method|dataset NAME"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from pcr_ray import plugins
from pcr_ray.console import Parser, console
from pcr_ray.errors import InputError

KINDS = {registry.kind: registry for registry in plugins.KINDS}


def main(argv: Sequence[str]) -> int:
    p = Parser(
        prog="pcr-ray new", description="Write a commented file with a method or dataset of your own, to start from."
    )
    p.add_argument("kind", choices=list(KINDS), metavar="|".join(KINDS))
    p.add_argument("name", metavar="NAME", help="its name in sweep files, such as my_method")
    p.add_argument("--out", type=Path, metavar="FILE", help="where to (default: NAME.py here)")
    given = p.parse_args(argv)
    name, file = given.name, given.out or Path(f"{given.name}.py")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InputError(f"'{name}': use small letters, digits and '_', a letter first")
    if name in KINDS[given.kind]:
        raise InputError(f"{given.kind} '{name}' is there already; choose another name")
    module = file.stem
    if not module.isidentifier() or file.suffix != ".py":
        raise InputError(f"{file}: not the name of a Python file that can be imported, such as my_method.py")
    if importlib.util.find_spec(module) and not file.exists():
        raise InputError(f"{file}: Python has a module '{module}' already; choose another name, or --out another file")
    _write(file, text_of(given.kind, name))
    uses = {
        f"pcr-ray check {file}": f"whether it does all that a {given.kind} must",
        f"pcr-ray train --plugins {file} --{given.kind} {name}": "one trial with it",
        f"plugins: [{file}]": "this line in a sweep file beside it makes it known there",
    }
    wide = max(map(len, uses))
    lines = [f"  {use:{wide}}  # {what}" for use, what in uses.items()]
    console.print("\n".join([f"{file} is written and works as it is:", *lines]), soft_wrap=True, markup=False)
    return 0


def text_of(kind: str, name: str) -> str:
    template = (resources.files("pcr_ray") / "templates" / f"{kind}.py.txt").read_text(encoding="utf-8")
    words = name.split("_")
    return template.format(name=name, title=" ".join(words).capitalize(), cls="".join(w.capitalize() for w in words))


def _write(file: Path, text: str) -> None:
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        raise InputError(f"{file} exists already: it was left as it is") from None
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror}") from None
