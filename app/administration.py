"""`midstream admin`: lists, disconnects, stops, exports and erases through the admin API of a running service."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import click
import httpx
import msgspec

from app.settings import is_loopback
from engine.machine import printable

PATH = "/v1/admin"
ANSWER_S = 60.0
PAGE = 200
END_BYTES = 4096
"""How much of an export's end is examined: its last line is shorter."""


_json = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
_principal = click.option(
    "--principal", help="The owner, as the lists show it: key:NAME, jwt:SUBJECT or anonymous."
)
_client = click.option("--client-id", help="Only this client of the owner.")


@click.group()
@click.option(
    "--url", default="http://127.0.0.1:8000", show_default=True, help="Address of the service's page."
)
@click.option(
    "--key",
    envvar="CHAT_ADMIN_KEY",  # not MIDSTREAM_…: the service refuses unknown names with that prefix
    show_envvar=True,
    help="An admin key (`midstream keys add NAME --admin`); @PATH reads it from a file. Without it, the command asks.",
)
@click.pass_context
def admin(context: click.Context, url: str, key: str | None) -> None:
    """Manage a running service: connections, running replies, keys, people's data. The service logs each action."""
    context.obj = (url, key)


@admin.command()
@_principal
@_client
@_json
@click.pass_obj
def connections(
    target: tuple[str, str | None], principal: str | None, client_id: str | None, *, as_json: bool
) -> None:
    """List all connections, on all replicas."""
    columns = ("connection_id", "api", "principal", "client_id", "opened_at", "waiting_bytes", "replica")
    with _admin_client(target) as service:
        _show(service.rows("connections", _query(principal, client_id)), columns, as_json=as_json)


@admin.command()
@_principal
@_client
@_json
@click.pass_obj
def turns(
    target: tuple[str, str | None], principal: str | None, client_id: str | None, *, as_json: bool
) -> None:
    """List replies that run or wait, on all replicas."""
    columns = ("turn_id", "state", "chars", "principal", "client_id", "conversation_id", "model", "replica")
    with _admin_client(target) as service:
        _show(service.rows("turns", _query(principal, client_id)), columns, as_json=as_json)


@admin.command("keys")
@_json
@click.pass_obj
def list_keys(target: tuple[str, str | None], *, as_json: bool) -> None:
    """List API keys with their terms, and their use since midnight UTC."""
    columns = (
        *("name", "kind", "expires_at", "expired", "scopes", "models", "messages_today"),
        *("messages_per_day", "replies_today", "tokens_today", "tokens_per_day"),
    )
    with _admin_client(target) as service:
        _show(service.rows("keys", {}), columns, as_json=as_json)


@admin.command()
@click.argument("connection_id", required=False)
@_principal
@_client
@_json
@click.pass_obj
def disconnect(
    target: tuple[str, str | None],
    connection_id: str | None,
    principal: str | None,
    client_id: str | None,
    *,
    as_json: bool,
) -> None:
    """End one connection, or all of --principal. They close with 4403, so clients do not reconnect by themselves.

    With a valid key a client may connect again: to keep somebody out, revoke the key.
    """
    if (connection_id is None) == (principal is None) or (connection_id and client_id):
        raise click.UsageError("Name either a connection or a --principal.")
    path = f"/connections/{quote(connection_id, safe='')}" if connection_id else "/connections"
    with _admin_client(target) as service:
        result = service.request("DELETE", path, _query(principal, client_id))
        _print_result(result, f"{result['connections']} connections were ended.", as_json=as_json)


@admin.command()
@click.argument("turn_id")
@_json
@click.pass_obj
def stop(target: tuple[str, str | None], turn_id: str, *, as_json: bool) -> None:
    """End a reply. The history keeps what was seen; readers learn that an operator ended it."""
    with _admin_client(target) as service:
        result = service.request("DELETE", f"/turns/{quote(turn_id, safe='')}")
        _print_result(
            result, "It had ended before." if result["already"] else "The reply was ended.", as_json=as_json
        )


@admin.command()
@click.argument("principal")
@click.option("--client-id", help="The user of an application's key.")
@click.option(
    "--output", required=True, type=click.Path(path_type=Path), help="The file to write, in lines of JSON."
)
@_json
@click.pass_obj
def export(
    target: tuple[str, str | None], principal: str, client_id: str | None, output: Path, *, as_json: bool
) -> None:
    """Write all stored data of an owner to a file."""
    with _admin_client(target) as service:
        count = service.export(_query(principal, client_id), output)
        _print_result({"conversations": count}, f"{count} conversations are in {output}.", as_json=as_json)


