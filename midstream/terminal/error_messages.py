"""Why a chat can't go on, in a sentence that says what to do. Pure."""

from __future__ import annotations

import errno
import socket
import ssl
from urllib.parse import urlsplit

from midstream.address import is_here
from midstream.errors import ClientError, NotConnected


def error_message(url: str, error: ClientError | OSError) -> str:
    """Return what is wrong with the service at a URL, from an error of the client."""
    parts = urlsplit(url)
    address = parts.netloc or url
    if isinstance(error, NotConnected):
        return f"{url} is no chat service, or does not let you in: {error}"
    return (
        f"{address}: {error}"
        if isinstance(error, ClientError)
        else _unreachable(address, parts.hostname, error)
    )


def _unreachable(address: str, host: str | None, error: OSError) -> str:
    match error:
        case socket.gaierror():
            return f"There is no host of the name {host}."
        case ssl.SSLError():
            return f"{address} can't be reached by TLS: {error}. If it has no TLS, write ws://{address}."
        case TimeoutError():
            return f"{address} does not answer."
        case _ if error.errno == errno.ECONNREFUSED or "Connect call failed" in str(error):
            what = (
                "start it with `midstream serve`, or name another place: `midstream chat HOST:PORT`."
                if is_here(host)
                else "is the service running?"
            )
            return f"Nothing listens at {address}; {what}"
        case _:
            return f"{address}: {error}"
