"""Why a chat can't go on, in a sentence that says what to do. Pure."""

from __future__ import annotations

import errno
import socket
import ssl
from urllib.parse import urlsplit

from midstream.errors import ClientError, NotConnected

_HERE = {"127.0.0.1", "localhost", "::1"}


def trouble(url: str, error: ClientError | OSError) -> str:
    """Return what is wrong with the service at a URL, from an error of the client."""
    parts = urlsplit(url)
    place = parts.netloc or url
    if isinstance(error, NotConnected):
        return f"{url} is no chat service, or does not let you in: {error}"
    return (
        f"{place}: {error}" if isinstance(error, ClientError) else _unreachable(place, parts.hostname, error)
    )


def _unreachable(place: str, host: str | None, error: OSError) -> str:
    match error:
        case socket.gaierror():
            return f"There is no host of the name {host}."
        case ssl.SSLError():
            return f"{place} can't be reached by TLS: {error}"
        case TimeoutError():
            return f"{place} does not answer."
        case _ if error.errno == errno.ECONNREFUSED or "Connect call failed" in str(error):
            what = (
                "start it with `midstream serve`, or name another place: `midstream chat HOST:PORT`."
                if host in _HERE
                else "is the service running?"
            )
            return f"Nothing listens at {place}; {what}"
        case _:
            return f"{place}: {error}"
