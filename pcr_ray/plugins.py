"""Methods and datasets of your own: files, folders and modules that register theirs beside ours.

`load` runs where a study is read; `load_modules` where its trials are run. What is imported is ordinary Python: a
plugin can do whatever its user can.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pcr_ray import sources
from pcr_ray.datasets import DATASETS
from pcr_ray.errors import InputError, PcrRayError
from pcr_ray.methods import METHODS
from pcr_ray.text import first_line

HELP = "a file, folder or module with methods and datasets of your own; may be repeated"
KINDS = (METHODS, DATASETS)
_seen: dict[str, str] = {}  # module -> hash of what was imported


def add_argument(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--plugins", action="append", default=[], metavar="DIR|FILE|MODULE", help=HELP)


def absolute(given: str, base: Path) -> str:
    """A path that is there, absolute; the name of a module as it is."""
    place = _place(given, base)
    return str(place.resolve()) if place.exists() else given


def load(given: Iterable[str], base: Path | None = None) -> dict[str, list[str]]:
    """Import plugins; the modules by the folder that they are imported from ('' where that is Python's path)."""
    found: dict[str, list[str]] = {}
    for text in given:
        folder, modules = _find(text, base or Path.cwd())
        _import(text, folder, modules)
        found.setdefault(folder, []).extend(modules)
    return found


def load_modules(modules: Mapping[str, Sequence[str]]) -> None:
    """What `load` found, where trials run: from its folder, or from what Ray put on the path in its place."""
    for folder, names in modules.items():
        _import(folder or ", ".join(names), folder, list(names), anywhere=True)


def registered(modules: Iterable[str]) -> list[tuple[str, str]]:
    """('method' or 'dataset', name) of all that these modules registered."""
    return [(kind.kind, name) for module in modules for kind in KINDS for name in kind.of_module(module)]


def files(modules: Mapping[str, Sequence[str]]) -> list[Path]:
    """Files and packages that these modules consist of, for workers that do not share this machine's disk.

    What is found on Python's path is installed, and has to be there too.
    """
    tops = {name.split(".")[0]: None for folder, names in modules.items() if folder for name in names}
    tops |= {part.split(".")[0]: None for top in list(tops) for part in _parts(top)}
    found = [file for top in tops if (file := sources.module_file(top))]
    return [file.parent if file.name == "__init__.py" else file for file in found]


def _place(text: str, base: Path) -> Path:
    try:
        return base / Path(text).expanduser()
    except RuntimeError:
        raise InputError(f"plugin {text}: there is no such user") from None


def _find(text: str, base: Path) -> tuple[str, list[str]]:
    """The folder to import from, and the modules in it."""
    place = _place(text, base)
    if place.is_file():
        if place.suffix != ".py" or not place.stem.isidentifier():
            raise InputError(f"plugin {text}: not a Python file with a name that can be imported, such as my_method.py")
        return str(place.resolve().parent), [place.stem]
    if place.is_dir():
        place = place.resolve()
        if (place / "__init__.py").exists():
            return str(place.parent), _modules(place, f"{place.name}.", [place.name])
        if found := _modules(place, "", []):
            return str(place), found
        raise InputError(f"plugin {text}: the folder holds no Python files")
    try:
        spec = importlib.util.find_spec(text) if all(part.isidentifier() for part in text.split(".")) else None
    except Exception as error:  # the package above it is imported, and may fail in any way
        if not isinstance(error, ModuleNotFoundError) or not f"{text}.".startswith(f"{error.name}."):
            raise _refusal(text, error) from error
        spec = None
    if spec is None:
        raise InputError(f"plugin {text}: there is no such file or folder ({place}), and no such module")
    inside = spec.submodule_search_locations
    return "", _modules(Path(next(iter(inside))), f"{text}.", [text]) if inside else [text]


def _modules(folder: Path, prefix: str, first: list[str]) -> list[str]:
    """Those of a folder; a leading underscore marks what others of them import."""
    names = [m.name for m in pkgutil.iter_modules([str(folder)]) if not m.name.startswith("_")]
    return first + [prefix + name for name in sorted(names)]


def _import(text: str, folder: str, modules: list[str], *, anywhere: bool = False) -> None:
    if folder and folder not in sys.path:
        sys.path.append(folder)  # last: a plugin's file takes the place of nothing
        importlib.invalidate_caches()
    for kind in KINDS:
        kind.names()  # ours first: a plugin that takes one of their names is at fault
    for name in modules:
        sources.look_again()
        file = sources.module_file(name)
        if folder and not anywhere and not (file and file.is_relative_to(folder)):
            raise InputError(f"plugin {text}: a module '{name}' is already there ({file}): rename yours")
        now = _version(name)
        if name in sys.modules and _seen.get(name, now) != now:  # edited since, as in a notebook
            for part in {name, *_parts(name)}:
                _forget(part)
                sys.modules.pop(part, None)
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # somebody else's code raises anything
            _forget(name)
            raise _refusal(text, error) from error
        _seen[name] = now


def _forget(module: str) -> None:
    for kind in KINDS:
        kind.forget(module)


def _parts(module: str) -> dict[str, Path]:
    """Its own file and those that it imports beside it."""
    try:
        return {n: f for n, f in sources.closure([module]).items() if n.split(".")[0] != "pcr_ray"}
    except (SyntaxError, ValueError):
        return {}  # importing it says where


def _version(module: str) -> str:
    return " ".join(sources.digest(file) for _, file in sorted(_parts(module).items()))


def _refusal(text: str, error: BaseException) -> InputError:
    if isinstance(error, PcrRayError):
        return InputError(f"plugin {text}: {error}")
    return InputError(f"plugin {text}: it cannot be imported: {why_not(error)}")


def why_not(error: BaseException) -> str:
    """What somebody else's code raised when it was imported, and the first line of that code on the way there."""
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    theirs = [f" ({file}, line {line})" for file, line in frames if "importlib" not in file and not _ours(file)]
    return f"{type(error).__name__}: {first_line(error)}{theirs[0] if theirs else ''}"


def _ours(file: str) -> bool:
    return Path(file).is_relative_to(Path(__file__).parent)
