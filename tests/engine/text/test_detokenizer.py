"""Token by token, a reply reads as if it had been decoded at once, and nothing is shown, or cut, by halves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from engine.messages import ChosenToken
from engine.text.detokenizer import (
    MOST_HELD,
    Detokenizer,
    Spelled,
    Vocabulary,
    ceil_boundary,
    floor_boundary,
    whole_length,
)
from engine.text.reply_text import ReplyLogprobs, ReplyText, ScoredToken

TEXT = "Hello there, old friend. Grüße aus Köln! 中文字很好 and 👩‍👩‍👧 with 🇩🇪 " * 3
SPECIALS = ["<unk>", "<s>", "</s>"]


def finished(backend: Tokenizer) -> PreTrainedTokenizerFast:
    backend.add_special_tokens(SPECIALS)
    backend.add_tokens([AddedToken("<tool>", special=False), AddedToken(" wide é", special=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2, Llama 3 and Qwen are built so."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    return finished(backend)


def byte_fallback(*, strips: bool) -> PreTrainedTokenizerFast:
    """Llama 2 strips the reply's first space, Gemma does not."""
    pieces = [
        "▁",
        "▁▁",
        "a",
        "▁a",
        "b",
        "中",
        "▁Hi",
        "�",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "<0xZZ>",
    ]
    backend = Tokenizer(
        models.BPE(
            {piece: n for n, piece in enumerate(SPECIALS + pieces)}, [], byte_fallback=True, unk_token="<unk>"
        )
    )
    backend.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if strips else [])])
    return finished(backend)


@cache
def llama() -> PreTrainedTokenizerFast:
    return byte_fallback(strips=True)


@cache
def gemma() -> PreTrainedTokenizerFast:
    return byte_fallback(strips=False)


