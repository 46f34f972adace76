"""The documentation at `/docs`: the site that `make docs` built, from local files alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

PATH = "/docs"
NOT_BUILT = (
    "This installation has no documentation. In a checkout `make docs` builds it; its sources are in docs/."
)


def documentation(folder: Path, nothing: Callable[[Scope, str], Response]) -> list[BaseRoute]:
    """Return the routes of the site in a folder. `nothing` answers if none was built before the start."""

    async def redirect(_: Request) -> Response:
        return RedirectResponse(f"{PATH.removeprefix('/')}/", headers={"Cache-Control": "no-cache"})

    async def none(request: Request) -> Response:
        return nothing(request.scope, NOT_BUILT)

    if not (folder / "index.html").is_file():
        return [Route(PATH, none), Route(f"{PATH}/{{path:path}}", none)]
    return [Route(PATH, redirect), Mount(PATH, StaticFiles(directory=folder, html=True))]
