"""Source files behind modules: where they are, what they import from their own surroundings, a hash of what they do."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path

INSTALLED = {"site-packages", "dist-packages"}
STANDARD = sysconfig.get_path("stdlib")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def look_again() -> None:
    """Forget what was read: in a notebook files change between two runs of one process."""
    for cached in (module_file, _imports, _digest):
        cached.cache_clear()


def closure(roots: Iterable[str], leave_out: Collection[str] = ()) -> dict[str, Path]:
    """Files by module: of these modules, and of all that they import from their package, ours and the user's files."""
    found: dict[str, Path] = {}
    todo = list(roots)
    while todo:
        name = todo.pop()
        file = module_file(name)
        if name in found or name in leave_out or file is None:
            continue
        found[name] = file
        top = name.split(".")[0]
        todo += [other for other in _imports(file, name) if _near(other, top)]
    return found


def _near(other: str, top: str) -> bool:
    """Whether a module's numbers may depend on another: of its package, of ours, or of the user's own files.

    The user's are all that is neither installed nor Python's own, wherever it is: Ray puts each file elsewhere.
    """
    package = other.split(".")[0]
    if package in (top, "pcr_ray") or top == "pcr_ray":
        return package in (top, "pcr_ray")
    file = module_file(package)
    return file is not None and not INSTALLED & set(file.parts) and not file.is_relative_to(STANDARD)


@lru_cache(maxsize=1024)
def module_file(module: str) -> Path | None:
    """Found without importing anything; None for what is no module, such as the name in `from module import name`."""
    top, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: __main__ of a notebook
        return None
    if spec is None or spec.origin is None:
        return None
    place = Path(spec.origin).parent.joinpath(*rest) if rest else Path(spec.origin).with_suffix("")
    return next((f for f in (place.with_suffix(".py"), place / "__init__.py") if f.is_file()), None)


@lru_cache(maxsize=1024)
def _imports(file: Path, module: str) -> list[str]:
    names = []
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return [name for name in names if name]


def digest(file: Path) -> str:
    """Of what the file does: without comments, layout and docstrings."""
    stat = file.stat()
    return _digest(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1024)
def _digest(file: Path, mtime: int, size: int) -> str:
    tree = _tree(file)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:8]


def shown(module: str, file: Path) -> str:
    """As a person looks for it: from the folder of the module's top package on."""
    depth = module.count(".") + 1 + (file.name == "__init__.py")
    return "/".join(file.parts[-depth:])


def _tree(file: Path) -> ast.Module:
    """Raises SyntaxError with the file's name where it is no Python."""
    return ast.parse(file.read_bytes(), str(file))
