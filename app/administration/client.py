"""A client of a service's admin API. Its errors are sentences for the operator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import httpx
import msgspec

from app.setting_values import is_loopback

PATH = "/v1/admin"
ANSWER_S = 60.0
PAGE = 200


class AdminRequestError(Exception):
    """A request to the admin API failed. The message is for the operator."""


class AdminClient:
    """A service's admin API. Every method raises AdminRequestError."""

    def __init__(self, url: str, key: str) -> None:
        """`url`: the page's address, or HOST:PORT, which means TLS unless it is this machine."""
        self._url = (url if "://" in url else f"{_scheme(url)}://{url}").rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}
        self.silent: set[str] = set()
        """The replicas that did not answer so far."""

    def request(self, method: str, path: str, query: dict[str, str] | None = None) -> dict[str, Any]:
        """Return one answer."""
        with self._stream(method, path, query or {}) as response:
            response.read()
            try:
                answer: dict[str, Any] = msgspec.json.decode(response.content, type=dict[str, Any])
            except msgspec.DecodeError:
                raise self._no_midstream() from None
            self.silent.update(answer.get("silent", ()))
            return answer

    def rows(self, name: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yield all rows of a list, page by page."""
        after: dict[str, str] = {}
        while True:
            page = self.request("GET", f"/{name}", query | {"limit": str(PAGE)} | after)
            if not isinstance(page.get(name), list) or "next" not in page:
                raise self._no_midstream()
            self.silent.update(page.get("silent", ()))
            yield from page[name]
            if page["next"] is None:
                return
            after = {"after": page["next"]}

    def export(self, query: dict[str, str], to: Path) -> int:
        """Write an owner's export into a file, whole or not at all; return how many conversations it has."""
        part = to.with_name(f".{to.name}.part")
        try:
            with self._stream("GET", "/export", query) as response, _private_file(part) as file:
                last = b""
                for line in _lines(response):
                    file.write(line)
                    last = line
            end = _object(last) if last.endswith(b"\n") else {}
            if end.get("type") != "end" or "conversations" not in end:
                raise AdminRequestError("The export was cut off; nothing was written.")
            part.replace(to)
        except OSError as error:
            raise AdminRequestError(f"{to} can't be written: {error.strerror}.") from None
        finally:
            part.unlink(missing_ok=True)
        return int(end["conversations"])

    def _no_midstream(self) -> AdminRequestError:
        return AdminRequestError(f"{self._url} is not a Midstream service: its answer has another form.")

    @contextmanager
    def _stream(self, method: str, path: str, query: dict[str, str]) -> Iterator[httpx.Response]:
        try:
            with (
                httpx.Client(headers=self._headers, timeout=_timeout(path)) as client,
                client.stream(method, f"{self._url}{PATH}{path}", params=query) as response,
            ):
                if not response.is_success:
                    raise AdminRequestError(_error_message(response))
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise AdminRequestError(
                f"{self._url} does not answer: {error or type(error).__name__}."
            ) from None


def _scheme(address: str) -> str:
    """Return the scheme for HOST:PORT: an admin key is not sent over a network in the clear unless that is written."""
    return "http" if is_loopback(urlsplit(f"//{address}").hostname or "") else "https"


def _timeout(path: str) -> httpx.Timeout:
    """Return how long to wait for an answer. Erasing takes longer, the more there is."""
    return httpx.Timeout(ANSWER_S, read=None if path == "/owner" else ANSWER_S)


def _object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line; an empty one if the line holds none."""
    try:
        parsed: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
    return parsed


def _private_file(path: Path) -> BinaryIO:
    """Open a new file that only its owner may read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """Yield lines with their line ends; the last may have none."""
    rest = b""
    for part in response.iter_bytes():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if rest:
        yield rest


def _error_message(response: httpx.Response) -> str:
    """Return the text of a refusal."""
    response.read()
    try:
        return str(msgspec.json.decode(response.content)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"{response.url} answers {response.status_code}, but not as a Midstream service does."
