"""Checkpoints of small real configurations with random weights, their tokenizers and features, in folders. No hub."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import (
    GenerationConfig,
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    PreTrainedTokenizerFast,
    VitsConfig,
    VitsModel,
    VitsTokenizer,
    Wav2Vec2FeatureExtractor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [" the", " light", " was", " red", " and", " he", " a", " of", " wave", " sea"]


WINDOW_S = 3
"""Of the Whisper here: a real one has 30, and takes ten times as long."""


def whisper(folder: Path, *, seed: int = 0, multilingual: bool = True) -> Path:
    """A Whisper of two layers that says words and times at random, and ends now and then."""
    vocabulary = {spelled(word): number for number, word in enumerate(WORDS)}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[])
    specials = ["<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"]
    specials += ["<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": specials})
    tokenizer.add_tokens([f"<|{tick * 0.02:.2f}|>" for tick in range(WINDOW_S * 50 + 1)])
    number = dict(tokenizer.get_vocab())
    torch.manual_seed(seed)
    sizes = {
        "encoder_layers": 1,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    }
    widths = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 80}
    end = number["<|endoftext|>"]
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        max_source_positions=WINDOW_S * 50,
        max_target_positions=64,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        init_std=0.6,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=number["<|startoftranscript|>"],
        **sizes,
        **widths,
    )
    model = WhisperForConditionalGeneration(config)
    languages = {code: number[code] for code in ("<|en|>", "<|de|>")}
    tasks = {task: number[f"<|{task}|>"] for task in ("transcribe", "translate")}
    model.generation_config = GenerationConfig(
        max_length=40,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=number["<|startoftranscript|>"],
        begin_suppress_tokens=[end],
        suppress_tokens=[number[special] for special in specials],
        no_timestamps_token_id=number["<|notimestamps|>"],
        is_multilingual=multilingual,
        **({"lang_to_id": languages, "task_to_id": tasks} if multilingual else {}),
    )
    WhisperFeatureExtractor(chunk_length=WINDOW_S).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def moonshine(folder: Path, *, seed: int = 0) -> Path:
    """A Moonshine of one layer."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=WhisperTokenizer(
            vocab={"<unk>": 0, "<s>": 1, "</s>": 2}
            | {spelled(word): number for number, word in enumerate(WORDS, 3)},
            merges=[],
        )._tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
    )
    torch.manual_seed(seed)
    layers = {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1}
    heads = {"encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2}
    model = MoonshineForConditionalGeneration(
        MoonshineConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            initializer_range=0.5,
            pad_token_id=2,
            **layers,
            **heads,
        )
    )
    Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def spelled(word: str) -> str:
    """A word as a vocabulary of bytes has it."""
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(word)
    return "".join(piece for piece, _ in pieces)


def vits(folder: Path, *, speakers: int = 1, phonemize: bool = False, seed: int = 0) -> Path:
    """A VITS of one layer, which reads letters."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = {letter: number for number, letter in enumerate(f"_ {LETTERS}'")}
    (folder / "vocab.json").write_text(json.dumps(letters))
    tokenizer = VitsTokenizer(
        str(folder / "vocab.json"), pad_token="_", unk_token="_", phonemize=phonemize, add_blank=True
    )
    torch.manual_seed(seed)
    model = VitsModel(
        VitsConfig(
            vocab_size=len(letters),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            ffn_dim=32,
            flow_size=16,
            num_speakers=speakers,
            speaker_embedding_size=8 if speakers > 1 else 0,
            spectrogram_bins=17,
            prior_encoder_num_flows=2,
            duration_predictor_num_flows=2,
            duration_predictor_filter_channels=16,
            depth_separable_num_layers=2,
            prior_encoder_num_wavenet_layers=1,
            posterior_encoder_num_wavenet_layers=1,
            upsample_initial_channel=16,
            upsample_rates=[8, 8],
            upsample_kernel_sizes=[16, 16],
            resblock_kernel_sizes=[3],
            resblock_dilation_sizes=[[1, 3, 5]],
        )
    )
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder
