"""Runs a benchmark: checks the server, runs the plan, makes the report."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from midstream.address import socket_url
from midstream.bench.load_generator import LoadGenerator
from midstream.bench.plan import Plan
from midstream.bench.progress_line import show_progress
from midstream.bench.report import curves_of, facts
from midstream.bench.simulated_user import ALONE, CONNECT_S
from midstream.client import connect
from midstream.errors import ClientError, Refused
from midstream.terminal.error_messages import error_message

Facts = dict[str, Any]


class BenchError(Exception):
    """The server can't be measured. The message is for the user."""


async def bench(url: str, key: str | None, plan: Plan) -> tuple[Facts, dict[str, list[tuple[float, float]]]]:
    """Return a report and its curves. Ctrl-C ends the run early; a second one ends the program. Raises BenchError."""
    ready = await _check_server(url, key, plan)
    load = LoadGenerator(url, key, plan)
    progress = asyncio.create_task(show_progress(load.results, duration_s=plan.duration_s))
    with _interrupted(load.stop):
        try:
            await load.run()
        finally:
            progress.cancel()
            await asyncio.wait((progress,))
    return facts(load.results, plan, ready, socket_url(url)), curves_of(load.results)


async def _check_server(url: str, key: str | None, plan: Plan) -> Facts:
    """Return the server's `ready` frame. Raises BenchError."""
    try:
        async with connect(url, token=key, reconnecting=ALONE, open_timeout=CONNECT_S) as client:
            ready: Facts = client.ready
    except Refused as refused:
        hint = " Give a key: --key, or the variable CHAT_KEY." if key is None else ""
        raise BenchError(f"{url} refuses this client: {refused}.{hint}") from refused
    except (ClientError, OSError) as error:
        raise BenchError(error_message(socket_url(url), error)) from error
    names = {name for model in ready["models"] for name in (model["name"], *model.get("aliases", ()))}
    if plan.model is not None and plan.model not in names:
        raise BenchError(f"{url} serves no model {plan.model!r}: {', '.join(sorted(names))}.")
    return ready


@contextmanager
def _interrupted(stop: Callable[[], None]) -> Iterator[None]:
    """Inside the block the first Ctrl-C calls `stop`; the next one has its usual effect."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        print("stopping; a second Ctrl-C leaves without a report", file=sys.stderr)
        stop()

    with suppress(NotImplementedError):  # Windows has no such handlers: Ctrl-C ends the program there
        loop.add_signal_handler(signal.SIGINT, first)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)
