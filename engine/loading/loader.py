"""Loads a model from the hub or from a folder, or says in a sentence or two why it can't be served.

Encoder-decoders are served only after a comparison, too (`engine.loading.probe`): their logits over pages must be those of
the plain module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils import logging as transformers_logging

from engine.errors import OTHER_ENGINE, ModelNotUsable
from engine.execution.executor import LoadedModel, TranslationConfig, TranslationRunner
from engine.grammar import GrammarCompiler, NoGrammars, vocabulary_of
from engine.kv_cache import CPU_KV_SHARE, CUDA_KV_SHARE, KVBudget, kv_budget, page_size
from engine.loading.preflight import SAFE_WEIGHTS, check_quantization
from engine.loading.probe import (
    Probed,
    agrees,
    check_architecture,
    check_room,
    largest_step,
    memory_estimate,
    probe,
    skeleton_of,
    window_of,
)
from engine.loading.tokenizer import TranslationTokenizer, read_config, read_tokenizer
from engine.machine import EngineOptions, triton_trouble
from engine.messages import REPLY_TOKENS, Languages, Params
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.kernels import serve_linear, take_over
from engine.model.devices import (
    available_bytes,
    choose_device,
    choose_dtype,
    is_out_of_memory,
    peak_bytes,
)
from engine.model.encoder_decoder import SERVED_TYPES, EncoderDecoder
from engine.step_layout import Source, Span
from engine.vision.image import IMAGE
from engine.vision.processor import ImageProcessor, takes_images
from engine.vision.tower import VisionConfig, VisionTower, finished

Progress = Callable[[str, float], None]


def load(options: EngineOptions, progress: Progress = lambda _stage, _share: None) -> LoadedModel:
    """Load a model. `progress` is called with a stage, in words, and a share from 0 to 1. Raises ModelNotUsable."""
    model, quantize = options.model, options.quantize
    config, tokenizer, target, precision = before_weights(options, progress)
    if target.type == "cpu" and (trouble := cpu_kernels.trouble()):
        log.warning("replies are slower, since the kernels for CPUs are not available: %s", trouble)
    if not (config.is_encoder_decoder or takes_images(config) or _weights_are_here(model)):
        found = memory_estimate(skeleton_of(model, config, precision), target, options)
        log.info("fetching weights: %s", found)
    progress("reading the weights", 0.1)
    with _out_of_memory_reported(model, target):
        with weights_progress(lambda share: progress("reading the weights", 0.1 + 0.7 * share)):
            module = _read_weights(model, config, precision, pickled=options.pickled_weights)
        cast("torch.nn.Module", module).to(target)
        if config.is_encoder_decoder:
            progress("warming up", 0.8)
            translator = _translator(options, module, tokenizer, target)
            progress("ready", 1.0)
            return translator
        vision_config = None
        if takes_images(config):
            module, vision_config = parted(model, module, tokenizer)
        vocabulary = cast("torch.nn.Embedding", module.get_input_embeddings()).num_embeddings
        probed = _make_ready(module, vocabulary, quantize, progress)
    window = window_of(config.get_text_config())
    ends = eos_ids_of(module.generation_config, tokenizer.eos_token_id)
    largest = partial(largest_step, probed.module, vocabulary, window)
    loaded = LoadedModel(
        name=model,
        module=probed.module,
        tokenizer=tokenizer,
        defaults=defaults_of(module.generation_config, options.reply_tokens),
        eos_ids=ends,
        max_batch=options.max_batch,
        vocabulary=vocabulary,
        kv=_budget(
            options,
            target,
            bytes_per_token=probed.bytes_per_token,
            window=window,
            page=page_size(target.type),
            largest=largest,
        ),
        grammars=_grammars(tokenizer, vocabulary, ends),
        vision_config=vision_config,
    )
    progress("ready", 1.0)
    return loaded


def before_weights(
    options: EngineOptions, progress: Progress = lambda _stage, _share: None
) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase, torch.device, torch.dtype]:
    """Return a model's configuration and tokenizer, and the device and dtype to run it. Raises ModelNotUsable."""
    model = options.model
    # transformers' progress bars would mix with ours, and what it warns about is refused here anyway.
    untyped: Any = transformers_logging
    untyped.set_verbosity_error()
    untyped.disable_progress_bar()
    target = choose_device(options.device)
    if target.type == "cuda":
        torch.cuda.set_device(target)  # or else code that names no device would use the first one
        if missing := triton_trouble():
            log.warning("kernels for CUDA can't be compiled: %s. %s", *missing)
    precision = choose_dtype(options.dtype, target)
    check_quantization(options.quantize, device=target.type, dtype=str(precision).removeprefix("torch."))
    progress("reading the configuration", 0.0)
    config = read_config(model)
    check_model(model, config, target, precision, options.quantize)
    progress("reading the tokenizer", 0.05)
    return config, read_tokenizer(model, config), target, precision


