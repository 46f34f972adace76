"""Token by token, a reply reads as if it had been decoded at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from engine.text.detokenizer import Spelled, Vocabulary, detokenizer_of

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
    reply = detokenizer_of(Vocabulary(tokenizer))
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
    reply = detokenizer_of(Vocabulary(tokenizer).showing(None))
    text = "".join([*(reply.push(token_id) for token_id in token_ids), reply.flush()])
    assert text == tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def test_only_those_special_tokens_are_shown_that_are_named() -> None:
    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer)
    ids = tokenizer.convert_tokens_to_ids(["<s>", "</s>", "<tool>"])
    shown = detokenizer_of(vocabulary.showing(("</s>", "<tool>")))
    assert [shown.push(token_id) for token_id in ids] == ["", "</s>", "<tool>"]
    assert shown.spell(ids[1]) == Spelled("</s>", b"</s>")
    assert vocabulary.showing(()) is vocabulary
    assert one_by_one(tokenizer, ids) == ["", "", "<tool>", ""]


def fallback_ids(raw: bytes) -> list[int]:
    return [llama().get_vocab()[f"<0x{byte:02X}>"] for byte in raw]


def test_fallback_bytes_leave_as_soon_as_they_are_a_character() -> None:
    assert one_by_one(llama(), fallback_ids("中文".encode())) == ["", "", "中", "", "", "文", ""]


def test_invalid_bytes_alone_read_as_at_once() -> None:
    ids = [*fallback_ids(b"\xe4\xb8"), llama().get_vocab()["a"], *fallback_ids(b"\xff")]
    assert "".join(one_by_one(llama(), ids)) == at_once(llama(), ids) == "��a�"


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


def test_a_tokenizer_without_a_fast_backend_is_read_too() -> None:
    tokenizer = ByT5Tokenizer()
    assert "".join(one_by_one(tokenizer, tokenizer.encode("plain text"))) == "plain text"


def test_an_added_token_outside_the_byte_alphabet_reads_as_it_is_written() -> None:
    tokenizer = byte_level()
    wide = tokenizer.convert_tokens_to_ids(" wide é")
    assert one_by_one(tokenizer, [wide]) == [at_once(tokenizer, [wide]), ""] == [" wide é", ""]
