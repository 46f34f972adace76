"""uvicorn as this service runs it, with its listening sockets, TLS, and limits on peers. Signals first start a drain."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import structlog
import uvicorn
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from app.settings import Settings, SettingsError, called, naming
from connections.api.anthropic.endpoint import refusal_of
from connections.http import RefusalCounters, json_response, refusal
from connections.http_protocol import HttpProtocol, ParseScheduler, ServerLimits, SharedServerState
from connections.limiters import BoundCounters
from connections.middleware import (
    AllowedAddresses,
    ClientFilterMiddleware,
    Network,
    allowed_hosts_for,
    networks,
)
from connections.websocket_protocol import WebSocketProtocol
from sessions.errors import StoreDown
from sessions.limits.bounds import HEARTBEAT_S, MAX_FRAME_BYTES

BACKLOG = 2048
"""The most connections that wait to be accepted."""
TICK_S = 1.0
"""How many seconds old an answer's `date` header may be."""
ARRIVAL_S = 0.01
"""How long it may take until an accepted connection is registered; a TLS handshake takes longer."""
LAST_REQUESTS_S = 0.1
"""How long requests are still served after the server stops listening: their clients could not know of it."""
SEND_BUFFER_BYTES = 64 * 1024
"""The kernel's send buffer of a connection. Text in it counts as sent to the reader, so it must not be megabytes."""
RECEIVE_BUFFER_BYTES = 64 * 1024
"""The kernel's receive buffer: bytes sent ahead wait there, and are read at once."""
UNACKNOWLEDGED_MS = int(2 * HEARTBEAT_S * 1000)
"""How long the kernel keeps bytes that a peer does not acknowledge (RFC 5482): the last resort for answers without a heartbeat."""
HTTP_SOCKETS = 256
"""Sockets for HTTP requests, besides the WebSockets."""
SPARE = 256
"""Descriptors that are not for clients: the store's connections, the engine's, the page's files, the logs."""
_log = structlog.get_logger("midstream.service")


class Server(uvicorn.Server):
    """A server that leaves signals to the service: uvicorn would close every socket at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        server_limits: ServerLimits,
        bounds: BoundCounters,
        scheduler: ParseScheduler,
    ) -> None:
        super().__init__(config)
        self.server_state: SharedServerState = SharedServerState(bounds, scheduler)
        self._server_limits = server_limits
        self._ending = asyncio.Event()
        self._listeners: list[socket.socket] = []

    def keep_no_connection(self) -> None:
        """From now on, close each HTTP connection after its next answer."""
        self.server_state.is_draining = True

    async def stop_listening(self) -> None:
        """Refuse connections, so that load balancers connect to another replica, and wait for requests on their way.

        Connections that the kernel has already established are served: closing the listener would reset them.
        """
        last: list[socket.socket] = []
        for listener in self._listeners:
            with listener.dup() as same:
                self._close_servers()
                with suppress(BlockingIOError):
                    while True:
                        last.append(same.accept()[0])
        await asyncio.gather(*map(self._take, last))
        await asyncio.sleep(LAST_REQUESTS_S)

    def _close_servers(self) -> None:
        for one in self.servers:
            one.close()

    async def _take(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        with suppress(OSError):  # its peer has left, or does not speak TLS
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, accepted, ssl=self.config.ssl, ssl_handshake_timeout=self._handshake_s
            )

    def end_idle(self) -> None:
        """Close idle HTTP connections."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, HttpProtocol):
                connection.drain()

    def end(self) -> None:
        """Let `serve` end."""
        self.should_exit = True
        self._ending.set()

    def reload(self) -> None:
        """Reread the certificate, if there is one."""
        if isinstance(self.config.ssl, RenewableContext):
            self.config.ssl.reload()

    @property
    def _handshake_s(self) -> float | None:
        return self._server_limits.request_s if self.config.ssl else None

    @property
    def scheme(self) -> str:
        """The scheme of the page's URL."""
        return "https" if self.config.is_ssl else "http"

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on the sockets. uvicorn's own method would allow a minute for a TLS handshake, and any time for a request."""
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        self._listeners = list(sockets or ())
        self.servers = [
            await loop.create_server(
                self._protocol,
                sock=one,
                ssl=tls,
                ssl_handshake_timeout=self._handshake_s,
                backlog=self.config.backlog,
            )
            for one in sockets or ()
        ]
        self.started = True

    async def main_loop(self) -> None:
        """Renew the `date` header from time to time, and wait for the end. uvicorn's own loop wakes ten times a second."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close connections. uvicorn's own method waits a tenth of a second for them, even if there are none."""
        self._close_servers()
        for one in sockets or ():
            one.close()
        await asyncio.sleep(ARRIVAL_S)
        if self.config.is_ssl or self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        return HttpProtocol(
            server_limits=self._server_limits,
            config=self.config,
            server_state=self.server_state,
            app_state={},
        )


