"""A sweep file's content before it is validated: reading YAML, and `--set` on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import yaml

from pcr_ray.errors import InputError


class _Loader(yaml.SafeLoader):
    """The safe loader, but a key that is there twice is an error: the first value would be lost without a word."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(None, None, f"key '{key.value}' twice in one mapping", key.start_mark)
                seen.add((key.tag, key.value))
        return node


def read_yaml(text: str) -> Any:
    """As `yaml.safe_load`, with one kind of error: a date of month 13 or deep nesting raise others there."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, RecursionError) as error:
        raise yaml.YAMLError(str(error)) from None


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
        raise InputError(f"--set {text}: write key=value, such as fixed.dataset=digits")
    try:
        parsed = read_yaml(value)
    except yaml.YAMLError:
        raise InputError(f"--set {text}: the value is not valid YAML") from None
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
