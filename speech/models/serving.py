"""How a model's process begins: the model is loaded, or the gateway told why not; then it works."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from speech.errors import ModelUnusable
from speech.models.families import Options
from speech.process.line import Line
from speech.process.messages import Refused
from speech.process.work import Work

M = TypeVar("M")


def serve(kinds: Any, load: Callable[[Options], M], work: Callable[[Line, M], Work[Any]]) -> None:
    """Serve by the process's arguments, DESCRIPTOR and OPTIONS, until the gateway is gone. `kinds`: what may be asked."""
    descriptor, told = sys.argv[1:]
    line = Line(int(descriptor), kinds)
    try:
        model = load(msgspec.json.decode(told, type=Options))
    except ModelUnusable as error:
        line.send(Refused(str(error)))
        sys.exit(1)
    work(line, model).run()
