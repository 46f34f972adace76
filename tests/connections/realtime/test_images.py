"""Images of items that wait: how many may, which go together, and where they stand in the message that they become."""

from __future__ import annotations

import msgspec
import pytest

from connections.api.realtime.events import InvalidEvent, NewItem, Part, ResponseCreate
from connections.api.realtime.session import RealtimeSession
from connections.protocol.frames import Send
from tests.connections.realtime.client_mirror import LIMITS
from tests.sample_images import JPEG, PNG

SPOKEN = Send(client_msg_id="said", content="And this?", conversation_id="c")


def new_session(most: int = 2) -> RealtimeSession:
    limits = msgspec.structs.replace(LIMITS, max_images=most)
    return RealtimeSession(conversation_id="c", model="m", limits=limits)


def show(session: RealtimeSession, *parts: str) -> None:
    """An item of texts and images."""
    content = [Part("input_image", image_url=one) if ":" in one else Part(text=one) for one in parts]
    session.insert(session.new_item(NewItem(role="user", content=content)), after=None)


def response_request(session: RealtimeSession) -> Send:
    (send,) = session.ask(ResponseCreate())
    assert isinstance(send, Send)
    return send


def test_an_image_that_waits_goes_with_what_is_said_behind_it() -> None:
    session = new_session()
    show(session, PNG.url)
    send = session.speech_message(SPOKEN, "item")
    assert (send.content, send.attachments) == ("And this?", (PNG.image.digest,))
    assert session.image_positions("said") == ((0, ""),)
    assert session.image_positions("another") == ()


def test_so_many_images_wait_and_no_more() -> None:
    session = new_session()
    show(session, PNG.url, JPEG.url)
    with pytest.raises(InvalidEvent, match="have 3 images; at most 2 are allowed") as refused:
        show(session, PNG.url)
    assert refused.value.code == "too_many_images"


def test_images_are_counted_before_they_are_looked_at() -> None:
    """An event may hold thousands of small ones."""
    with pytest.raises(InvalidEvent, match="has 3 images; at most 2 are allowed") as refused:
        show(new_session(), *["data:no image"] * 3)
    assert refused.value.code == "too_many_images"


def test_of_images_that_wait_again_as_many_go_as_a_message_may_show() -> None:
    session = new_session()
    show(session, PNG.url, JPEG.url)
    first = response_request(session)
    show(session, PNG.url)
    session.requeue(first.client_msg_id)
    assert response_request(session).attachments == first.attachments
