"""The connections to a store's servers, each of a kind: to one server, by a unix socket, or to the primary that Sentinels name.

All of them send within their caller's task. Before Python 3.12 the library begins a task for each command, for its timeout. A
caller then waits for two more turns of the event loop, which are what a message waits for while many others are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from redis.asyncio import Connection, SSLConnection
from redis.asyncio.connection import AbstractConnection, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import ReadOnlyError
from redis.exceptions import TimeoutError as TimedOut

from sessions.store.redis.sentinels import Sentinels


class _InlineConnection(AbstractConnection):
    """A connection that sends in its caller's task."""

    async def send_packed_command(
        self,
        command: bytes | str | Iterable[bytes],
        check_health: bool = True,  # noqa: FBT001, FBT002 - the library's
    ) -> None:
        """Send a command. Raises the library's errors; the connection is lost then, also by a cancellation."""
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        if check_health:
            await self.check_health()  # type: ignore[no-untyped-call]
        whole = command.encode() if isinstance(command, str) else command
        try:
            async with asyncio.timeout(self.socket_timeout):
                await self._send_packed_command([whole] if isinstance(whole, bytes) else whole)
        except BaseException as error:
            await self.disconnect(nowait=True)
            if isinstance(error, TimeoutError):
                raise TimedOut("The server does not take a command.") from error
            if isinstance(error, OSError):
                raise ConnectionLost(f"The connection was lost while a command was sent: {error}.") from error
            raise


class _PrimaryOnlyConnection(_InlineConnection):
    """A connection that is dropped if its server turns out to be a replica: the next one goes to the master."""

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read an answer. Raises ConnectionError, of the library, in place of ReadOnlyError."""
        try:
            return await super().read_response(*args, **kwargs)
        except ReadOnlyError as error:
            await self.disconnect()
            raise ConnectionLost("The server has become a replica.") from error


class ServerConnection(_PrimaryOnlyConnection, Connection):
    """A connection to one server."""


class ServerTlsConnection(_PrimaryOnlyConnection, SSLConnection):
    """The same, with TLS."""


class ServerUnixConnection(_InlineConnection, UnixDomainSocketConnection):
    """A connection by a unix socket."""


class _TermConnection(_PrimaryOnlyConnection):
    """A connection to a group's primary. With the term it ends: what it says from then on may be of an old primary."""

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        super().__init__(**options)
        self._sentinels = sentinels
        self._term = sentinels.term

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Connect to the primary, after a failover if one is under way. Raises the library's errors."""
        if not self.is_connected:
            (self.host, self.port), self._term = await self._sentinels.primary()
        await super().connect_check_health(*args, **kwargs)

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        """Send a command. Raises the library's errors."""
        if self.is_connected:
            await self._end_with_its_term()
        await super().send_packed_command(*args, **kwargs)

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read an answer. Raises the library's errors."""
        answer = await super().read_response(*args, **kwargs)
        await self._end_with_its_term()
        return answer

    async def _end_with_its_term(self) -> None:
        if self._term != self._sentinels.term:
            await self.disconnect(nowait=True)
            raise ConnectionLost("A failover began.")


class PrimaryConnection(_TermConnection, Connection):
    """A connection to the primary that Sentinels name."""


class PrimaryTlsConnection(_TermConnection, SSLConnection):
    """The same, with TLS."""
