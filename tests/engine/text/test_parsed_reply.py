"""A reply's tokens become whole characters of text and of reasoning, and calls; what was written is kept to the letter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import ChosenToken
from engine.text.formats import ReplyFormat
from engine.text.parser import ParsedReply
from engine.text.reply_text import Piece, ReplyLogprobs, ScoredToken, Thought
from tests.engine.text.letters import Cut, Letters, spell_letter
from tests.engine.text.parse import HERMES_THINKS, MISTRAL, THINKS, add, in_json, merged, parser_of
from tests.engine.text.test_parser import hermes, replies

ADD = add()
CALL = hermes(ADD)


def reply_of(format_: ReplyFormat, stops: Sequence[str] = (), *, one_call: bool = False) -> ParsedReply:
    return ParsedReply(Letters(), parser_of(format_), stops, one_call=one_call)


def feed_letters(reply: ParsedReply, text: str) -> list[tuple[Piece, ...]]:
    """What each letter gives, and the reply's end."""
    steps = []
    for letter in text:
        step = reply.push(ord(letter))
        steps.append(step.pieces)
        if step.stopped:
            break
    return [*steps, reply.flush()]


def pieces(reply: ParsedReply, text: str) -> list[Piece]:
    """All pieces, none of them empty, with neighbors of one kind as one."""
    made = [piece for step in feed_letters(reply, text) for piece in step]
    assert all(piece if isinstance(piece, str) else piece[0] for piece in made)
    return merged(made)


WAVE = "\N{WAVING HAND SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (f"a {CALL}", [("a",), (ADD,)]),
        (f"<think>{WAVE}a</think>👍b👍", [(Thought(f"{WAVE}a"),), ("👍b",), ("👍",)]),
        (f"👍{CALL}", [("👍", ADD)]),
        ("<think>👍</think>", [(Thought("👍"),)]),
    ],
)
def test_pieces_come_in_whole_characters_and_calls_with_their_last_letter(
    text: str, made: list[tuple[Piece, ...]]
) -> None:
    steps = feed_letters(reply_of(HERMES_THINKS), text)
    assert [step for step in steps if step] == made
    assert ADD not in made[-1] or steps[-2] == made[-1]


def test_a_stop_string_ends_the_text_and_is_looked_for_nowhere_else() -> None:
    ends = add('{"a": "END"}')
    text = f"<think>one END</think>two {hermes(ends)} three END four"
    reply = reply_of(HERMES_THINKS, ["END"])
    assert pieces(reply, text) == [Thought("one END"), "two", ends, "three "]


def test_a_stop_string_does_not_reach_over_a_call() -> None:
    text = f"a EN{CALL}D b"
    assert pieces(reply_of(HERMES_THINKS, ["END"]), text) == ["a EN", ADD, "D b"]


def test_a_reply_that_ends_within_a_call_has_it_as_text_and_a_cancelled_one_has_not() -> None:
    reply = reply_of(HERMES_THINKS)
    for letter in f"<think>Hm</think>a {CALL}"[:-20]:
        reply.push(ord(letter))
    assert reply.flush() == (f" {CALL}"[:-20],)


def test_a_cut_character_at_the_end_is_told_where_it_stands() -> None:
    reply = ParsedReply(Cut(), parser_of(THINKS))
    assert [piece for step in feed_letters(reply, "<think>a") for piece in step] == [
        Thought("a"),
        Thought("\ufffd"),
    ]


def test_where_one_call_is_allowed_it_ends_the_reply() -> None:
    reply = reply_of(HERMES_THINKS, one_call=True)
    assert pieces(reply, f"a {CALL}\n{CALL} b") == ["a", ADD]
    reply = reply_of(MISTRAL, one_call=True)
    assert pieces(reply, f"[TOOL_CALLS][{in_json(ADD)}, {in_json(ADD)}]") == [ADD]


def scored(text: str, stops: Sequence[str] = ()) -> list[tuple[Piece, tuple[ChosenToken, ...]]]:
    """Each piece of a reply, with what is told of its tokens as it leaves."""
    logprobs = ReplyLogprobs(spell_letter)
    reply, left = ParsedReply(Letters(), parser_of(HERMES_THINKS), stops, logprobs), []
    for place, letter in enumerate(text):
        logprobs.score(ScoredToken(ord(letter), -float(place), []))
        step = reply.push(ord(letter))
        left += [(one, logprobs.leave(one) if isinstance(one, str) else ()) for one in step.pieces]
        if step.stopped:
            return left
    return left + [(one, logprobs.leave(one) if isinstance(one, str) else ()) for one in reply.flush()]


@given(replies, st.lists(st.text(st.sampled_from("ab<{"), min_size=1, max_size=2), max_size=1))
def test_the_tokens_told_are_those_of_the_text_and_count_its_characters(text: str, stops: list[str]) -> None:
    shown = named = ""
    places = []
    for piece, tokens in scored(text, stops):
        if isinstance(piece, str):
            shown += piece
            named += "".join(one.chosen.token for one in tokens)
            places += [-int(one.chosen.logprob) for one in tokens]
            assert named == shown
            assert [one.end for one in tokens] == list(range(len(shown) - len(piece) + 1, len(shown) + 1))
    assert all(text[place] == letter for place, letter in zip(places, shown, strict=True))
    assert places == sorted(places)


@pytest.mark.parametrize("word", ["b <", "> c"])
def test_a_token_that_reaches_into_a_delimiter_is_not_told(word: str) -> None:
    class Words(Letters):
        """One token is a word."""

        def push(self, token_id: int) -> str:
            return word if token_id == 0 else chr(token_id)

    logprobs = ReplyLogprobs(spell_letter)
    reply = ParsedReply(Words(), parser_of(HERMES_THINKS), (), logprobs)
    text, reported = f"a b {CALL} c d", []
    for token_id in tokens_of(text, word):
        logprobs.score(ScoredToken(token_id, -1.0, []))
        reported += [
            one
            for piece in reply.push(token_id).pieces
            if isinstance(piece, str)
            for one in logprobs.leave(piece)
        ]
    reported += [one for piece in reply.flush() if isinstance(piece, str) for one in logprobs.leave(piece)]
    assert word not in [one.chosen.token for one in reported]
    assert reported[-1].end == len("a b") + len("c d")


def tokens_of(text: str, word: str) -> list[int]:
    before, behind = text.split(word, 1)
    return [*map(ord, before), 0, *map(ord, behind)]