SAMPLING_FIELDS = ("do_sample", "temperature", "top_p", "top_k", "repetition_penalty", "min_p")
_WEIGHTS = "Loading weights"
log = logging.getLogger(__name__)


def defaults_of(generation: GenerationConfig, reply_tokens: int = REPLY_TOKENS) -> Params:
    """Return the sampling values of a generation config, with transformers' defaults where it names none.

    `reply_tokens`: the longest reply if the config names none.
    """
    given = {name: getattr(generation, name, None) for name in SAMPLING_FIELDS}
    fallback: dict[str, Any] = {
        "do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 50, "repetition_penalty": 1.0,
    }  # fmt: skip
    known = {name: value for name, value in given.items() if value is not None}
    return Params(
        max_new_tokens=generation.max_new_tokens or reply_tokens,
        max_time_s=generation.max_time,
        **(fallback | known),
    )


def eos_ids_of(generation: GenerationConfig, tokenizer_eos: int | None) -> frozenset[int]:
    """Return the tokens that end a reply: the generation config's and the tokenizer's."""
    named = generation.eos_token_id
    ids = named if isinstance(named, list) else [named]
    return frozenset(one for one in (*ids, tokenizer_eos) if one is not None)


def check_model(
    model: str, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype, quantize: str
) -> None:
    """Refuse a model that is not served, or not with these options, before its weights are read.

    Raises ModelNotUsable.
    """
    if config.is_encoder_decoder:
        what = f"The model {model!r} is an encoder-decoder"
        mapping: Any = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
        if mapping.get(type(config), None) not in SERVED_TYPES:
            raise ModelNotUsable(
                f"{what} of the type {config.model_type}, which is not served. Marian, M2M100 with NLLB, and mBART are. "
                f"{OTHER_ENGINE[0].upper() + OTHER_ENGINE[1:]}."
            )
    elif takes_images(config):
        what = f"The model {model!r} takes images"
    else:
        check_architecture(model, config, device, dtype)
        return
    if device.type != "cpu":
        raise ModelNotUsable(f"{what}; such models are served on CPUs only. Use --device cpu.")
    if quantize != "none":
        raise ModelNotUsable(f"{what}: --quantize is not offered for such models.")
    if not config.is_encoder_decoder:
        check_architecture(model, config.get_text_config(), device, dtype)
    check_room(model, skeleton_of(model, config, dtype, _auto_class(config)), device)


def _auto_class(config: PreTrainedConfig) -> Any:
    if config.is_encoder_decoder:
        return AutoModelForSeq2SeqLM
    return AutoModelForImageTextToText if takes_images(config) else AutoModelForCausalLM


