"""`python -m tests.serve_with '{"max_speech": 64}'`: `midstream serve` with other values than those in `Fixed`.

Its settings come from the environment, as the product's do.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec
import uvloop

from app import logs, memory
from app.models import with_models
from app.service import serve
from app.settings import Settings


def command(**values: Any) -> tuple[str, ...]:
    """Return the module and the argument that start it."""
    return "tests.serve_with", msgspec.json.encode(values).decode()


if __name__ == "__main__":
    settings = msgspec.structs.replace(Settings.read(os.environ), **msgspec.json.decode(sys.argv[1]))
    logs.set_up(style=settings.log_format, level=settings.log_level)
    memory.set_up()
    uvloop.run(serve(with_models(settings)))