def server(
    app: ASGIApp,
    *,
    server_limits: ServerLimits,
    bounds: BoundCounters | None = None,
    scheduler: ParseScheduler | None = None,
    tls: ssl.SSLContext | None = None,
) -> Server:
    """Return a server for the application; its `serve` takes the sockets. `bounds` counts reached bounds; `scheduler` runs the parsers."""
    config = uvicorn.Config(
        app,
        ws=WebSocketProtocol,
        ws_max_size=MAX_FRAME_BYTES,
        ws_ping_interval=HEARTBEAT_S,
        ws_ping_timeout=HEARTBEAT_S,
        ws_per_message_deflate=False,  # 34 KB a connection, and an opening for zip bombs
        ssl_context_factory=None if tls is None else lambda *_: tls,
        proxy_headers=False,  # `ClientFilterMiddleware` decides which proxies are trusted
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    return Server(
        config,
        server_limits=server_limits,
        bounds=bounds or BoundCounters(),
        scheduler=scheduler or ParseScheduler(),
    )


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address, and refuses connections until `start_listening`. Raises SettingsError.

    `::` means all IPv6 and all IPv4 addresses.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _unusable(f"{host}:{port}", error) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # accepted sockets inherit it
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as uvloop does by itself
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
    listener.setblocking(False)
    return listener


def start_listening(listener: socket.socket) -> None:
    """Accept connections. Raises SettingsError if another process has begun to listen on the address."""
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _unusable(f"{host}:{port}", error) from None


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises SettingsError if the address can't be used."""
    listener = bind(host, port)
    try:
        start_listening(listener)
    except SettingsError:
        listener.close()
        raise
    return listener


def _unusable(where: str, error: OSError) -> SettingsError:
    return SettingsError(
        f"Can't listen on {where}: {error.strerror}. Choose another with --port, or MIDSTREAM_PORT."
    )


def address(listener: socket.socket, *, scheme: str = "http") -> str:
    """Return the page's URL for this machine."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"{scheme}://{shown}:{port}"


class StartupServer:
    """A server that starts at the first failure of the store. Before that, connections are refused, so a proxy tries another replica."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        server: Callable[[ASGIApp], Server],
        report: Callable[[str], object],
    ) -> None:
        """`report` takes the reason for waiting, and returns the body of `/readyz`."""
        self._listener = listener
        self._server = server(self._answer)
        self._report = report
        self._why = ""
        self._serving: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def until_ready(self) -> AsyncIterator[Callable[[StoreDown], None]]:
        """Yield the callback for failures of the store."""
        try:
            yield self._failed
        finally:
            await self.end()

    def _failed(self, why: StoreDown) -> None:
        self._why = str(why)
        if self._serving is None:
            start_listening(self._listener)
            served = self._listener.dup()  # the server closes its own
            self._serving = asyncio.create_task(self._server.serve(sockets=[served]))

    async def end(self) -> None:
        """Stop answering. New connections wait for the next server of the listener."""
        if self._serving is not None:
            self._server.end()
            await self._serving

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(self._response(scope))
        else:
            await self._response(scope)(scope, receive, send)

    def _response(self, scope: Scope) -> Response:
        match HTTPConnection(scope).url.path:
            case "/health" | "/healthz":
                return json_response({"status": "ok"})
            case "/readyz":
                return json_response(self._report(self._why), status=503)
            case _:
                return refusal(
                    503, StoreDown.code, f"The service waits for its store. {self._why}", {"Retry-After": "1"}
                )


