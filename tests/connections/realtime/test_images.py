"""Images of items that wait: how many may, which go together, and where they stand in the message that they become."""

from __future__ import annotations

import msgspec
import pytest

from connections.realtime.asking import Asking
from connections.realtime.client_events import NewItem, Part, ResponseCreate
from connections.realtime.items import Items
from connections.realtime.problems import Invalid
from connections.wire.frames import Send
from tests.connections.realtime.session import LIMITS
from tests.pictures import JPEG, PNG

SAID = Send(client_msg_id="said", content="And this?", conversation_id="c")


def asking(most: int = 2) -> Asking:
    limits = msgspec.structs.replace(LIMITS, max_images=most)
    return Asking(Items(), conversation_id="c", model="m", limits=limits)


def show(session: Asking, *parts: str) -> None:
    """An item of texts and images."""
    content = [Part("input_image", image_url=one) if ":" in one else Part(text=one) for one in parts]
    session.put(session.made(NewItem(role="user", content=content)), behind=None)


def asked(session: Asking) -> Send:
    (send,) = session.ask(ResponseCreate())
    assert isinstance(send, Send)
    return send


def test_an_image_stands_behind_the_text_before_it() -> None:
    session = asking()
    show(session, "One?", PNG.url)
    show(session, "Two?", JPEG.url)
    send = asked(session)
    assert (send.content, send.attachments) == ("One?\n\nTwo?", (PNG.image.digest, JPEG.image.digest))
    assert session.shown_in(send.client_msg_id) == ((4, ""), (10, ""))


def test_an_image_that_waits_goes_with_what_is_said_behind_it() -> None:
    session = asking()
    show(session, PNG.url)
    send = session.say(SAID, "item")
    assert (send.content, send.attachments) == ("And this?", (PNG.image.digest,))
    assert session.shown_in("said") == ((0, ""),)
    assert session.shown_in("another") == ()


def test_so_many_images_wait_and_no_more() -> None:
    session = asking()
    show(session, PNG.url, JPEG.url)
    with pytest.raises(Invalid, match="show 3 images; 2 are allowed") as refused:
        show(session, PNG.url)
    assert refused.value.code == "too_many_images"


def test_images_are_counted_before_they_are_looked_at() -> None:
    """An event may hold thousands of small ones."""
    with pytest.raises(Invalid, match="shows 3 images; 2 are allowed") as refused:
        show(asking(), *["data:no image"] * 3)
    assert refused.value.code == "too_many_images"


def test_of_images_that_wait_again_as_many_go_as_a_message_may_show() -> None:
    session = asking()
    show(session, PNG.url, JPEG.url)
    first = asked(session)
    show(session, PNG.url)
    session.give_back(first.client_msg_id)
    assert asked(session).attachments == first.attachments