@cache
def metaspace() -> PreTrainedTokenizerFast:
    backend = Tokenizer(
        models.WordLevel({p: n for n, p in enumerate([*SPECIALS, "▁a", "▁", "b", "▁▁c"])}, "<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return finished(backend)


@cache
def wordpiece() -> PreTrainedTokenizerFast:
    backend = Tokenizer(
        models.WordPiece({p: n for n, p in enumerate([*SPECIALS, "a", "##b", ".", "c"])}, unk_token="<unk>")
    )
    backend.decoder = decoders.WordPiece()
    return finished(backend)


@cache
def bare() -> PreTrainedTokenizerFast:
    return finished(Tokenizer(models.WordLevel({p: n for n, p in enumerate([*SPECIALS, "a", "b"])}, "<unk>")))


def at_once(tokenizer: PreTrainedTokenizerFast, token_ids: Sequence[int]) -> str:
    return str(
        tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )


def one_by_one(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> list[str]:
    reply = Detokenizer(Vocabulary(tokenizer))
    return [*(reply.push(token_id) for token_id in token_ids), reply.flush()]


@given(st.lists(st.integers(0, 410)))
def test_byte_level_tokens_in_any_order_read_as_at_once(token_ids: list[int]) -> None:
    assert "".join(one_by_one(byte_level(), token_ids)) == at_once(byte_level(), token_ids)


@pytest.mark.parametrize("kind", [metaspace, wordpiece, bare])
@given(token_ids=st.lists(st.integers(0, 10)))
def test_tokens_without_bytes_read_as_at_once(kind: object, token_ids: list[int]) -> None:
    assert callable(kind)
    assert "".join(one_by_one(kind(), token_ids)) == at_once(kind(), token_ids)


@pytest.mark.parametrize("kind", [llama, gemma])
@given(
    pieces=st.lists(
        st.one_of(
            st.sampled_from([*SPECIALS, "▁", "▁▁", "▁a", "中", "�", "<0xZZ>", "<tool>"]), st.text(max_size=3)
        )
    )
)
def test_byte_fallback_reads_as_at_once(kind: object, pieces: list[str]) -> None:
    assert callable(kind)
    tokenizer = kind()
    known = tokenizer.get_vocab()
    token_ids = [
        token_id
        for piece in pieces
        for token_id in (
            [known[piece]] if piece in known else [known[f"<0x{byte:02X}>"] for byte in piece.encode()]
        )
    ]
    assert "".join(one_by_one(tokenizer, token_ids)) == at_once(tokenizer, token_ids)


@pytest.mark.parametrize("kind", [byte_level, llama, gemma, metaspace, wordpiece, bare])
@given(token_ids=st.lists(st.integers(0, 12)))
def test_special_tokens_that_are_shown_read_as_at_once(kind: object, token_ids: list[int]) -> None:
    assert callable(kind)
    tokenizer = kind()
    reply = Detokenizer(Vocabulary(tokenizer).showing(None))
    text = "".join([*(reply.push(token_id) for token_id in token_ids), reply.flush()])
    assert text == tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def test_only_those_special_tokens_are_shown_that_are_named() -> None:
    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer)
    ids = tokenizer.convert_tokens_to_ids(["<s>", "</s>", "<tool>"])
    shown = Detokenizer(vocabulary.showing(("</s>", "<tool>")))
    assert [shown.push(token_id) for token_id in ids] == ["", "</s>", "<tool>"]
    assert vocabulary.showing(None).spell(ids[1]) == Spelled("</s>", b"</s>")
    assert vocabulary.showing(()) is vocabulary
    assert one_by_one(tokenizer, ids) == ["", "", "<tool>", ""]


def fallback_ids(raw: bytes) -> list[int]:
    return [llama().get_vocab()[f"<0x{byte:02X}>"] for byte in raw]


def test_fallback_bytes_leave_as_soon_as_they_are_a_character() -> None:
    assert one_by_one(llama(), fallback_ids("中文".encode())) == ["", "", "中", "", "", "文", ""]


def test_a_valid_character_stands_beside_an_invalid_byte() -> None:
    assert "".join(one_by_one(llama(), fallback_ids("中".encode() + b"\xff\xe4A"))) == "中��A"


def test_chinese_flows_and_an_unfinished_sequence_ends_as_a_replacement() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("ж")
    assert one_by_one(tokenizer, ids) == ["", "ж", ""]
    assert one_by_one(tokenizer, ids[:1]) == ["", "�"]


def test_ids_beyond_the_vocabulary_are_left_out() -> None:
    for kind in (byte_level, llama, metaspace):
        assert "".join(one_by_one(kind(), [100_000])) == ""
    assert Vocabulary(byte_level()).spell(10**6) == Spelled("", None)


def test_a_tokenizer_without_a_fast_backend_is_read_too() -> None:
    tokenizer = ByT5Tokenizer()
    assert "".join(one_by_one(tokenizer, tokenizer.encode("plain text"))) == "plain text"


def test_an_added_token_outside_the_byte_alphabet_reads_as_it_is_written() -> None:
    tokenizer = byte_level()
    wide = tokenizer.convert_tokens_to_ids(" wide é")
    assert one_by_one(tokenizer, [wide]) == [at_once(tokenizer, [wide]), ""] == [" wide é", ""]


FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
FLAG = "\U0001f1e9\U0001f1ea"
KSHA = "\u0915\u094d\u0937"
JAMO = "\u1112\u1161\u11ab"
ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e007f"

tricky = st.text(
    st.one_of(
        st.sampled_from("a \r\n中é\u0301\u0600\uff76\uff9e" + FAMILY + FLAG + KSHA + JAMO + ENGLAND),
        st.characters(),
    )
)


def emitted_pieces(text: str) -> list[str]:
    """Feed one code point at a time and return the pieces that came out, the rest last."""
    pieces, waiting = [], ""
    for character in text:
        waiting += character
        cut = whole_length(waiting)
        pieces += [waiting[:cut]] if cut else []
        waiting = waiting[cut:]
    return [*pieces, waiting]


def test_text_flows_by_characters_and_an_unfinished_cluster_waits_for_the_next() -> None:
    assert emitted_pieces("ab中文") == ["a", "b", "中", "文", ""]
    assert [piece for piece in emitted_pieces(FLAG * 3) if piece] == [FLAG] * 3
    for cluster in (FAMILY, FLAG, JAMO, ENGLAND, "\U0001f44d\U0001f3fd", "☎\ufe0f"):
        assert emitted_pieces(f"x{cluster}") == ["x", cluster]
        assert emitted_pieces(f"x{cluster} ") == ["x", f"{cluster} ", ""]


def test_a_virama_waits_for_its_second_consonant() -> None:
    assert whole_length(f"x{KSHA[:2]}") == 1
    assert whole_length(f"x{KSHA}") == 4


def test_an_endless_cluster_is_let_go() -> None:
    endless = "\U0001f468" + "\u200d\U0001f468" * 40
    assert whole_length(endless[: MOST_HELD - 1]) == 0
    assert whole_length(endless[:MOST_HELD]) == MOST_HELD


@given(tricky)
def test_nothing_is_lost_or_reordered(text: str) -> None:
    assert "".join(emitted_pieces(text)) == text


@given(tricky, st.integers(0, 40))
def test_a_cut_is_the_last_cluster_boundary(text: str, offset: int) -> None:
    boundaries = [0, *(match.end() for match in regex.finditer(r"\X", text))]
    assert floor_boundary(text, offset) == max(b for b in boundaries if b <= offset)
    assert ceil_boundary(text, offset) == min((b for b in boundaries if b >= offset), default=len(text))


def test_no_cut_divides_one_of_many_flags() -> None:
    text = "\U0001f1e8\U0001f1ed" * 200 + "x"
    assert (floor_boundary(text, 301), ceil_boundary(text, 301)) == (300, 302)


KINDS = pytest.mark.parametrize("kind", [byte_level, llama, gemma, metaspace, wordpiece, bare])


def texts_with_logprobs(
    tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int], stops: Sequence[str] = ()
) -> list[tuple[str, tuple[ChosenToken, ...]]]:
    """Each text that leaves, the last one at the reply's end, with what is told of its tokens."""
    vocabulary, parts = Vocabulary(tokenizer), []
    logprobs = ReplyLogprobs(vocabulary.spell)
    reply = ReplyText(Detokenizer(vocabulary), stops, logprobs)
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
    parts = texts_with_logprobs(byte_level(), token_ids)
    assert bytes_of(parts).decode(errors="replace") == text_of(parts)
    left, seen = 0, []
    for text, tokens in parts:
        left += len(text)
        assert all(one.end <= left for one in tokens), "none before its text"
        seen += [-one.chosen.logprob for one in tokens]
    assert seen == sorted(set(seen)), "each once, in order"


@KINDS
@given(text=st.text(st.sampled_from("aHi b.c中é👩‍🇩🇪"), max_size=12))
def test_joined_the_bytes_are_the_text_whatever_the_tokenizer(kind: object, text: str) -> None:
    assert callable(kind)
    tokenizer = kind()
    parts = texts_with_logprobs(tokenizer, tokenizer.encode(text, add_special_tokens=False))
    assert bytes_of(parts).decode() == text_of(parts)


def test_a_beginning_of_a_character_is_told_with_what_stands_for_it() -> None:
    tokenizer = llama()
    parts = texts_with_logprobs(tokenizer, tokenizer.convert_tokens_to_ids(["a", "<0xE4>"]))
    assert [text for text, _ in parts] == ["a", "", "\ufffd"]
    assert bytes_of(parts) == b"a\xe4"


def test_a_token_that_a_stop_string_cuts_is_not_told() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("Hello there", add_special_tokens=False)
    whole = texts_with_logprobs(tokenizer, ids)
    assert len(tokens_of(whole)[0]) > 1
    cut = texts_with_logprobs(tokenizer, ids, [tokens_of(whole)[0][1:]])
    assert text_of(cut) == "H"
    assert tokens_of(cut) == []


def test_a_special_token_is_told_by_its_name_and_has_no_bytes() -> None:
    tokenizer = byte_level()
    ids = [tokenizer.convert_tokens_to_ids("<s>"), *tokenizer.encode("there", add_special_tokens=False)]
    (first, *_) = [one for _, tokens in texts_with_logprobs(tokenizer, ids) for one in tokens]
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
