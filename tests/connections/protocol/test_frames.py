"""One table of frames: what is not in it does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from connections.protocol import audio, frames
from connections.protocol.base import ClientFrame, ServerFrame
from connections.protocol.frames import CLIENT_FRAMES, SERVER_FRAMES
from sessions.events import Event
from sessions.limits.rates import FrameCost

PROTOCOL = (Path(__file__).parents[3] / "PROTOCOL.md").read_text()


def leaves(root: type[msgspec.Struct]) -> Iterator[type[Any]]:
    """The types under a root that are no root of others."""
    for one in root.__subclasses__():
        if one.__subclasses__():
            yield from leaves(one)
        elif one.__module__ in {frames.__name__, audio.__name__} or "sessions" in one.__module__.split("."):
            yield one


def test_every_frame_of_a_client_has_a_row() -> None:
    assert set(CLIENT_FRAMES) == set(get_args(frames.Request)) == set(leaves(ClientFrame))


def test_every_frame_of_the_server_has_a_row() -> None:
    assert set(SERVER_FRAMES) == {*leaves(ServerFrame), *leaves(Event)}


def test_what_answers_a_frame_is_sent_by_the_server() -> None:
    assert {one for kind in CLIENT_FRAMES.values() for one in kind.answers} <= set(SERVER_FRAMES)


def test_what_asks_the_store_counts_for_something() -> None:
    """What is left is answered from memory, or must be heard in any case."""
    free = {one.__name__ for one, kind in CLIENT_FRAMES.items() if kind.counts is FrameCost.NOTHING}
    spoken = {"AudioCommit", "AudioClear", "AudioStop", "Played"}  # bounded as sound is, by the line's budget
    assert free == {"Hello", "Cancel", "Ack", "Ping", *spoken}


def test_the_protocol_names_every_frame() -> None:
    tags = [one.__struct_config__.tag for one in (*CLIENT_FRAMES, *SERVER_FRAMES)]
    assert [tag for tag in tags if f"`{tag}`" not in PROTOCOL] == []
