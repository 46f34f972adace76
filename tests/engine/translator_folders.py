"""Folders of translators with random weights, and tokenizers that are trained here, like a hub's, in a megabyte."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from transformers import (
    M2M100Config,
    M2M100ForConditionalGeneration,
    M2M100Tokenizer,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
    NllbTokenizer,
    PreTrainedModel,
)

from tests.engine.translators import SIZES, sharpened

ENGLISH = (
    "Good morning!",
    "My name is Anna.",
    "What is two plus three?",
    "It is five.",
    "The weather is fine today.",
)
CHINESE = ("早上好。", "我叫安娜。", "二加三等于几。", "等于五。", "今天天气很好。")


def pieces(path: Path, sentences: tuple[str, ...], size: int) -> list[str]:
    """Train a SentencePiece model, write it to a file, and return its pieces."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences * 4),
        model_writer=written,
        vocab_size=size,
        hard_vocab_limit=False,
        character_coverage=1.0,
        minloglevel=2,
    )
    path.write_bytes(written.getvalue())
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(number) for number in range(model.get_piece_size())]


def marian(folder: Path, *, targets: tuple[str, ...] = ()) -> Path:
    """Save a model from English to Chinese. `targets`: languages that a word in front of the source selects."""
    _begin(folder)
    known = pieces(folder / "source.spm", ENGLISH, 70) + pieces(folder / "target.spm", CHINESE, 60)
    markers = [f">>{target}<<" for target in targets]
    vocabulary = dict.fromkeys(["</s>", "<unk>", *markers, *(one for one in known if one[0] != "<"), "<pad>"])
    numbers = {piece: number for number, piece in enumerate(vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(numbers))
    MarianTokenizer(
        str(folder / "source.spm"),
        str(folder / "target.spm"),
        str(folder / "vocab.json"),
        source_lang="en",
        target_lang=None if targets else "zh",
    ).save_pretrained(folder)
    pad = numbers["<pad>"]
    sizes = SIZES | {"vocab_size": len(numbers), "pad_token_id": pad, "decoder_start_token_id": pad}
    return _saved(
        MarianMTModel(
            MarianConfig(
                **sizes, decoder_vocab_size=len(numbers), scale_embedding=True, bad_words_ids=[[pad]]
            )
        ),
        folder,
    )


def m2m100(folder: Path) -> Path:
    """Save a model with a hundred languages, each with a token of its own."""
    _begin(folder)
    known = pieces(folder / "sentencepiece.bpe.model", ENGLISH + CHINESE, 100)
    names = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *(one for one in known if one[0] != "<")])
    (folder / "vocab.json").write_text(json.dumps({piece: number for number, piece in enumerate(names)}))
    tokenizer = M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"))
    tokenizer.save_pretrained(folder)
    return _many(folder, len(names) + len(tokenizer.lang_code_to_id) + 8)


def nllb(folder: Path) -> Path:
    """Save a model whose tokenizer needs no SentencePiece."""
    _begin(folder)
    letters = sorted({letter for sentence in ENGLISH + CHINESE for letter in sentence.replace(" ", "\u2581")})
    names = ["<s>", "<pad>", "</s>", "<unk>", *letters, "\u2581"]
    vocabulary: Any = {piece: number for number, piece in enumerate(dict.fromkeys(names))}
    tokenizer = NllbTokenizer(vocab=vocabulary, merges=[])
    tokenizer.save_pretrained(folder)
    return _many(folder, len(tokenizer))


def _begin(folder: Path) -> None:
    folder.mkdir()
    torch.manual_seed(5)


def _many(folder: Path, size: int) -> Path:
    sizes = SIZES | {"vocab_size": size, "pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2}
    return _saved(M2M100ForConditionalGeneration(M2M100Config(**sizes, scale_embedding=True)), folder)


def _saved(module: PreTrainedModel, folder: Path) -> Path:
    sharpened(module).save_pretrained(folder)
    return folder
