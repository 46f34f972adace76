"""Filters one behind the other: what they refuse, where they end a reply, and what the rest cost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import accumulate, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import ChosenToken, TokenLogprob
from sessions.errors import Filtered
from sessions.filters.chain import (
    NO_FILTERS,
    SLICE_CHARS,
    Filter,
    FilterContractError,
    FilteredReply,
    Filters,
    Passed,
    ReleasedText,
)
from sessions.filters.list_filter import FilterLists, list_filters


def listed(*, incoming: Sequence[str] = (), outgoing: Sequence[str] = ()) -> list[Filter]:
    patterns = (r"\d{4}-\d{4}",) if incoming else ()
    return list_filters(
        incoming=FilterLists(tuple(incoming), patterns), outgoing=FilterLists(tuple(outgoing))
    )


class Rewriting(Filter):
    """What no filter may be."""

    def reply(self) -> Rewriting:
        return self

    def feed(self, text: str) -> Passed:
        return Passed(text.upper())

    def finish(self) -> Passed:
        return Passed("")


async def test_a_message_with_a_listed_word_or_pattern_is_refused() -> None:
    filters = Filters([Filter(), *listed(incoming=["darn"])])
    await filters.check("All is well.", None, "")
    for texts in [("Darn!",), ("Well.", "oh darn"), ("My number is 1234-5678",)]:
        with pytest.raises(Filtered) as refused:
            await filters.check(*texts)
        assert refused.value.code == "filtered"
        assert not refused.value.retryable
        assert "arn" not in str(refused.value)


async def test_messages_replies_that_go_on_and_arguments_are_read_over_the_edges_of_slices() -> None:
    incoming = Filters(listed(incoming=["darn"]))
    await incoming.check("x " * SLICE_CHARS)
    with pytest.raises(Filtered):
        await incoming.check("x" * (SLICE_CHARS - 3) + " darn it")
    filters = Filters(listed(outgoing=["darn it"]))
    started = filters.reply()
    await started.begin("x" * (SLICE_CHARS - 2) + " darn")
    assert started.feed(" it.", 1).filtered
    assert not await filters.reply().forbids("x " * SLICE_CHARS)
    assert await filters.reply().forbids("x" * (SLICE_CHARS - 3) + " darn it")
    assert await filters.reply().forbids("darn it")


@pytest.mark.parametrize("reads", ["begin", "forbids"])
async def test_others_work_while_a_long_text_is_read(reads: str) -> None:
    reply = Filters(listed(outgoing=["darn"])).reply()
    reading = asyncio.ensure_future(getattr(reply, reads)("x" * SLICE_CHARS * 50))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 50


async def test_without_filters_everything_passes_as_it_is() -> None:
    """Lists of one direction say nothing to the other."""
    await NO_FILTERS.check("darn")
    await Filters(listed(outgoing=["darn"])).check("darn")
    assert NO_FILTERS.reply() is Filters(listed(incoming=["darn"])).reply() is None


def test_tokens_leave_with_the_first_character_that_they_made() -> None:
    filters = Filters(listed(outgoing=["darn"]))
    reply = filters.reply()
    assert reply.feed("oh da", 2) == ReleasedText("oh ", 2)
    assert reply.feed("r", 1) == ReleasedText("", 0)
    assert reply.feed("es d", 1) == ReleasedText("dares ", 2)
    assert reply.feed("a", 1) == ReleasedText("", 0)
    assert reply.finish() == ReleasedText("da", 1)
    reply = filters.reply()
    assert reply.feed("oh da", 2) == ReleasedText("oh ", 2)
    assert reply.feed("rn it", 1) == ReleasedText("", 0, filtered=True)  # it ends before the match
    reply = filters.reply()
    assert reply.feed("oh darn", 2) == ReleasedText("oh ", 2)
    assert reply.finish() == ReleasedText("", 0, filtered=True)  # its end may complete a match


@pytest.mark.parametrize("order", [1, -1])
def test_a_filter_reads_what_the_one_before_it_passed(order: int) -> None:
    """What one held back when the other ends the reply is decided at once."""
    filters = Filters([*listed(outgoing=["darn"]), *listed(outgoing=["oh my word"])][::order])
    assert filters.reply().feed("oh my darn it", 3) == ReleasedText("oh my ", 3, filtered=True)
    reply = filters.reply()
    assert reply.feed("oh my w", 1) == ReleasedText("", 0)
    assert reply.feed("ife", 1) == ReleasedText("oh my wife", 2)
    assert reply.finish() == ReleasedText("", 0)


@given(st.lists(st.tuples(st.sampled_from(["a ", "ca", "t", "s ", "猫", "do", "g"]), st.integers(0, 3))))
def test_text_and_tokens_of_a_reply_that_passes_are_all_there(chunks: list[tuple[str, int]]) -> None:
    reply = Filters([*listed(outgoing=["cats dogs a", "a"]), *listed(outgoing=["cat cat"])]).reply()
    parts = [reply.feed(text, tokens) for text, tokens in chunks]
    parts.append(reply.finish())
    if not any(part.filtered for part in parts):
        assert "".join(part.text for part in parts) == "".join(text for text, _ in chunks)
        assert sum(part.tokens for part in parts) == sum(tokens for _, tokens in chunks)
    assert all(part.text or not part.tokens for part in parts)


def word_tokens(text: str, before: int = 0) -> list[ChosenToken]:
    """Each word as a token that was certain."""
    words = re.findall(r"\s*\S+", text)
    ends = accumulate((len(word) for word in words), initial=before)
    tokens = (TokenLogprob(word, 0.0, word.encode()) for word in words)
    return [ChosenToken(token, (), end) for token, end in zip(tokens, islice(ends, 1, None), strict=True)]


def names(released: ReleasedText) -> list[str]:
    return [one.chosen.token for one in released.logprobs]


def test_text_that_is_held_back_holds_its_logprobs_back() -> None:
    reply = Filters(listed(outgoing=["darn it"])).reply()
    assert names(reply.feed("oh darn", 2, word_tokens("oh darn"))) == ["oh"]
    assert names(reply.feed(" i", 1, word_tokens(" i", 7))) == []
    assert names(reply.feed("s fine", 1)) == [" darn", " i"]


@given(st.lists(st.sampled_from(["a", " ca", "t", " s", "猫", " do", "g"])))
def test_tokens_are_told_with_the_last_of_their_text(pieces: list[str]) -> None:
    reply = Filters([*listed(outgoing=["cats dogs a", "a"]), *listed(outgoing=["cat cat"])]).reply()
    fed, shown, named = 0, "", ""
    for piece in [*pieces, None]:
        if piece is None:
            released = reply.finish()
        else:
            fed += len(piece)
            token = TokenLogprob(piece, 0.0, piece.encode())
            released = reply.feed(piece, 1, [ChosenToken(token, (), fed)])
        shown += released.text
        named += "".join(names(released))
        assert shown.startswith(named)
        if released.filtered:
            return
    assert named == shown == "".join(pieces)


def test_a_filter_that_rewrites_is_found_out() -> None:
    reply = FilteredReply([Rewriting()])
    with pytest.raises(FilterContractError):
        reply.feed("secret", 1)
