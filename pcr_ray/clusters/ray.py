"""A Ray cluster that runs already, by its dashboard: the sweep as a Ray job, followed until it ends."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import http.client
import json
import logging
import os
import shlex
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pcr_ray.clusters import _rayjob
from pcr_ray.clusters._base import BACKENDS, LOOPBACK, Backend, Job
from pcr_ray.console import console
from pcr_ray.errors import InputError, NotNowError, PcrRayError
from pcr_ray.provenance import packages
from pcr_ray.text import holds_credentials, redact, redact_uri
from pcr_ray.tracking.uri import uri_problem

PATIENCE = 5  # seconds for the first answer
STOPPED = NotNowError.exit_code


@BACKENDS.register("ray")
class Ray(Backend):
    title = "Ray"
    summary = "a job on a Ray cluster that runs already; its log is followed"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("cluster", metavar="URL", help="the cluster's dashboard, such as http://HOST:8265")
        parser.add_argument(
            "--folder", default="~/pcr_ray", metavar="DIR",
            help="where the sweep runs on the cluster's head (default: ~/pcr_ray); relative paths are below it",
        )  # fmt: skip
        parser.add_argument("--python", default="python", metavar="NAME", help="the cluster's Python (default: python)")
        parser.add_argument("--ship", action="store_true", help="run this code instead of the cluster's own pcr_ray")

    def submit(self, job: Job) -> str:
        request = self._request(job)
        with _client(self._url) as client:
            for known in client.list_jobs():
                same = all((known.metadata or {}).get(k) == request["metadata"][k] for k in ("sweep", "folder"))
                if same and not known.status.is_terminal():
                    other = known.metadata.get("content") != request["metadata"]["content"]
                    console.print(
                        f"sweep '{job.name}' is running already"
                        + (", as it was first submitted: the file or its options were others" if other else "")
                    )
                    return f"ray/{self._url}/{known.submission_id}"
            with tempfile.TemporaryDirectory(prefix="pcr-ray-submit-") as scratch:
                for name, content in self._files(job).items():
                    (Path(scratch) / name).write_text(content, encoding="utf-8")
                for plugin in job.plugins:
                    (shutil.copytree if plugin.is_dir() else shutil.copy)(plugin, Path(scratch) / plugin.name)
                request["runtime_env"]["working_dir"] = scratch
                number = time.strftime("%Y%m%d-%H%M%S")
                return f"ray/{self._url}/" + client.submit_job(submission_id=f"pcr-ray-{job.name}-{number}", **request)

    @property
    def _url(self) -> str:
        return _dashboard(self.options.cluster)

    def _files(self, job: Job) -> dict[str, str]:
        return {f"{job.name}.yaml": job.text}

    def _request(self, job: Job) -> dict[str, Any]:
        arguments = list(job.arguments)
        store = os.environ.get("MLFLOW_TRACKING_URI")
        if store and "--tracking-uri" not in arguments:
            arguments += ["--tracking-uri", _for_the_cluster(store, self._url)]
        folder = self.options.folder
        place = '"$HOME"' + shlex.quote(folder[1:]) if folder.startswith("~/") else shlex.quote(folder)
        command = shlex.join([self.options.python, "-m", "pcr_ray.sweep"])
        entrypoint = (
            f'file=$PWD/{job.name}.yaml; mkdir -p {place} && cd {place} && exec {command} "$file" --address auto'
        )
        environment: dict[str, Any] = {"env_vars": {"PYTHONUNBUFFERED": "1"}}
        if self.options.ship:
            environment |= {"py_modules": [str(p) for p in packages()], "excludes": ["__pycache__"]}
        content = hashlib.sha256(json.dumps([job.text, arguments]).encode()).hexdigest()[:16]
        return {
            "entrypoint": " ".join([entrypoint, shlex.join(arguments)]).strip(),
            "metadata": {"sweep": job.name, "folder": folder, "content": content},
            "runtime_env": environment,
        }

    def render(self, job: Job) -> str:
        request = self._request(job)
        request["runtime_env"]["working_dir"] = self._files(job) | {p.name: f"from {p}" for p in job.plugins}
        return f"# to {self._url}/api/jobs/\n" + _rayjob.dump([request])

    def attend(self, handle: str) -> int:
        try:
            self.logs(handle, follow=True)
        except KeyboardInterrupt:
            console.print(
                f"\ndetached: the sweep goes on. Run the same command again, or pcr-ray job logs --follow {handle}",
                soft_wrap=True, markup=False,
            )  # fmt: skip
            return STOPPED
        with _client(_parts(handle)[0]) as client:
            info = client.get_job_info(_parts(handle)[1])
        if info.driver_exit_code is None and str(info.status) != "STOPPED":
            raise PcrRayError(f"{handle}: {info.status}: {_first_line(info.message)}")
        return STOPPED if info.driver_exit_code is None else info.driver_exit_code

    def status(self, handle: str) -> str:
        url, number = _parts(handle)
        with _client(url) as client:
            info = client.get_job_info(number)
        code = "" if info.driver_exit_code is None else f", exit code {info.driver_exit_code}"
        return f"{info.status}{code}: {_first_line(info.message)}"

    def logs(self, handle: str, follow: bool) -> None:
        url, number = _parts(handle)
        with _client(url) as client:
            if not follow:
                sys.stdout.write(client.get_job_logs(number))
                return
            asyncio.run(_follow(client, number))

    def cancel(self, handle: str) -> None:
        url, number = _parts(handle)
        with _client(url) as client:
            if not client.stop_job(number):
                raise InputError(f"{handle}: not running (any more)")


async def _follow(client: Any, number: str) -> None:
    """Print the log until the job ends. A connection that breaks is made again; what was shown is left out."""
    from aiohttp import ClientError

    shown = 0
    while True:
        ended = client.get_job_info(number).status.is_terminal()
        seen = 0
        with contextlib.suppress(RuntimeError, ClientError):  # the connection broke
            async for text in client.tail_job_logs(number):
                fresh = text[max(0, shown - seen) :]
                seen += len(text)
                if seen > shown:
                    sys.stdout.write(fresh)
                    sys.stdout.flush()
                    shown = seen
        if ended:
            return
        await asyncio.sleep(0.5)


def _parts(handle: str) -> tuple[str, str]:
    url, _, number = handle.partition("/")[2].rpartition("/")
    if not url.startswith("http") or not number:
        raise InputError(
            f"'{redact(handle)}' is not a job on a Ray cluster, such as ray/http://HOST:8265/pcr-ray-tiny-1"
        )
    return _dashboard(url), number


def _dashboard(url: str) -> str:
    """The URL without its last slash, where it can be one of a dashboard."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no port
        host = (parts.hostname or "").encode("idna")  # raises where no name can be so
    except ValueError:
        host = b""
    if not host or not url.startswith(("http://", "https://")) or any(c.isspace() for c in url):
        raise InputError(f"'{redact_uri(url)}' is not the URL of a Ray dashboard, such as http://HOST:8265")
    if holds_credentials(url):  # it would be part of the handle, and Ray's client does not send it
        raise InputError(
            f"{redact_uri(url)}: the dashboard's URL cannot hold a user name or password; a cluster's token goes into "
            "RAY_AUTH_TOKEN, and an SSH tunnel leads past a proxy that asks for a login"
        )
    return url.rstrip("/")


