"""Words for people: near names, durations, texts without credentials, and texts that stay texts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

# A parameter with a password, and its sign: connection strings of ODBC stand percent-encoded in a URI.
HIDDEN = r"(?i)(\w*(?:password|passwd|token|secret|pwd|access_key|api_key)\w*)(=|%3D)"


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """`; did you mean 'x'?`, or the list of what there is when nothing is near. `ER-ACE`, as in papers, is near."""
    plain = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), plain, n=1, cutoff=0.6)
    return f"; did you mean '{plain[near[0]]}'?" if near else f"; known: {', '.join(known)}"


def duration(seconds: float) -> str:
    """3723 -> '1 h 02 min'."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours / 24:.1f} days"


def redact(text: object) -> str:
    """Without user names and passwords of any URI in it, whatever characters they have, but for spaces."""
    text = re.sub(r"(://)\S*@", r"\1***@", str(text))
    return re.sub(rf"{HIDDEN}[^&\s'\"]+", r"\1\2***", text)


def redact_uri(uri: str) -> str:
    """What may be shown of a text that is a URI and nothing else, even of one that is not well formed."""
    before, at, after = uri.rpartition("@")
    scheme = re.match(r"[\w+.-]+://", before)
    return re.sub(rf"{HIDDEN}[^&]*", r"\1\2***", (scheme[0] if scheme else "") + "***@" * bool(at) + after)


def holds_credentials(uri: str) -> bool:
    """Whether a user name, password or key is in it. An '@' in the path of a file is none of these."""
    return "://" in uri and not re.match("(sqlite|file):///", uri) and redact_uri(uri) != uri


def as_markdown(text: str) -> str:
    """Text that Markdown leaves as text: no HTML, link, image or code block begins in it. Ordinary names stay as is."""
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)
    text = re.sub(r"(\][ \t]*)\(", r"\1\\(", text)  # MLflow's Markdown allows the space
    text = text.replace("]:", "]&#58;")  # else it says where links of this name lead
    return re.sub(r"^([ \t]*)(```|~~~)", r"\1\\\2", text, flags=re.MULTILINE)


def is_plain(text: str) -> bool:
    """Whether databases and terminals can hold it: no NUL, and no bytes of a path or argument that are not UTF-8."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def first_line(error: object, limit: int = 300) -> str:
    """What an error says, in one line without credentials; its kind where it says nothing."""
    if cause := re.search(r"Max retries exceeded.*\[Errno -?\d+\] ([\w ]+)", str(error), re.DOTALL):
        return f"nobody answers there ({cause[1]})"
    lines = redact(error).strip().splitlines()
    return lines[0][:limit] if lines else type(error).__name__


def grouped(reasons: Mapping[str, str], shown: int = 5) -> list[str]:
    """Names and their reasons, one line per reason: `2 trials, a, b: it broke`. A name without one has its own line."""
    alike: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        alike.setdefault(reason, []).append(name)
    lines: list[str] = []
    for reason, names in alike.items():
        more = f" and {len(names) - shown} more" if len(names) > shown else ""
        together = f"{len(names)} trials, {', '.join(names[:shown])}{more}" if len(names) > 1 else names[0]
        lines += [f"{together}: {reason}"] if reason else names
    return lines


def count(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
