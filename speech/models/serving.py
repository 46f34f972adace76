"""The start of a model's process: it loads the model, or tells the gateway why not; then it works."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from speech.errors import ModelLoadError
from speech.models.families import Options
from speech.process.channel import Channel
from speech.process.messages import Refused
from speech.process.worker import Worker

M = TypeVar("M")


def serve(kinds: Any, load: Callable[[Options], M], work: Callable[[Channel, M], Worker[Any]]) -> None:
    """Serve with the arguments DESCRIPTOR and OPTIONS until the gateway has ended. `kinds`: of its requests."""
    descriptor, options = sys.argv[1:]
    line = Channel(int(descriptor), kinds)
    try:
        model = load(msgspec.json.decode(options, type=Options))
    except ModelLoadError as error:
        line.send(Refused(str(error)))
        sys.exit(1)
    work(line, model).run()