def parted(
    model: str, module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> tuple[PreTrainedModel, VisionConfig]:
    """Return a module's language model and vision part. Both share the module's weights. Raises ModelNotUsable."""
    image_processor, whole = ImageProcessor.of(model), cast("Any", module)
    token = whole.config.image_token_id
    if tokenizer.convert_tokens_to_ids(IMAGE) != token:
        raise ModelNotUsable(f"The tokenizer of {model!r} has no token {IMAGE} with the id {token}.")
    scale = torch.from_numpy(image_processor.scale()).to(module.device)
    tower = VisionTower(whole.model, scale, side=image_processor.tiling.side).eval()
    if tower.tokens != image_processor.tiling.tokens:
        raise ModelNotUsable(f"The image processor of {model!r} cuts tiles that do not fit its model.")
    _compare(whole, tower)
    return _language_model(model, whole), VisionConfig(tower, image_processor.tiling, token)


def _language_model(model: str, whole: Any) -> PreTrainedModel:
    """Return the causal model that writes the text, without the tower. Raises ModelNotUsable."""
    untyped: Any = AutoModelForCausalLM
    with torch.device("meta"):
        causal = untyped.from_config(whole.model.text_model.config)
    causal.model, causal.lm_head = whole.model.text_model, whole.lm_head
    if any(weight.is_meta for weight in causal.parameters()):
        raise ModelNotUsable(f"The language model of {model!r} has parts besides its layers and its head.")
    causal.generation_config = whole.generation_config
    return cast("PreTrainedModel", causal.eval())


@torch.inference_mode()
def _compare(whole: Any, tower: VisionTower) -> None:
    """Raise ModelNotUsable if the tower, run in pieces, gives other states than the whole module."""
    side = tower.side
    numbers = torch.arange(3 * side * side, device=whole.device).view(1, 3, side, side)
    points = (numbers * 7919 % 251).to(torch.uint8)
    values = tower.values(points[0]).view(1, 1, 3, side, side)
    expected: Tensor = whole.get_image_features(pixel_values=values).pooler_output[0]
    got = finished(tower.look(points))
    if not agrees(got.float(), expected.float(), whole.dtype):
        raise ModelNotUsable(
            f"The model type {type(whole).__name__} can't be served: its vision tower differs when run in pieces."
        )


@contextmanager
def weights_progress(report: Callable[[float], None]) -> Iterator[None]:
    """Call `report` with a share from 0 to 1 for each weight that is read inside the block."""

    def reported(items: Collection[Any]) -> Iterator[Any]:
        for done, item in enumerate(items, start=1):
            yield item
            report(done / len(items))

    def hook(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("desc") == _WEIGHTS and args:
            args = (reported(args[0]), *args[1:])
        return factory(*args, **kwargs)

    untyped: Any = transformers_logging
    previous = untyped.set_tqdm_hook(hook)
    try:
        yield
    finally:
        untyped.set_tqdm_hook(previous)


def _weights_are_here(model: str) -> bool:
    """Whether a model is a folder, or its weights are in the hub's cache."""
    names = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
    return Path(model).is_dir() or any(isinstance(try_to_load_from_cache(model, name), str) for name in names)


def _translator(
    options: EngineOptions, module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> LoadedModel:
    """Return an encoder-decoder that is ready to translate. Raises ModelNotUsable."""
    made, bytes_per_token = prepared_translator(module)
    generation = module.generation_config
    defaults = defaults_of(generation)
    most = generation.max_new_tokens or (generation.max_length or 0) - 1  # which counts the start token
    known = TranslationTokenizer(tokenizer, module.config, generation)
    source_tokens = min(made.source_positions, known.source_tokens)
    window = Source.of(source_tokens, TRANSLATION_PAGE).reserved + made.target_positions
    return LoadedModel(
        name=options.model,
        module=made,
        tokenizer=tokenizer,
        defaults=defaults if most < 1 else msgspec.structs.replace(defaults, max_new_tokens=most),
        eos_ids=eos_ids_of(generation, tokenizer.eos_token_id),
        max_batch=options.max_batch,
        vocabulary=made.vocabulary,
        kv=_budget(options, device, bytes_per_token=bytes_per_token, window=window, page=TRANSLATION_PAGE),
        translation_config=TranslationConfig(
            Languages(known.sources, known.targets, source_tokens),
            target_tokens=made.target_positions,
            source_vocabulary=made.source_vocabulary,
            forced_end=generation.forced_eos_token_id is not None,
        ),
    )


def _grammars(
    tokenizer: PreTrainedTokenizerBase, vocabulary: int, ends: Collection[int]
) -> GrammarCompiler | None:
    """Return a grammar compiler for this tokenizer; None if its tokens allow no grammars."""
    try:
        return GrammarCompiler(vocabulary_of(tokenizer, size=vocabulary, ends=ends))
    except NoGrammars as error:
        log.warning("replies can't be held to formats with this tokenizer: %s", error)
        return None


def _make_ready(module: PreTrainedModel, vocabulary: int, quantize: str, progress: Progress) -> Probed:
    """Try a module, and quantize it if `quantize` says so. Returns the form to run.

    Raises ModelNotUsable.
    """
    progress("warming up", 0.8)
    probed = probe(module, vocabulary)
    if probed.module is not module:
        # The fused form has the layers now. Weights that it rearranges must not stay in memory twice.
        cast("Any", module).model.layers = torch.nn.ModuleList()
    if quantize == "int8":
        progress("quantizing", 0.85)
        cpu_kernels.quantize(probed.module)
    return probed


def _read_weights(
    model: str, config: PreTrainedConfig, dtype: torch.dtype, *, pickled: bool
) -> PreTrainedModel:
    try:
        module, report = _auto_class(config).from_pretrained(
            model,
            config=config,
            dtype=dtype,
            attn_implementation="eager",  # the probe compares with it
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=None if pickled else True,
        )
    except OSError as error:
        other = "" if pickled else f" If they are not safetensors: {SAFE_WEIGHTS}."
        raise ModelNotUsable(f"The weights of {model!r} are missing or can't be read.{other}") from error
    except (SafetensorError, ValueError, ImportError) as error:
        raise ModelNotUsable(
            f"The weights of {model!r} can't be used: {str(error).partition(chr(10))[0]}"
        ) from error
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise ModelNotUsable(
            f"The weights of {model!r} do not have the shapes that its config.json gives."
        ) from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelNotUsable(
            f"The checkpoint of {model!r} lacks {len(missing)} of the weights; the first is {missing[0]}."
        )
    return cast("PreTrainedModel", module.eval())


@contextmanager
def _out_of_memory_reported(model: str, device: torch.device) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ModelNotUsable(f"The model {model!r} does not fit into the memory of {device}.") from error


def _budget(
    options: EngineOptions,
    device: torch.device,
    *,
    bytes_per_token: int,
    window: int | None,
    page: int,
    largest: Callable[[], object] = lambda: None,
) -> KVBudget:
    """Return the memory for keys and values. `largest`: computes the largest step. Raises ModelNotUsable."""
    size = options.kv_bytes or None
    if size is None:
        # On CUDA the largest step is run, to measure what it needs besides keys and values. Elsewhere the share leaves room.
        needed = peak_bytes(device, largest) if device.type == "cuda" else 0
        free = available_bytes(device)
        share = options.memory_share * (CUDA_KV_SHARE if device.type == "cuda" else CPU_KV_SHARE)
        size = None if free is None else int(max(0, free - needed) * share)
    return kv_budget(
        size,
        bytes_per_token=bytes_per_token,
        window=window,
        max_batch=options.max_batch,
        page_size=page,
        is_limit=options.kv_bytes is None,
    )


TRANSLATION_PAGE = 16
"""Tokens of a page. It is small, since a source takes whole pages and a sentence has some twenty tokens."""

SOURCE, TARGET = 21, 12
"""Tokens of the trial's source and target."""


def prepared_translator(module: PreTrainedModel) -> tuple[EncoderDecoder, int]:
    """Return a translator that was tried, and the bytes of a token's keys and values.

    Raises ModelNotUsable if its logits differ from those of the plain module.
    """
    made = EncoderDecoder(module).eval()
    expected = _by_itself(module, _ids(made))
    got, bytes_per_token = _through_pages(made)
    if not agrees(got, expected, module.dtype):
        raise ModelNotUsable(
            f"The model type {type(module).__name__} can't be served: it gives different logits over pages."
        )
    if serve_linear(made.head.weight, made.head.weight):
        take_over(made)
        if not agrees(_through_pages(made)[0], expected, module.dtype):
            raise ModelNotUsable(
                "The weights give different logits when computed by Midstream's kernels; try another --dtype."
            )
    generation = module.generation_config
    words = [*(generation.bad_words_ids or []), *([token] for token in generation.suppress_tokens or [])]
    if any(len(word) != 1 for word in words):
        raise ModelNotUsable("The model forbids words of several tokens, which is not supported.")
    made.forbid([word[0] for word in words])
    return made, bytes_per_token


def _ids(module: EncoderDecoder) -> tuple[list[int], list[int]]:
    """Return a source and a target for the trial. None of their tokens is padding, which modules mask out."""
    sources, targets = module.source_vocabulary, module.vocabulary
    source = [(7919 * place + 13) % (sources - 4) + 3 for place in range(SOURCE)]
    return source, [(104_729 * place + 5) % (targets - 4) + 3 for place in range(TARGET)]


@torch.inference_mode()
def _by_itself(module: PreTrainedModel, ids: tuple[list[int], list[int]]) -> Tensor:
    """Return the logits after the last four tokens of the target, (4, vocabulary), as the plain module computes them."""
    source, target = (torch.tensor([one], device=module.device) for one in ids)
    untyped = cast("Any", module)
    logits: Tensor = untyped(input_ids=source, decoder_input_ids=target, use_cache=False).logits
    return logits[0, -4:].float()


def _through_pages(module: EncoderDecoder) -> tuple[Tensor, int]:
    """Return the same logits, computed in a chunk and in steps alongside another translation, and the KV bytes of a token."""
    source, target = _ids(module)
    lies, pages = Source.of(SOURCE, TRANSLATION_PAGE), 2 * (-(-SOURCE // TRANSLATION_PAGE) + 1)
    tokens = [*source, *[0] * (lies.reserved - SOURCE), *target]
    runner = TranslationRunner(module, pages=pages, page_size=TRANSLATION_PAGE)
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