def _for_the_cluster(store: str, url: str) -> str:
    """What MLFLOW_TRACKING_URI says here, where it means the same on the cluster and may be read by all there."""
    known = f"MLFLOW_TRACKING_URI is {redact_uri(store)} here"
    if holds_credentials(store):
        raise InputError(
            f"{known}: its credentials are not sent to the cluster, where a job's options can be read by others\n"
            "  Name the server without them (--tracking-uri) and set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD where the cluster's head is started; or set MLFLOW_TRACKING_URI there, and unset "
            "it here."
        )
    if problem := uri_problem(store):
        raise InputError(f"{known}: {problem}\n  Set it to a server such as http://HOST:5000, or unset it.")
    # A dashboard on this machine may be the near end of a tunnel, or not: then the store is taken as it is.
    lost = urlsplit(store).hostname in LOOPBACK and urlsplit(url).hostname not in LOOPBACK
    if lost or not store.startswith("http"):
        raise InputError(
            f"{known}, which may be another store on the cluster, or none\n  Name the one to use as the cluster's head "
            "sees it: --tracking-uri http://HOST:5000, or --tracking-uri sqlite:///mlflow.db for a file in --folder."
        )
    return store


def _first_line(text: str | None) -> str:
    return (redact(text or "").splitlines() or [""])[0]


@contextlib.contextmanager
def _client(url: str) -> Iterator[Any]:
    """A connection to the cluster's dashboard; whatever goes wrong with it is one message, soon."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):  # Ray would take them instead of the URL
        os.environ.pop(name, None)
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    logging.disable(logging.INFO)  # every upload and every closed connection is news to Ray
    _knock(url)
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    try:
        yield JobSubmissionClient(url)
    except AuthenticationError:
        raise InputError(
            f"the Ray cluster at {url} refuses the token: set RAY_AUTH_TOKEN to the one the cluster was started with"
        ) from None
    except OSError as error:  # requests' and aiohttp's errors among them
        raise NotNowError(
            f"the connection to {url} broke: {_first_line(str(error))}; run the same command again"
        ) from None
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{url}: {_first_line(str(error))}") from None


def _knock(url: str) -> None:
    """Ray's client has no time limit of its own."""
    try:
        with urllib.request.urlopen(f"{url}/api/version", timeout=PATIENCE) as answer:  # nosec B310
            json.load(answer)["ray_version"]
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):  # a token is asked for: Ray's client has it, or says so
            raise InputError(f"what answers at {url} is not a Ray dashboard: {error}") from None
    except OSError as error:
        raise InputError(
            f"nobody answers at {url} ({getattr(error, 'reason', error)}): is the cluster up, and was its head started "
            "with --dashboard-host 0.0.0.0, or is there an SSH tunnel to it?"
        ) from None
    except (ValueError, KeyError, TypeError, http.client.HTTPException):
        raise InputError(f"what answers at {url} is not a Ray dashboard") from None
