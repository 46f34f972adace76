"""What a title is made of, what is taken for one of what a model wrote, and that a person's stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from sessions.records import Owner
from sessions.store.codec import Keys
from sessions.store.index import Index
from sessions.titles import MAX_CHARS, READ_CHARS, first_title, parse_title


@pytest.mark.parametrize(
    ("written", "title"),
    [
        ("Oaks in autumn", "Oaks in autumn"),
        ('"Oaks in autumn."', "Oaks in autumn"),
        ("**Title: Oaks in autumn**\nIt is about oaks.", "Oaks in autumn"),
        ("\n\n# Oaks\n", "Oaks"),
        ("Title: “Eichen im Herbst”", "Eichen im Herbst"),
        ("《秋天的橡树》。", "《秋天的橡树》"),
        ("What is C++?", "What is C++?"),
        ("", ""),
        ("***", ""),
        ("Title:", ""),
    ],
)
def test_a_title_is_the_first_line_without_decoration(written: str, title: str) -> None:
    assert parse_title(written) == title


@given(st.text())
def test_whatever_a_model_writes_a_title_is_one_short_line(written: str) -> None:
    title = parse_title(written)
    assert len(title) <= MAX_CHARS
    assert title == " ".join(title.split())
    assert parse_title(title) in {title, ""} or len(parse_title(title)) < len(title)


def test_the_first_title_is_the_beginning_of_the_message() -> None:
    assert first_title("  About\n trees. ") == "About trees."
    assert first_title("x" * 100) == "x" * 80
    assert first_title(" \n" * 5_000) == ""
    assert first_title(" \n" * 5_000 + "trees") == "trees"


def test_no_more_than_the_beginning_is_read_for_the_first_title() -> None:
    assert first_title("About" + " " * READ_CHARS + "trees.") == "About"


def test_what_came_with_a_message_is_its_title_only_where_nothing_was_said() -> None:
    attached = "[notes.txt]\n~~~~\none\n~~~~"
    assert first_title(attached) == "notes.txt"
    assert first_title(f"Read this.\n\n{attached}") == "Read this."


ALICE = Owner("anonymous", "alice")


async def test_a_title_that_a_person_gave_stays(store: Redis) -> None:
    index = Index(store, ttl_s=60)
    facts = {"epoch": "e", "title": "How do oaks grow?", "updated_at": "1", "messages": "2"}
    await store.hset(Keys.of(ALICE, "room").conversation, mapping=facts)  # type: ignore[misc]
    assert await index.set_title(ALICE, "room", "Oaks", instead_of="How do oaks grow?")
    await index.rename(ALICE, "room", "My trees")
    assert not await index.set_title(ALICE, "room", "Ashes", instead_of="How do oaks grow?")
    assert not await index.set_title(ALICE, "nowhere", "Ashes", instead_of="")
    assert (await index.rename(ALICE, "room", "My trees")).title == "My trees"