@admin.command()
@click.argument("principal")
@click.option("--client-id", help="The user of an application's key.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_json
@click.pass_obj
def erase(
    target: tuple[str, str | None], principal: str, client_id: str | None, *, yes: bool, as_json: bool
) -> None:
    """Erase all stored data of an owner. Running replies are ended; backups are not changed."""
    if not yes:
        whose = principal if client_id is None else f"{principal}, client {client_id}"
        click.confirm(f"Erase all conversations of {whose}?", abort=True, err=True)
    with _admin_client(target) as service:
        result = service.request("DELETE", "/owner", _query(principal, client_id))
        _print_result(result, f"{result['conversations']} conversations were erased.", as_json=as_json)


@contextmanager
def _admin_client(target: tuple[str, str | None]) -> Iterator[AdminClient]:
    """Yield a client of the named service. If a request fails, print one line and exit."""
    url, key = target
    try:
        service = AdminClient(url, _key(key))
        yield service
        if service.silent:
            silent = ", ".join(sorted(service.silent))
            click.echo(f"midstream: replicas that did not answer: {printable(silent)}", err=True)
    except AdminRequestError as failure:
        click.echo(f"midstream: {printable(str(failure))}", err=True)
        sys.exit(1)


def _key(given: str | None) -> str:
    """Return the admin key. Raises click.UsageError."""
    if given is not None and given.startswith("@"):
        try:
            given = Path(given[1:]).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"The file of the key can't be read: {error}.") from None
    elif given is None:
        if not sys.stdin.isatty():
            raise click.UsageError("Give an admin key: --key, or CHAT_ADMIN_KEY.")
        given = click.prompt("Admin key", hide_input=True, err=True)
    if not (given and given.isascii() and given.isprintable()):
        raise click.UsageError("This is not a key.")
    return given


def _query(principal: str | None, client_id: str | None) -> dict[str, str]:
    named = {"principal": principal, "client_id": client_id}
    return {name: value for name, value in named.items() if value is not None}


def _show(rows: Iterable[dict[str, Any]], columns: tuple[str, ...], *, as_json: bool) -> None:
    """Print rows as JSON as they arrive, or as a table."""
    table = [columns]
    for row in rows:
        if as_json:
            click.echo(json.dumps(row))
        else:
            table.append(tuple(_cell(name, row[name]) for name in columns))
    if not as_json:
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for line in table:
            click.echo("  ".join(map(str.ljust, line, widths)).rstrip())


def _cell(name: str, value: Any) -> str:
    if value is None or value in ("", []):
        return "-"
    if name == "opened_at":
        return f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(",".join(map(str, value)) if isinstance(value, list) else str(value))


def _print_result(result: dict[str, Any], words: str, *, as_json: bool) -> None:
    click.echo(json.dumps(result) if as_json else printable(words))


class AdminRequestError(Exception):
    """A request to the admin API failed. The message is for the operator."""


class AdminClient:
    """A service's admin API. Every method raises AdminRequestError."""

    def __init__(self, url: str, key: str) -> None:
        """`url`: the page's address, or HOST:PORT, which means TLS unless it is this machine.

        An admin key crosses a network unencrypted only if the URL says http.
        """
        scheme = "http" if is_loopback(urlsplit(f"//{url}").hostname or "") else "https"
        self._url = (url if "://" in url else f"{scheme}://{url}").rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}
        self.silent: set[str] = set()
        """The replicas that have not answered so far."""

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
            part.unlink(missing_ok=True)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file, self._stream("GET", "/export", query) as response:
                tail = b""
                for received in response.iter_bytes():
                    file.write(received)
                    tail = (tail + received)[-END_BYTES:]
            *lines, rest = tail.split(b"\n")
            end = _object(lines[-1]) if lines and not rest else {}
            if end.get("type") != "end" or "conversations" not in end:
                raise AdminRequestError("The export was cut off; nothing was written.")
            part.replace(to)
        except OSError as error:
            raise AdminRequestError(f"{to} can't be written: {error.strerror}.") from None
        finally:
            part.unlink(missing_ok=True)
        return int(end["conversations"])

    def _no_midstream(self) -> AdminRequestError:
        return AdminRequestError(f"{self._url} is not a Midstream service: its answer has another format.")

    @contextmanager
    def _stream(self, method: str, path: str, query: dict[str, str]) -> Iterator[httpx.Response]:
        timeout = httpx.Timeout(
            ANSWER_S, read=None if path == "/owner" else ANSWER_S
        )  # an erasure may take long
        try:
            with (
                httpx.Client(headers=self._headers, timeout=timeout) as client,
                client.stream(method, f"{self._url}{PATH}{path}", params=query) as response,
            ):
                if not response.is_success:
                    raise AdminRequestError(_error_message(response))
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise AdminRequestError(
                f"{self._url} does not answer: {error or type(error).__name__}."
            ) from None


def _object(line: bytes) -> dict[str, Any]:
    """Return the JSON object in a line, or an empty one."""
    try:
        parsed: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
    return parsed


def _error_message(response: httpx.Response) -> str:
    """Return the text of a refusal."""
    response.read()
    try:
        return str(msgspec.json.decode(response.content)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"{response.url} answers {response.status_code}, but not like a Midstream service."