def client_filter_of(settings: Settings, refusals: RefusalCounters) -> Callable[[ASGIApp], ASGIApp]:
    """Return what wraps an application in the client filter. Raises SettingsError for invalid addresses."""
    with naming("allowed_ips", ValueError, end="."):
        addresses = AllowedAddresses(allowed=networks(settings.allowed_ips), trusted=proxies_of(settings))
    hosts = allowed_hosts_for(
        settings.allowed_hosts, listening=settings.host, authenticates=settings.authenticates
    )
    return lambda app: ClientFilterMiddleware(
        app, addresses=addresses, hosts=hosts, refusals=refusals, refuse=refusal_of
    )


def proxies_of(settings: Settings) -> tuple[Network, ...]:
    """Return the networks of trusted proxies. Raises SettingsError for invalid addresses."""
    with naming("trusted_proxies", ValueError, end="."):
        return networks(settings.trusted_proxies)


def server_limits_of(settings: Settings) -> ServerLimits:
    """Return how long the server waits for peers, and how many it serves."""
    sockets = settings.max_connections + settings.max_pending_connections + HTTP_SOCKETS
    return ServerLimits(request_s=settings.request_s, max_sockets=raise_file_limit(sockets))


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """Return TLS if the settings ask for it. Raises SettingsError."""
    if settings.tls_cert is not None:
        context = RenewableContext(ssl.PROTOCOL_TLS_SERVER)
        context.read(settings.tls_cert, settings.tls_key)
        return context
    if settings.tls_key is not None:
        raise SettingsError(f"{called('tls_key')}: there is no {called('tls_cert')}.")
    return None


def raise_file_limit(sockets: int) -> int:
    """Raise the limit of open files as far as allowed; return how many of these sockets fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sockets + SPARE
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY or soft >= sockets + SPARE:
        return sockets
    _log.warning("open file limit too low", allowed=soft, needed=sockets + SPARE)
    return max(1, soft - SPARE)


class RenewableContext(ssl.SSLContext):
    """TLS 1.2 and newer, HTTP/1.1, with a certificate that may be renewed; open connections keep theirs.

    Each handshake uses a context made from the newest usable files. A context is never changed: its files are read once, so a
    half-written pair does no harm.
    """

    def read(self, certificate: str, key: str | None) -> None:
        """Load the certificate. Raises SettingsError if the files can't be used.

        `certificate`: PEM file of the chain, the server's own first; `key`: PEM file, None if the chain's file has the
        key, which must not need a password.
        """
        _speak(self)
        self._files = (certificate, key)
        self._newest = _context(certificate, key)
        self.sni_callback = self._hand_over

    def reload(self) -> None:
        """Load the files again, for new connections. If they can't be used, the last certificate stays."""
        try:
            self._newest = _context(*self._files)
        except SettingsError as error:
            _log.error("certificate not reloaded, previous one kept", why=str(error))
        else:
            _log.info("certificate reloaded")

    def _hand_over(self, handshake: ssl.SSLObject, _name: str | None, _given: ssl.SSLContext) -> None:
        handshake.context = self._newest


def _context(certificate: str, key: str | None) -> ssl.SSLContext:
    """Return a context with the files' current certificate. Raises SettingsError if they can't be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _speak(context)
    try:
        context.load_cert_chain(certificate, key, password=_refuse_to_ask)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise SettingsError(
            f"{called('tls_cert')} {certificate} and {called('tls_key')} "
            f"{key or 'in the same file'} can't be used: {error}."
        ) from error
    return context


def _speak(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])


def _refuse_to_ask() -> str:
    """Refuse OpenSSL a password, which it would otherwise ask for on a terminal."""
    raise ValueError("the key needs a password")
