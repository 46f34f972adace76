"""Shows on the terminal how the service starts: the loading's progress, then the address."""

from __future__ import annotations

import asyncio
import sys
from typing import TextIO

from engine.api import Engine, EngineState, EngineStatus
from engine.messages import ModelFacts

_WIDTH = 24
_LOOK_S = 0.1


class StartDisplay:
    """Shows one growing line on a terminal, else one line a stage."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._shown = ""

    async def follow(self, engine: Engine) -> None:
        """Show the progress until the engine is ready or has failed."""
        while (status := engine.status).state in (EngineState.LOADING, EngineState.RESTARTING):
            self._show(status)
            await asyncio.sleep(_LOOK_S)
        if self._shown and self._stream.isatty():
            self._stream.write("\r\033[K")

    def address(self, url: str, facts: ModelFacts) -> None:
        """Print the page's address, and where the model runs."""
        model = f"{facts.parameters / 1e6:,.1f}M parameters, {facts.dtype} on {facts.device}"
        if not facts.parameters:  # an upstream does not report them
            model = f"{facts.model} of {facts.device}"
        print(f"Midstream is ready: {url}   ({model}; Ctrl-C stops)", flush=True)  # noqa: T201 - the command's output

    def _show(self, status: EngineStatus) -> None:
        stage = status.stage or "starting the engine"
        if self._stream.isatty():
            filled = round(status.progress * _WIDTH)
            bar = "█" * filled + "░" * (_WIDTH - filled)
            self._stream.write(f"\r\033[K{bar} {status.progress:4.0%}  {stage}")
        elif stage != self._shown:
            self._stream.write(f"{stage} ({status.progress:.0%})\n")
        self._shown = stage
        self._stream.flush()
