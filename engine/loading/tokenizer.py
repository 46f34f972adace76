"""Reads a model's tokenizer, and the languages of one that translates. Knows no torch: prompts are made without it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils.hub import cached_file

from engine.errors import OTHER_ENGINE, ModelNotUsable, PromptRejected, install_command
from engine.loading.preflight import check_folder
from engine.vision.processor import takes_images

_CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
"""A language and its script or country. Tokens of this form are the languages of NLLB and mBART."""

_FEW = 8
"""How many languages a refusal lists."""


def read_config(model: str) -> PreTrainedConfig:
    """Return the configuration of a hub name or folder. Raises ModelNotUsable if it can't be read."""
    check_folder(model)
    try:
        return cast("PreTrainedConfig", AutoConfig.from_pretrained(model, trust_remote_code=False))
    except OSError as error:
        raise ModelNotUsable(
            f"The model {model!r} is not stored on this machine, and the hub can't be reached or does not have it."
        ) from error
    except (ValueError, KeyError) as error:
        raise ModelNotUsable(
            f"The model {model!r} is of a type that this version of transformers does not know, "
            f"or needs code of its own, which Midstream does not run; {OTHER_ENGINE}."
        ) from error


def generation_of(model: str, config: PreTrainedConfig) -> GenerationConfig:
    """Return a model's generation config: its own file, or else one made from its configuration."""
    with suppress(OSError):
        return GenerationConfig.from_pretrained(model)
    made: GenerationConfig = GenerationConfig.from_model_config(config)
    return made


class TranslationTokenizer:
    """Tokenizes sources and the starts of translations for one model.

    For one thread at a time, since a tokenizer keeps the language that was set last.
    """

    def __init__(self, tokenizer: Any, config: PreTrainedConfig, generation: GenerationConfig) -> None:
        """Take a transformers tokenizer, and the model's own configurations."""
        self._tokenizer = tokenizer
        start = generation.decoder_start_token_id
        self._start: int = getattr(config, "decoder_start_token_id", 0) if start is None else start
        self._forced: int | None = generation.forced_bos_token_id
        self._codes = _codes(tokenizer)
        self._spoken = self._tokenizer_language("src_lang")  # before any request sets another one
        self._knows_beginnings = bool(getattr(config, "unfinished_sources", False))
        self.source_tokens: int = getattr(
            config, "max_position_embeddings", 0
        )  # T5, which the engine refuses, has none
        source, target = self._tokenizer_language("source_lang"), self._tokenizer_language("target_lang")
        named = [target, *(marker.strip("<>") for marker in self._markers())]
        self.sources = tuple(self._codes or filter(None, [source]))
        self.targets = tuple(self._codes or dict.fromkeys(filter(None, named)))

    def source(self, text: str, source: str, target: str, *, unfinished: bool = False) -> list[int]:
        """Return the token ids of a text that is to be translated. Raises PromptRejected.

        An `unfinished` text gets no end token if the model's configuration says `unfinished_sources`. Such a model
        has learned to translate no more than the beginning of a source determines.
        """
        source = _one_of(source, self.sources, "source", self._spoken)
        target = self._target(target)
        if self._codes:
            self._tokenizer.src_lang = source
        elif (marker := f">>{target}<<") in self._markers():
            text = f"{marker} {text}"
        made: list[int] = self._tokenizer(text, split_special_tokens=True)["input_ids"]
        if unfinished and self._knows_beginnings and made[-1] == self._tokenizer.eos_token_id:
            made.pop()
        return made

    def beginning(self, target: str, prefix: str) -> tuple[list[int], int]:
        """Return the tokens that a translation begins with, and how many of them are from `prefix`. Raises PromptRejected."""
        target = self._target(target)
        first = [self._start]
        if target in self._codes:
            first.append(self._codes[target])
            self._tokenizer.tgt_lang = target
        elif self._forced is not None:
            first.append(self._forced)
        tokens: list[int] = []
        if prefix := prefix.rstrip():
            tokens = self._tokenizer(text_target=prefix, split_special_tokens=True, add_special_tokens=False)[
                "input_ids"
            ]
        return first + tokens, len(tokens)

    def count(self, text: str) -> int:
        """Return how many tokens a piece of text has by itself, without control tokens."""
        return len(self._tokenizer(text, split_special_tokens=True, add_special_tokens=False)["input_ids"])

    def _target(self, language: str) -> str:
        return _one_of(language, self.targets, "target", self._tokenizer_language("target_lang"))

    def _tokenizer_language(self, name: str) -> str:
        return getattr(self._tokenizer, name, None) or ""

    def _markers(self) -> list[str]:
        """Return the words that tell a Marian model the target language, in front of a source."""
        return list(getattr(self._tokenizer, "supported_language_codes", ()))


def _codes(tokenizer: Any) -> dict[str, int]:
    """Return the token ids of the languages that have a token of their own, by language code."""
    known: dict[str, int] | None = getattr(tokenizer, "lang_code_to_id", None)
    if known:
        return dict(known)
    special = {id_: token.content for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    return {name: id_ for id_, name in special.items() if _CODE.fullmatch(name)}


def _one_of(language: str, known: tuple[str, ...], field: str, otherwise: str) -> str:
    """Return `language` if the model has it; if it is empty, the tokenizer's default or the only language.

    Raises PromptRejected.
    """
    if language in known:
        return language
    if not language and (len(known) <= 1 or otherwise in known):
        return otherwise if otherwise in known else "".join(known)
    listed = ", ".join(known[:_FEW])
    more = f" and {len(known) - _FEW} more" if len(known) > _FEW else ""
    if not known:
        raise PromptRejected(f"The model translates one language pair: leave {field} out.", field=field)
    if not language:
        raise PromptRejected(f"Say the {field} language: {listed}{more}.", field=field)
    raise PromptRejected(
        f"The model has no {field} language {language!r}; it has {listed}{more}.", field=field
    )


def read_tokenizer(model: str, config: PreTrainedConfig) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a hub name or folder, whose model has this configuration.

    Raises ModelNotUsable if it can't be read, or lacks the chat template that its model needs.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    except ImportError as error:
        if find_spec("sentencepiece") is None:
            raise ModelNotUsable(
                f"The tokenizer of {model!r} needs sentencepiece: {install_command('translation')}"
            ) from error
        raise ModelNotUsable(f"The model {model!r} has no tokenizer that can be read.") from error
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotUsable(f"The model {model!r} has no tokenizer that can be read.") from error
    if not tokenizer.chat_template and takes_images(config):
        tokenizer.chat_template = _of_processor(model)
    if not tokenizer.chat_template and not config.is_encoder_decoder:
        raise ModelNotUsable(
            f"The tokenizer of {model!r} has no chat template: it is not a chat model. Try its instruct variant."
        )
    return cast("PreTrainedTokenizerBase", tokenizer)


def _of_processor(model: str) -> str | None:
    """Return the chat template of a model's processor, where older checkpoints keep it; None if there is none."""
    try:
        found = cached_file(model, "chat_template.json", _raise_exceptions_for_missing_entries=False)
        if found is None:
            return None
        template: str = json.loads(Path(found).read_bytes())["chat_template"]
    except (OSError, ValueError, KeyError):
        return None
    return template
