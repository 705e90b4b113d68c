"""Where the record is: the tracking store's URI, and what is wrong with one before anything connects to it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from pcr_ray.errors import InputError
from pcr_ray.text import is_plain, redact_uri

SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")


def tracking_uri(given: str | None = None) -> str:
    """`--tracking-uri`, else MLFLOW_TRACKING_URI, else mlflow.db in the working directory; absolute."""
    uri = given or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if uri.startswith("sqlite:///"):
        uri = f"sqlite:///{Path(uri.removeprefix('sqlite:///')).absolute()}"
    if problem := uri_problem(uri) or _problem_of_file(uri):
        raise InputError(
            f"tracking URI '{redact_uri(uri)}': {problem}\n  Expected: http://HOST:PORT, sqlite:///FILE or another "
            "database's URI, such as postgresql+psycopg2://USER:PASSWORD@HOST/NAME (in a password, %XX for all but "
            "letters and digits)."
        )
    return uri


def uri_problem(uri: str) -> str | None:
    """What can be told on any machine. MLflow meets these with tracebacks or with minutes of silence."""
    # In the text of an error nobody could tell where a password with a space ends.
    if not is_plain(uri) or (not uri.startswith("sqlite") and re.search(r"\s", uri)):
        return "it has a space (write %20), a NUL or bytes that are not UTF-8 in it"
    if uri.startswith("sqlite"):
        return None if re.match(r"sqlite:///[^?]", uri) else "it names no file"
    try:
        parts = urlsplit(uri)
        _ = parts.port  # raises where it is no port
    except ValueError:  # its text may hold a piece of the password
        return "its host or port cannot be"
    if parts.scheme.partition("+")[0] not in SCHEMES:
        return f"no scheme that is known ({', '.join(SCHEMES)})"
    if not re.match(r"[\w+.-]+://", uri):
        return "its scheme is not followed by ://"
    return "it names no host" if parts.scheme.startswith("http") and not parts.hostname else None


def _problem_of_file(uri: str) -> str | None:
    """What can be told where the store is a file of this machine."""
    file = sqlite_file(uri)
    if file is None:
        return None
    if file.is_dir():
        return "it names no file"
    return None if file.parent.is_dir() else f"there is no folder {file.parent}"


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store. A query after it, such as ?timeout=60, is for the driver."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]) if uri.startswith("sqlite:///") else None
