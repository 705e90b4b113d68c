"""A sweep file's content before it is validated: reading YAML, and `--set` on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from pcr_ray.errors import InputError
from pcr_ray.text import is_plain

MOST_BYTES = 10_000_000  # of a file
MOST_NODES = 200_000  # values after aliases are followed: nine levels of ten aliases each would be 10^9
MOST_LEVELS = 30  # of nesting; a sweep file has 6
MOST_DIGITS = 64  # of a whole number, in any notation


class _Loader(yaml.SafeLoader):
    """The safe loader, with limits, one kind of error, and no key twice: the first value would be lost unsaid."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None:
            _measure(node, 0, {})
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(None, None, f"key '{key.value}' twice in one mapping", key.start_mark)
                seen.add((key.tag, key.value))
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        if kind == "int" and len(node.value) > MOST_DIGITS:
            raise yaml.YAMLError(f"a number of more than {MOST_DIGITS} digits, line {node.start_mark.line + 1}")
        if isinstance(node, yaml.ScalarNode) and not is_plain(node.value):
            raise yaml.YAMLError(f"text with a NUL or half a surrogate pair, line {node.start_mark.line + 1}")
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError):  # what PyYAML raises depends on the type
            value = repr(node.value)[:80] if isinstance(node, yaml.ScalarNode) else "this"
            raise yaml.YAMLError(f"{value} is not a valid {kind}, line {node.start_mark.line + 1}") from None


def _measure(node: yaml.Node, level: int, sizes: dict[int, int | None]) -> int:
    """How many values a node stands for when its aliases are followed; raises past the limits."""
    size = sizes.get(id(node), 0)
    if size is None or level > MOST_LEVELS:
        what = "an alias to what contains it" if size is None else f"more than {MOST_LEVELS} levels of nesting"
        raise yaml.YAMLError(f"{what}, line {node.start_mark.line + 1}")
    if not size:
        sizes[id(node)] = None  # open: met again before it is measured, it contains itself
        parts = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in parts for part in pair]
        sizes[id(node)] = size = 1 + sum(_measure(part, level + 1, sizes) for part in parts)
        if size > MOST_NODES:
            raise yaml.YAMLError(f"more than {MOST_NODES:,} values, line {node.start_mark.line + 1}")
    return size


def read_yaml(text: str) -> Any:
    """As `yaml.safe_load`, with limits and with one kind of error."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader # nosec B506
    except RecursionError:
        raise yaml.YAMLError("too many levels of nesting") from None


def read_text(path: Path) -> str:
    """Of a file that a user named: a pipe without a writer would hang, and a device may never end."""
    if path.exists() and not path.is_dir() and not path.is_file():
        raise OSError("it is not a regular file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(f"it has more than {MOST_BYTES:,} bytes")
    return content.decode("utf-8-sig")  # spreadsheets begin their UTF-8 with a mark


def explain_yaml(error: yaml.YAMLError, text: str) -> str:
    """What is wrong, and its line with a caret below."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    said = [getattr(error, "context", None), getattr(error, "problem", None), getattr(error, "note", None)]
    lines = text.splitlines()
    shown = lines[mark.line][:200] if mark.line < len(lines) else ""
    caret = " " * min(mark.column, len(shown)) + "^"
    return f"{', '.join(part for part in said if part)}, line {mark.line + 1}\n    {shown}\n    {caret}"


def with_dotted_params(content: dict[str, Any]) -> dict[str, Any]:
    """A copy in which `params: {alpha: 1}` is `params.alpha: 1`, so that each parameter is a field like any other."""

    def dotted(mapping: Any) -> Any:
        if not isinstance(mapping, dict) or not isinstance(params := mapping.get("params"), dict):
            return dict(mapping) if isinstance(mapping, dict) else mapping
        return {f"params.{k}": v for k, v in params.items()} | {k: v for k, v in mapping.items() if k != "params"}

    def each(rules: Any, change: Callable[[Any], Any]) -> Any:
        return [change(rule) for rule in rules] if isinstance(rules, list) else rules

    def adjustment(rule: Any) -> Any:
        return {k: dotted(v) for k, v in rule.items()} if isinstance(rule, dict) else rule

    changes: dict[str, Callable[[Any], Any]] = {
        "fixed": dotted,
        "grid": lambda grid: dict(grid) if isinstance(grid, dict) else grid,
        "grids": lambda grids: each(grids, lambda g: dict(g) if isinstance(g, dict) else g),
        "exclude": lambda rules: each(rules, dotted),
        "adjust": lambda rules: each(rules, adjustment),
    }
    return {k: changes[k](v) if k in changes else v for k, v in content.items()}


def override(content: dict[str, Any], text: str) -> None:
    """`grid.seed=[0,1]`: set a dotted key of the file; the value is YAML. A field set in one place leaves the other."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InputError(f"--set {text[:200]}: write key=value, such as fixed.dataset=digits")
    try:
        parsed = read_yaml(value)
    except yaml.YAMLError as error:
        raise InputError(f"--set {text[:200]}: the value is not valid YAML: {explain_yaml(error, value)}") from None
    if isinstance(parsed, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", parsed):
        parsed = float(parsed)
    top, _, rest = key.partition(".")
    if not rest:
        content |= with_dotted_params({top: parsed})
        return
    if rest == "params" and isinstance(parsed, dict):
        for name, value_ in parsed.items():
            _set(content, top, f"params.{name}", value_)
    else:
        _set(content, top, rest, parsed)


def _set(content: dict[str, Any], top: str, rest: str, parsed: Any) -> None:
    if top in ("fixed", "grid") and isinstance(content.get(top) or {}, dict):  # a field has one place
        grids, adjust = (v if isinstance(v := content.get(k), list) else [] for k in ("grids", "adjust"))
        adjusted = [a.get("set") for a in adjust if isinstance(a, dict)]
        for other in [content.get("fixed"), content.get("grid"), *grids, *adjusted]:
            if isinstance(other, dict):
                other.pop(rest, None)
        content[top] = {**(content.get(top) or {}), rest: parsed}
    else:
        inner = content.get(top) or {}
        if not isinstance(inner, dict):
            kind = "a list" if isinstance(inner, list) else "not a mapping"
            raise InputError(f"--set {top}.{rest}: '{top}' is {kind}; set it as a whole, --set {top}=...")
        content[top] = {**inner, rest: parsed}
