"""Makes an encoder-decoder ready to translate, or says why it isn't served.

As for other models a comparison decides (`engine.loading.probe`): its logits over pages must be those of the plain module.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedConfig, PreTrainedModel

from engine.cache.layout import Source, Span
from engine.errors import OTHER_ENGINE, ModelNotUsable
from engine.execution.runner import TranslationRunner
from engine.loading.probe import agrees, check_room, skeleton_of
from engine.loading.tokenizer import TranslationTokenizer
from engine.messages import Languages, Params
from engine.model.cpu import linear as cpu_linear
from engine.model.cpu.encoder_decoder import computes_whole_steps
from engine.model.cpu.linear import can_pack, pack
from engine.model.encoder_decoder import SERVED_TYPES, T5, T5_TYPES, EncoderDecoder, Seq2SeqModel
from engine.model.loaded_model import TranslationConfig
from engine.options import ForwardOptions

PAGE = 16
"""Tokens of a page. It is small, since a source takes whole pages and a sentence has some twenty tokens."""

SOURCE, TARGET = 21, 12
"""Tokens of the trial."""


def check_translator(
    model: str,
    config: PreTrainedConfig,
    device: torch.device,
    dtype: torch.dtype,
    forward: ForwardOptions,
) -> None:
    """Refuse an encoder-decoder that is not served, or not with these options, before its weights are read.

    Raises ModelNotUsable.
    """
    mapping: Any = AutoModelForSeq2SeqLM._model_mapping  # noqa: SLF001 - transformers has no public list
    if mapping.get(type(config), None) not in (*SERVED_TYPES, *T5_TYPES):
        raise ModelNotUsable(
            f"The model {model!r} is an encoder-decoder of the type {config.model_type}, which is not served. Marian, "
            f"M2M100 with NLLB, mBART, and T5 with mT5 are. {OTHER_ENGINE[0].upper() + OTHER_ENGINE[1:]}."
        )
    if device.type != "cpu":
        raise ModelNotUsable(
            f"The model {model!r} is an encoder-decoder, and these are served on CPUs only. Use --device cpu."
        )
    if forward.quantize != "none":
        raise ModelNotUsable(
            f"The model {model!r} is an encoder-decoder: --quantize is not offered for these."
        )
    check_room(model, skeleton_of(model, config, dtype, AutoModelForSeq2SeqLM), device)


class PreparedTranslator:
    """A translator that was tried. `bytes_per_token`: bytes of keys and values."""

    def __init__(self, module: PreTrainedModel) -> None:
        """Try it. Raises ModelNotUsable if its logits differ from those of the plain module."""
        self.module: Seq2SeqModel = _forward_pass(module)
        expected = _by_itself(module, _ids(self.module))
        got, self.bytes_per_token = _through_pages(self.module)
        if not agrees(got, expected, module.dtype):
            raise ModelNotUsable(
                f"The model type {type(module).__name__} can't be served: it gives different logits over pages."
            )
        self._arrange(expected)
        self.module.forbid(_bad_words(module.generation_config))

    def _arrange(self, expected: Tensor) -> None:
        """Give linear layers to the kernels that suit this processor, if there are any. T5 keeps its own layers.

        Raises ModelNotUsable.
        """
        if isinstance(self.module, T5):
            return
        weight = self.module.head.weight
        if cpu_linear.serve(weight, weight):
            cpu_linear.take_over(self.module, packs=not computes_whole_steps(self.module))
        elif can_pack(self.module.device, self.module.dtype):
            pack(self.module)
        else:
            return
        if not agrees(_through_pages(self.module)[0], expected, self.module.dtype):
            raise ModelNotUsable(
                "The weights give different logits when arranged for this CPU; try another --dtype."
            )


def translation_config(
    module: Seq2SeqModel, translation_tokenizer: TranslationTokenizer, generation: GenerationConfig
) -> TranslationConfig:
    """Return the facts about a translator: its languages and bounds in tokens."""
    source_tokens = min(module.source_positions, translation_tokenizer.source_tokens)
    return TranslationConfig(
        Languages(translation_tokenizer.sources, translation_tokenizer.targets, source_tokens),
        target_tokens=module.target_positions,
        source_vocabulary=module.source_vocabulary,
        forced_end=generation.forced_eos_token_id is not None,
    )


def translation_defaults(defaults: Params, generation: GenerationConfig) -> Params:
    """Return the defaults of a translator, whose `max_length` counts the start token as well."""
    most = generation.max_new_tokens or (generation.max_length or 0) - 1
    if most < 1:
        return defaults
    changed: Any = {"max_new_tokens": most}
    return Params(
        **{name: getattr(defaults, name) for name in Params.__struct_fields__ if name not in changed},
        **changed,
    )


def _forward_pass(module: PreTrainedModel) -> Seq2SeqModel:
    """Return the forward pass over pages for a module of a served type."""
    made: Seq2SeqModel = T5(module) if isinstance(module, T5_TYPES) else EncoderDecoder(module)
    return made.eval()


def _bad_words(generation: GenerationConfig) -> list[int]:
    """Return the tokens that the model forbids. Raises ModelNotUsable for words of several tokens."""
    given: list[list[int]] = [*(generation.bad_words_ids or [])]
    given += [[token] for token in generation.suppress_tokens or []]
    if any(len(word) != 1 for word in given):
        raise ModelNotUsable("The model forbids words of several tokens, which is not supported.")
    return [word[0] for word in given]


def _ids(module: Seq2SeqModel) -> tuple[list[int], list[int]]:
    """Return a source and a target for the trial. None of their tokens is padding, which modules mask out."""
    sources, targets = module.source_vocabulary, module.vocabulary
    source = [(7919 * place + 13) % (sources - 4) + 3 for place in range(SOURCE)]
    return source, [(104_729 * place + 5) % (targets - 4) + 3 for place in range(TARGET)]


@torch.inference_mode()
def _by_itself(module: PreTrainedModel, ids: tuple[list[int], list[int]]) -> Tensor:
    """Return the logits behind the last four tokens of the target, (4, vocabulary), as the plain module computes them."""
    source, target = (torch.tensor([one], device=module.device) for one in ids)
    untyped = cast("Any", module)
    logits: Tensor = untyped(input_ids=source, decoder_input_ids=target, use_cache=False).logits
    return logits[0, -4:].float()


def _through_pages(module: Seq2SeqModel) -> tuple[Tensor, int]:
    """Return the same logits, computed in a chunk and in steps beside another translation, and the KV bytes of a token."""
    source, target = _ids(module)
    lies, pages = Source.of(SOURCE, PAGE), 2 * (-(-SOURCE // PAGE) + 1)
    tokens = [*source, *[0] * (lies.reserved - SOURCE), *target]
    runner = TranslationRunner(module, pages=pages, page_size=PAGE)
    table, others = range(0, pages, 2), range(pages - 1, 0, -2)
    other = [*reversed(source), *tokens[SOURCE:]]
    first = lies.reserved + TARGET - 3

    def span(slot: int, start: int, stop: int) -> Span:
        own, where = ((tokens, table), (other, others))[slot]
        return Span(slot, start, own[start:stop], samples=not slot, pages=where, source=lies)

    rows = [runner.run([span(1, 0, first - 1), span(0, 0, first)])]
    rows += [
        runner.run([span(0, place, place + 1), span(1, place - 1, place)])
        for place in range(first, first + 3)
    ]
    return torch.cat(rows).float(), runner.cache.bytes_per_token
