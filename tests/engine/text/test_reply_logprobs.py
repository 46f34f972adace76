"""Log-probabilities are told with the text of their tokens: all of it, none before, and none without."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import ChosenToken
from engine.text.detokenizer import Detokenizer, Spelled, Vocabulary, detokenizer_of
from engine.text.reply_text import ReplyLogprobs, ReplyText, ScoredToken
from tests.engine.text.test_detokenizer import SPECIALS, bare, byte_level, gemma, llama, metaspace, wordpiece

KINDS = pytest.mark.parametrize("kind", [byte_level, llama, gemma, metaspace, wordpiece, bare])


class Letters:
    """A detokenizer whose tokens are code points."""

    holds = False

    def push(self, token_id: int) -> str:
        return chr(token_id)

    def flush(self) -> str:
        return ""

    def spell(self, token_id: int) -> Spelled:
        return Spelled(chr(token_id), chr(token_id).encode())


def texts_with_logprobs(
    detokenizer: Detokenizer, token_ids: Sequence[int], stops: Sequence[str] = ()
) -> list[tuple[str, tuple[ChosenToken, ...]]]:
    """Each text that leaves, the last one at the reply's end, with what is told of its tokens."""
    logprobs = ReplyLogprobs(detokenizer.spell)
    reply, parts = ReplyText(detokenizer, stops, logprobs), []
    for place, token_id in enumerate(token_ids):
        logprobs.score(ScoredToken(token_id, -float(place), [(token_id, -0.5)]))
        step = reply.push(token_id)
        parts.append("".join(map(str, step.pieces)))
        if step.stopped:
            break
    parts.append("".join(map(str, reply.flush())))
    return [(text, logprobs.leave(text)) for text in parts]


def tokens_of(parts: list[tuple[str, tuple[ChosenToken, ...]]]) -> list[str]:
    return [one.chosen.token for _, tokens in parts for one in tokens]


def bytes_of(parts: list[tuple[str, tuple[ChosenToken, ...]]]) -> bytes:
    return b"".join(one.chosen.raw or b"" for _, tokens in parts for one in tokens)


def text_of(parts: list[tuple[str, tuple[ChosenToken, ...]]]) -> str:
    return "".join(text for text, _ in parts)


@given(st.lists(st.integers(0, 410)))
def test_byte_level_tokens_in_any_order_are_told_with_the_bytes_of_the_text(token_ids: list[int]) -> None:
    parts = texts_with_logprobs(detokenizer_of(Vocabulary(byte_level())), token_ids)
    assert bytes_of(parts).decode(errors="replace") == text_of(parts)


@KINDS
@given(text=st.text(st.sampled_from("aHi b.c中é👩‍🇩🇪"), max_size=12))
def test_joined_the_bytes_are_the_text_whatever_the_tokenizer(kind: object, text: str) -> None:
    assert callable(kind)
    tokenizer = kind()
    parts = texts_with_logprobs(
        detokenizer_of(Vocabulary(tokenizer)), tokenizer.encode(text, add_special_tokens=False)
    )
    assert bytes_of(parts).decode() == text_of(parts)


@given(
    text=st.text(st.sampled_from("abEND👍🏽 🇩🇪中"), max_size=12),
    stops=st.lists(st.text(st.sampled_from("abEND"), min_size=1, max_size=3), max_size=2),
)
def test_at_any_moment_the_tokens_told_are_those_whose_text_left(text: str, stops: list[str]) -> None:
    shown, named = "", ""
    for part, tokens in texts_with_logprobs(Letters(), [ord(letter) for letter in text], stops):
        shown += part
        named += "".join(one.chosen.token for one in tokens)
        assert named == shown
        assert all(one.end <= len(shown) for one in tokens)


@given(st.lists(st.integers(0, 410)))
def test_each_token_is_told_once_in_order_and_not_before_its_text(token_ids: list[int]) -> None:
    left, seen = 0, []
    for text, tokens in texts_with_logprobs(detokenizer_of(Vocabulary(byte_level())), token_ids):
        left += len(text)
        assert all(one.end <= left for one in tokens)
        seen += [-one.chosen.logprob for one in tokens]
    assert seen == sorted(set(seen))


def test_a_character_of_several_tokens_is_told_as_all_of_them() -> None:
    """Each has its bytes; they leave together, with the character."""
    tokenizer = llama()
    pieces = ["a", "<0xE4>", "<0xB8>", "<0xAD>", "b"]
    parts = texts_with_logprobs(
        detokenizer_of(Vocabulary(tokenizer)), tokenizer.convert_tokens_to_ids(pieces)
    )
    assert [len(tokens) for _, tokens in parts] == [1, 0, 0, 3, 1, 0]
    assert tokens_of(parts) == ["a", "\\xe4", "\\xb8", "\\xad", "b"]
    assert bytes_of(parts) == "a中b".encode()


def test_a_beginning_of_a_character_is_told_with_what_stands_for_it() -> None:
    tokenizer = llama()
    parts = texts_with_logprobs(
        detokenizer_of(Vocabulary(tokenizer)), tokenizer.convert_tokens_to_ids(["a", "<0xE4>"])
    )
    assert [text for text, _ in parts] == ["a", "", "\ufffd"]
    assert bytes_of(parts) == b"a\xe4"


def test_a_token_that_a_stop_string_cuts_is_not_told() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("Hello there", add_special_tokens=False)
    whole = texts_with_logprobs(detokenizer_of(Vocabulary(tokenizer)), ids)
    assert len(tokens_of(whole)[0]) > 1
    cut = texts_with_logprobs(detokenizer_of(Vocabulary(tokenizer)), ids, [tokens_of(whole)[0][1:]])
    assert text_of(cut) == "H"
    assert tokens_of(cut) == []


def test_a_special_token_is_told_by_its_name_and_has_no_bytes() -> None:
    tokenizer = byte_level()
    ids = [tokenizer.convert_tokens_to_ids("<s>"), *tokenizer.encode("there", add_special_tokens=False)]
    (first, *_) = [
        one for _, tokens in texts_with_logprobs(detokenizer_of(Vocabulary(tokenizer)), ids) for one in tokens
    ]
    assert (first.chosen.token, first.chosen.raw, first.end) == ("<s>", None, 0)


def test_alone_a_token_reads_as_in_the_middle_of_a_text() -> None:
    """The alternatives of a token stand in its place, where nothing strips their spaces."""
    for kind in (llama, gemma):
        tokenizer = kind()
        spell = Vocabulary(tokenizer).spell
        assert [spell(id_) for id_ in tokenizer.convert_tokens_to_ids(["▁Hi", "▁", "<0xC3>"])] == [
            Spelled(" Hi", b" Hi"),
            Spelled(" ", b" "),
            Spelled("\\xc3", b"\xc3"),
        ]
        assert all(spell(tokenizer.convert_tokens_to_ids(name)).raw is None for name in SPECIALS)


def test_an_id_that_the_tokenizer_does_not_know_has_no_name() -> None:
    assert Vocabulary(byte_level()).spell(10**6) == Spelled("", None)
