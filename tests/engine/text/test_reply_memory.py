"""How the model spelled its replies is remembered by salt and text, within bounds."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.reply_text import ReplyCache, ReplyText, WrittenReply
from tests.engine.text.test_reply_text import Cut, Letters


def written(text: str, first: int = 0) -> WrittenReply:
    size = len(text)
    return WrittenReply(text, array("i", range(first, first + size)), array("i", range(1, size + 1)))


def recalled(memory: ReplyCache, salt: str, text: str) -> WrittenReply | None:
    own = memory.of(salt)
    return own.recall(text) if own else None


def test_a_reply_is_found_by_its_text_and_by_a_beginning_of_it() -> None:
    memory, reply = ReplyCache(), written("Once upon a time")
    memory.keep("mine", reply)
    assert recalled(memory, "mine", "Once upon a time") is reply
    assert recalled(memory, "mine", "Once") is reply
    assert recalled(memory, "mine", "Once upon a time there") is None
    assert recalled(memory, "mine", "") is None


def test_nobody_else_finds_it() -> None:
    memory = ReplyCache()
    memory.keep("mine", written("hello"))
    memory.keep("yours", written("bye"))
    assert recalled(memory, "yours", "hello") is None
    assert recalled(memory, "theirs", "hello") is None


def test_the_whole_text_goes_before_longer_ones_and_the_last_spelling_counts() -> None:
    memory, short, again = ReplyCache(), written("one"), written("one", first=7)
    for reply in (written("one two"), short, again):
        memory.keep("", reply)
    assert recalled(memory, "", "one") is again
    assert len(memory) == 2


def test_what_was_not_used_for_longest_goes_first() -> None:
    memory = ReplyCache(most_replies=2)
    memory.keep("", written("a"))
    memory.keep("", written("b"))
    assert recalled(memory, "", "a")
    memory.keep("", written("c"))
    assert [bool(recalled(memory, "", text)) for text in "abc"] == [True, False, True]


def test_only_the_reply_that_is_meant_is_forgotten() -> None:
    memory, old, new = ReplyCache(), written("a"), written("a", first=1)
    memory.keep("", old)
    memory.keep("", new)
    own = memory.of("")
    assert own is not None
    own.forget(old)
    assert own.recall("a") is new
    own.forget(new)
    assert memory.of("") is None


@given(st.lists(st.tuples(st.sampled_from("xy"), st.text("ab", min_size=1, max_size=6))))
def test_the_bounds_hold_and_what_is_counted_is_what_is_there(replies: list[tuple[str, str]]) -> None:
    memory = ReplyCache(most_replies=5, most_tokens=12)
    for salt, text in replies:
        memory.keep(salt, written(text))
        assert recalled(memory, salt, text)
    there = {
        (salt, text) for salt, text in replies if (it := recalled(memory, salt, text)) and it.text == text
    }
    assert len(there) == len(memory) <= 5
    assert sum(len(text) for _, text in there) == memory.tokens <= 12


def noted(text: str, *, stop: str = "", ending: Letters | None = None) -> ReplyCache:
    memory = ReplyCache()
    reply = ReplyText(ending or Letters(), [stop] if stop else [], memory.notes(""))
    for character in text:
        if reply.push(ord(character)).stopped:
            break
    reply.flush()
    return memory


@given(st.text(min_size=1))
def test_a_reply_that_ends_is_noted_with_the_tokens_behind_each_character(text: str) -> None:
    reply = recalled(noted(text), "", text)
    assert reply is not None
    assert reply.token_ids.tolist() == [ord(character) for character in text]
    assert reply.ends.tolist() == list(range(1, len(text) + 1))


def test_a_stop_string_is_noted_and_the_reply_found_without_it() -> None:
    reply = recalled(noted("hello END", stop="END"), "", "hello ")
    assert reply is not None
    assert reply.text == "hello END"


def test_text_that_belongs_to_no_token_ends_the_text_but_no_token() -> None:
    reply = recalled(noted("ab", ending=Cut()), "", "ab\ufffd")
    assert reply is not None
    assert reply.ends.tolist() == [1, 2]


@pytest.mark.parametrize("text", ["", "\0"])
def test_no_text_is_not_remembered(text: str) -> None:
    assert len(noted(text, ending=Silent())) == 0


class Silent(Letters):
    """Decodes to nothing."""

    def push(self, token_id: int) -> str:
        return ""
