"""Checkpoints of small real configurations with random weights, their tokenizers and features, in folders. No hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentencepiece import SentencePieceTrainer
from tokenizers import pre_tokenizers
from transformers import (
    FastSpeech2ConformerConfig,
    FastSpeech2ConformerHifiGan,
    FastSpeech2ConformerHifiGanConfig,
    FastSpeech2ConformerModel,
    GenerationConfig,
    HubertConfig,
    HubertForCTC,
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    PreTrainedTokenizerFast,
    SpeechT5Config,
    SpeechT5ForTextToSpeech,
    SpeechT5HifiGan,
    SpeechT5HifiGanConfig,
    SpeechT5Tokenizer,
    VitsConfig,
    VitsModel,
    VitsTokenizer,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
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
        alignment_heads=[[0, 1], [1, 0]],
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


def ctc(folder: Path, *, hubert: bool = False, seed: int = 0) -> Path:
    """A wav2vec 2.0 or a HuBERT of one layer."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4} | {
        letter: number for number, letter in enumerate(LETTERS, 5)
    }
    (folder / "vocab.json").write_text(json.dumps(letters))
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    sizes: dict[str, Any] = {
        "vocab_size": len(letters),
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "conv_dim": (16,) * 7,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
        "initializer_range": 0.5,
        "pad_token_id": 0,
    }
    torch.manual_seed(seed)
    model = HubertForCTC(HubertConfig(**sizes)) if hubert else Wav2Vec2ForCTC(Wav2Vec2Config(**sizes))
    Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def spelled(word: str) -> str:
    """A word as a vocabulary of bytes has it."""
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(word)
    return "".join(piece for piece, _ in pieces)


HIFIGAN: dict[str, Any] = {
    "model_in_dim": 8,
    "initializer_range": 0.5,
    "upsample_initial_channel": 8,
    "upsample_rates": [4, 4],
    "upsample_kernel_sizes": [8, 8],
    "resblock_kernel_sizes": [3],
    "resblock_dilation_sizes": [[1, 1, 1]],
}


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


def speecht5(folder: Path, *, seed: int = 0) -> Path:
    """A SpeechT5 of one layer with its vocoder and two speakers below it."""
    folder.mkdir(parents=True, exist_ok=True)
    sentences = [" ".join(LETTERS), "the light was red, and he said: no."] * 20
    SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_prefix=str(folder / "spm_char"),
        model_type="char",
        vocab_size=36,
        hard_vocab_limit=False,
        pad_id=1,
        bos_id=0,
        eos_id=2,
        unk_id=3,
        minloglevel=2,
    )
    tokenizer = SpeechT5Tokenizer(str(folder / "spm_char.model"))
    torch.manual_seed(seed)
    model = SpeechT5ForTextToSpeech(
        SpeechT5Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            positional_dropout=0.0,
            initializer_range=0.3,
            num_mel_bins=8,
            speech_decoder_prenet_units=16,
            speech_decoder_postnet_layers=2,
            speech_decoder_postnet_units=16,
            speaker_embedding_dim=12,
            max_text_positions=300,
        )
    )
    torch.nn.init.constant_(model.speech_decoder_postnet.prob_out.bias, -4.0)  # it goes on for some steps
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    SpeechT5HifiGan(SpeechT5HifiGanConfig(**HIFIGAN)).save_pretrained(folder / "vocoder")
    (folder / "speakers").mkdir()
    for number, name in enumerate(("ada", "ben")):
        np.save(folder / "speakers" / f"{name}.npy", np.random.default_rng(number).normal(size=12))
    return folder


def fastspeech2(seed: int = 0) -> tuple[Any, Any]:
    """A FastSpeech2Conformer of one layer, and its vocoder."""
    torch.manual_seed(seed)
    layers = {"layers": 1, "num_attention_heads": 2, "linear_units": 16, "kernel_size": 3}
    usual = FastSpeech2ConformerConfig()
    model = FastSpeech2ConformerModel(
        FastSpeech2ConformerConfig(
            vocab_size=len(LETTERS) + 2,
            hidden_size=16,
            num_mel_bins=8,
            encoder_config=usual.encoder_config | layers,
            decoder_config=usual.decoder_config | layers,
            duration_predictor_channels=16,
            energy_predictor_channels=16,
            pitch_predictor_channels=16,
            speech_decoder_postnet_units=16,
        )
    )
    return model.eval(), FastSpeech2ConformerHifiGan(FastSpeech2ConformerHifiGanConfig(**HIFIGAN)).eval()
