"""Which pages may send HTTP requests (CORS of the Fetch standard): those of the server's own origin and of listed ones.

The browser's credentials (cookies) are never requested, so `*` may mean every origin.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from connections.http.refusal_counters import Refusal, RefusalCounters
from connections.middleware.origins import ANY, AllowedOrigins, is_secure

_EXPOSED_HEADERS = (
    "Retry-After, Retry-After-Ms, X-Request-Id, Request-Id, X-Midstream-Ignored, X-Midstream-Code"
)


class CorsMiddleware:
    """Stands before an application; `refusal` answers pages that are not allowed. Without `Origin`, as from an SDK, it does nothing."""

    def __init__(
        self,
        app: ASGIApp,
        origins: AllowedOrigins,
        refusals: RefusalCounters,
        *,
        method: str,
        refusal: Callable[[str | None], Response],
    ) -> None:
        self._app = app
        self._origins = origins
        self._refusals = refusals
        self._method = method
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, answer a preflight request, or refuse it."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        secure = is_secure(HTTPConnection(scope))
        if not self._origins.allow(origin, host=headers.get("host"), secure=secure):
            self._refusals.count(Refusal.ORIGIN)
            await self._refusal(origin)(scope, receive, send)
            return

        async def shown(message: Message) -> None:
            if message["type"] == "http.response.start" and origin is not None:
                shown_to = (
                    {"Access-Control-Allow-Origin": ANY} if self._origins.admit_all else _allow_origin(origin)
                )
                MutableHeaders(scope=message).update(
                    shown_to | {"Access-Control-Expose-Headers": _EXPOSED_HEADERS}
                )
            await send(message)

        app = self._preflight(headers) if scope["method"] == "OPTIONS" else self._app
        await app(scope, receive, shown)

    def _preflight(self, headers: Headers) -> Response:
        requested = headers.get("access-control-request-headers", "Authorization, Content-Type")
        return Response(
            status_code=204,
            headers={
                "Access-Control-Allow-Methods": self._method,
                "Access-Control-Allow-Headers": requested,
                "Access-Control-Max-Age": "600",
            },
        )


def _allow_origin(origin: str) -> dict[str, str]:
    return {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
