"""Before Ray joins a cluster: does anybody answer, is it Ray, does it take our token, is this machine part of it?

Ray itself tries for minutes where nobody answers, and for half a minute where the token is wrong.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from pcr_ray.errors import InputError, NotNowError
from pcr_ray.text import first_line

PROBE_SECONDS = 5


def reach(address: str) -> None:
    """Returns where `ray.init` will succeed, as far as can be told in seconds."""
    from ray._private import services
    from ray._private.authentication import authentication_token_setup as token
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.exceptions import AuthenticationError

    place = address
    if address == "auto":
        try:
            place = services.canonicalize_bootstrap_address(address) or ""
        except ConnectionError:
            raise NotNowError(
                "--address auto: no Ray runs on this machine\n  Nothing was run. Start or join a cluster (ray start), "
                "or leave --address out to run on this machine."
            ) from None
        token.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    _probe(place)
    try:
        token.ensure_token_if_auth_enabled(create_token_if_missing=False)
        with _native_silence():
            head = GcsClient(address=place)
        services.get_node_to_connect_for_driver(head, timeout_seconds=PROBE_SECONDS)
    except AuthenticationError:
        raise InputError(
            f"the Ray cluster at {place} does not accept this command's token\n  Nothing was run. Set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH, a file) to what the head was started "
            "with; where neither is set, the token is that of ~/.ray/auth_token."
        ) from None
    except RuntimeError:
        raise NotNowError(
            f"this machine is not a node of the Ray cluster at {place}\n  Nothing was run. Run the command on one of "
            f"its nodes, or join first (ray start --address={place}); pcr-ray submit ray sends a sweep from anywhere."
        ) from None


def _probe(address: str) -> None:
    """Is there anybody, and does it speak Ray's protocol? gRPC answers HTTP/2's greeting with a SETTINGS frame."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_SECONDS) as line:
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            if line.recv(9)[3:4] != b"\x04":
                raise ConnectionError("what answers there is not Ray")
    except OSError as error:
        raise NotNowError(
            f"nobody answers at --address {address} ({first_line(error)})\n  Nothing was run. Start the cluster "
            "(ray start --head --port=PORT), or leave --address out to run on this machine."
        ) from None


@contextlib.contextmanager
def _native_silence() -> Iterator[None]:
    """Ray's C++ writes to the file descriptor, past Python's loggers."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
