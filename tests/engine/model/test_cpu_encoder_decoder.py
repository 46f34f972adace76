"""Sources and targets, each in one call, say what the module says, whatever the pages; what leads out of memory is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import AutoModelForSeq2SeqLM, M2M100Config, M2M100ForConditionalGeneration, PreTrainedModel

from app.models import TRANSLATOR
from engine.kv_cache import LayerPages
from engine.loading.loader import load
from engine.model.cpu import encoder_decoder as cpu_encoder_decoder
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.decoder import InvalidStep
from engine.model.cpu.encoder_decoder import CpuEncoderDecoder, computes_whole_steps, is_known
from engine.model.cpu.kernels import pack
from engine.model.encoder_decoder import T5, EncoderDecoder
from engine.scheduling.core import EngineCore
from engine.step_layout import Source, Span, source_of
from tests.engine import translators
from tests.engine.tiny_models import GREEDY, run_out, tokens_of
from tests.engine.translators import POSITIONS, VOCABULARY, source

pytestmark = pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble())

ODD = translators.SIZES | {
    "d_model": 150,
    "encoder_attention_heads": 10,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 302,
    "decoder_ffn_dim": 77,
    "init_std": 0.1,
}
"""Wider than what is multiplied at a time, of nothing a whole number, with other heads in each half."""
WIDE = translators.SIZES | {"d_model": 128, "init_std": 0.1}
"""With heads for vectors of pairs."""


def _m2m(sizes: dict[str, Any], activation: str) -> PreTrainedModel:
    torch.manual_seed(3)
    config = M2M100Config(
        **sizes | {"activation_function": activation, "pad_token_id": 1}, scale_embedding=True
    )
    return M2M100ForConditionalGeneration(config).eval()


def _mild(kind: str) -> PreTrainedModel:
    """Not sharpened: what is rounded in another order stays small."""
    torch.manual_seed(3)
    return translators.KINDS[kind]().eval()


MADE: dict[str, Callable[[], PreTrainedModel]] = {
    **{kind: partial(_mild, kind) for kind in ("marian", "two vocabularies", "m2m100", "mbart")},
    "odd": partial(_m2m, ODD, "gelu"),
    "wide": partial(_m2m, WIDE, "swish"),
}
TARGET = 9


def encoder_decoder_of(kind: str, dtype: torch.dtype = torch.float32) -> EncoderDecoder:
    return EncoderDecoder(MADE[kind]().to(dtype)).eval()  # type: ignore[no-any-return]


def target(number: int) -> list[int]:
    return [(53 * place + 17 * number) % 130 + 12 for place in range(TARGET)]


@cache
def by_itself(kind: str, length: int, number: int) -> Tensor:
    """The logits behind each token of a target."""
    module: Any = MADE[kind]().double()
    given, written = (torch.tensor([one]) for one in (source(length, number), target(number)))
    with torch.inference_mode():
        logits: Tensor = module(input_ids=given, decoder_input_ids=written, use_cache=False).logits
    return logits[0].float()


class Translation(NamedTuple):
    """One that lies in pages."""

    tokens: list[int]
    lies: Source
    pages: list[int]

    @classmethod
    def of(cls, length: int, number: int, page: int, pages: Sequence[int]) -> Translation:
        """Take the first of pages that it needs."""
        lies = Source.of(length, page)
        tokens = [*source(length, number), *[0] * (lies.reserved - length), *target(number)]
        return cls(tokens, lies, list(pages[: -(-len(tokens) // page)]))

    def whole(self) -> Span:
        return Span(0, 0, self.tokens, samples=True, pages=self.pages, source=self.lies)

    def part(self, start: int, stop: int, *, samples: bool = True) -> Span:
        """Some tokens of the target."""
        first, last = self.lies.reserved + start, self.lies.reserved + stop
        return Span(0, first, self.tokens[first:last], samples=samples, pages=self.pages, source=self.lies)


def lying(lengths: Sequence[int], page: int) -> tuple[list[Translation], int]:
    """Translations in pages that were shuffled, and how many pages there are."""
    needed = [-(-length // page) + -(-TARGET // page) for length in lengths]
    free = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(1)).tolist()
    found = []
    for number, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        found.append(Translation.of(length, number, page, free))
        free = free[count:]
    return found, sum(needed) + 3


def made_pages(kernels: CpuEncoderDecoder, pages: int, size: int) -> list[LayerPages]:
    """Pages of what is no number, for each layer."""
    made = [LayerPages.make(kernels.heads, kernels.heads, pages, size) for _ in range(kernels.layers)]
    for layer in made:
        for store in layer:
            store.fill_(torch.nan)
    return made


def logits_of(
    kernels: CpuEncoderDecoder, texts: Sequence[Translation], held: list[LayerPages], cuts: Sequence[int]
) -> Tensor:
    """The logits behind the last token of each, (texts, vocabulary), read in parts up to each cut."""
    kernels.encode([source_of(text.whole()) for text in texts], held)
    for start, stop in zip([0, *cuts], [*cuts, TARGET], strict=True):
        logits = kernels.translate([text.part(start, stop) for text in texts], held)
    return logits


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("page", [1, 3, 16])
@pytest.mark.parametrize("threads", [1, 2])
def test_targets_beside_each_other_are_what_the_module_says_of_each(
    kind: str, page: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    lengths = (1, 17, 40, 16, 3)
    texts, pages = lying(lengths, page)
    kernels = CpuEncoderDecoder(encoder_decoder_of(kind))
    held = made_pages(kernels, pages, page)
    kernels.encode([source_of(text.whole()) for text in texts], held)
    rows = []
    for start, stop in ((0, 4), *((place, place + 1) for place in range(4, TARGET))):
        rows.append(kernels.translate([text.part(start, stop) for text in texts], held))
    torch.set_num_threads(1)
    for number, length in enumerate(lengths):
        got = torch.stack([row[number] for row in rows])
        torch.testing.assert_close(got, by_itself(kind, length, number)[3:], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["marian", "wide", "odd"])
@pytest.mark.usefixtures("vectors")
def test_they_are_that_with_vectors_of_every_kind(kind: str) -> None:
    lengths = (40, 7)
    texts, pages = lying(lengths, 16)
    for dtype, error in ((torch.float32, 1e-5), (torch.bfloat16, 0.06)):
        kernels = CpuEncoderDecoder(encoder_decoder_of(kind, dtype))
        got = logits_of(kernels, texts, made_pages(kernels, pages, 16), [2, 3]).float()
        for number, length in enumerate(lengths):
            expected = by_itself(kind, length, number)[-1]
            assert (got[number] - expected).norm() / expected.norm() < error


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=14),
    st.integers(1, 9),
    st.sets(st.integers(1, TARGET - 1)),
)
def test_what_a_target_says_depends_neither_on_those_beside_it_nor_on_where_it_is_cut(
    lengths: list[int], page: int, cuts: set[int]
) -> None:
    kernels = CpuEncoderDecoder(encoder_decoder_of("marian"))
    texts, pages = lying(lengths, page)
    together = logits_of(kernels, texts, made_pages(kernels, pages, page), sorted(cuts))
    for row, text in enumerate(texts):
        assert torch.equal(logits_of(kernels, [text], made_pages(kernels, pages, page), [])[0], together[row])


@pytest.mark.parametrize("activation", ["relu", "swish", "silu", "gelu", "gelu_new"])
def test_activations_are_known_or_left_to_the_layers(activation: str) -> None:
    module: Any = _m2m(WIDE, activation)
    with torch.no_grad():
        for layer in (*module.model.encoder.layers, *module.model.decoder.layers):
            layer.fc1.weight.mul_(8.0)  # far beyond where all activations are alike
    model = EncoderDecoder(module).eval()
    assert is_known(model) == (activation != "gelu_new")
    if not is_known(model):
        return
    kernels = CpuEncoderDecoder(model)
    (text,), pages = lying([20], 16)
    got = logits_of(kernels, [text], made_pages(kernels, pages, 16), [])[0]
    with torch.inference_mode():
        given, written = (torch.tensor([one]) for one in (source(20, 0), target(0)))
        expected = module(input_ids=given, decoder_input_ids=written, use_cache=False).logits[0, -1]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_only_rows_that_sample_have_logits() -> None:
    kernels = CpuEncoderDecoder(encoder_decoder_of("m2m100"))
    texts, pages = lying([5, 6, 7], 16)
    held = made_pages(kernels, pages, 16)
    kernels.encode([source_of(text.whole()) for text in texts], held)
    assert kernels.translate([text.part(0, 3, samples=False) for text in texts], held).shape == (
        0,
        VOCABULARY,
    )
    spans = [text.part(3, 4 + number, samples=number != 1) for number, text in enumerate(texts)]
    logits = kernels.translate(spans, held)
    for row, (number, last) in zip(logits, ((0, 3), (2, 5)), strict=True):
        expected = by_itself("m2m100", 5 + number, number)[last]
        torch.testing.assert_close(row, expected, atol=1e-4, rtol=1e-4)


def test_what_kernels_do_not_know_is_left_to_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder_decoder_of("marian")
    assert is_known(model)
    assert computes_whole_steps(model)
    cpu_kernels.take_over(model, packs=False)
    assert is_known(model)
    pack(encoder_decoder_of("marian"))
    packed = encoder_decoder_of("marian")
    pack(packed)
    assert not is_known(packed)
    other = encoder_decoder_of("marian")
    other.decoder[1].norm.eps = 1e-3  # type: ignore[union-attr]
    assert not is_known(other)
    other = encoder_decoder_of("marian")
    other.decoder[2].mlp_norm = nn.RMSNorm(32)  # type: ignore[union-attr]
    assert not is_known(other)
    assert CpuEncoderDecoder.of(T5(translators.model_of("t5"))) is None
    monkeypatch.setattr(cpu_kernels, "_library", lambda: cpu_kernels.NoKernels("none"))
    assert CpuEncoderDecoder.of(encoder_decoder_of("marian")) is None


def test_many_rows_are_left_to_torch_where_it_has_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_encoder_decoder, "has_tiles", lambda: True)
    half, whole = (
        CpuEncoderDecoder(encoder_decoder_of("wide", torch.bfloat16)),
        CpuEncoderDecoder(encoder_decoder_of("wide")),
    )
    assert [half.encodes(rows) for rows in (64, 65)] == [True, False]
    assert [half.translates(rows) for rows in (64, 65)] == [True, False]
    assert whole.encodes(10_000)
    assert [whole.translates(rows) for rows in (256, 257)] == [True, False]
    assert not computes_whole_steps(encoder_decoder_of("wide", torch.bfloat16))


@pytest.mark.parametrize("kind", ["marian", "m2m100", "mbart"])
def test_kernels_and_layers_take_turns_in_the_same_pages(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources and prefixes of few tokens, and of many."""
    core, some, outputs = EngineCore(translators.served(kind)), GREEDY, []
    monkeypatch.setattr(CpuEncoderDecoder, "encodes", lambda _, rows: rows % 2 == 1)
    monkeypatch.setattr(CpuEncoderDecoder, "translates", lambda _, rows: rows % 2 == 1)
    texts = [source(1 + 5 * number, number) for number in range(6)]
    for number, text in enumerate(texts):
        core.submit(translators.translating(f"{number}", text, translators.beginning(kind), some))
        outputs += core.step()
    outputs += run_out(core)
    for number, text in enumerate(texts):
        assert tokens_of(outputs, f"{number}") == translators.generated(kind, text, some.max_new_tokens)


def test_the_bundled_translator_is_served_by_kernels_and_says_what_generate_says() -> None:
    loaded = load(str(TRANSLATOR), device="cpu", dtype="float32")
    assert isinstance(loaded.module, EncoderDecoder)
    kernels = CpuEncoderDecoder(loaded.module)
    module: Any = AutoModelForSeq2SeqLM.from_pretrained(TRANSLATOR, dtype=torch.float32)
    loaded.tokenizer.src_lang = "eng_Latn"  # type: ignore[attr-defined]
    given = loaded.tokenizer("My sister bought seven apples on Monday.", return_tensors="pt")
    language = loaded.tokenizer.convert_tokens_to_ids("zho_Hans")
    expected = module.generate(**given, forced_bos_token_id=language, max_new_tokens=30, do_sample=False)[
        0
    ].tolist()
    ids, started = given["input_ids"][0].tolist(), expected[:2]
    lies, held = Source.of(len(ids), 16), made_pages(kernels, 8, 16)
    kernels.encode([whole(ids, [5, 2])], held)
    while len(started) < len(expected):
        new = started if len(started) == 2 else started[-1:]
        start = lies.reserved + len(started) - len(new)
        span = Span(
            0, start, new, samples=True, pages=[5, 2, 7, 0, 3][: lies.reserved // 16 + 3], source=lies
        )
        started = [*started, int(kernels.translate([span], held)[0].argmax())]
    assert started == expected


# ---- what is refused ------------------------------------------------------------------------------------------------


def row(tokens: list[int], start: int, pages: list[int], length: int = 5, reserved: int = 8) -> Span:
    """Tokens of a target behind a source, in pages of four."""
    return Span(0, reserved + start, tokens, samples=True, pages=pages, source=Source(length, reserved))


PAGES = [0, 1, 2, 3]
BAD_ROWS = {
    "a token beyond the vocabulary": [row([VOCABULARY], 0, PAGES)],
    "a token below it": [row([-1], 0, PAGES)],
    "a token far beyond it": [row([2**62], 0, PAGES)],
    "a position beyond its pages": [row([1], 8, PAGES)],
    "a position beyond those that are told": [row([1], POSITIONS, list(range(6)) * 4)],
    "a position far beyond": [row([1], 2**40, PAGES)],
    "a page that is not there": [row([1], 4, [0, 1, 2, 6])],
    "a page before the first": [row([1], 0, [0, 1, -1])],
    "a page far beyond": [row([1], 0, [0, 1, 2**31 - 1])],
    "a source in a page that is not there": [row([1], 0, [0, 6, 2])],
    "a source of nothing": [row([1], 0, PAGES, length=0)],
    "a source beyond the pages": [row([1], 0, PAGES, length=40)],
    "a target that begins beyond the pages": [row([1], 0, PAGES, reserved=40)],
    "two tokens in one place": [row([1], 0, PAGES), row([2], 0, [4, 5, 2])],
    "nobody": [],
}


@pytest.mark.parametrize("why", BAD_ROWS)
def test_a_step_that_leads_out_of_memory_is_refused_and_writes_nothing(why: str) -> None:
    kernels = CpuEncoderDecoder(encoder_decoder_of("marian"))
    held = made_pages(kernels, 6, 4)
    with pytest.raises(InvalidStep):
        kernels.translate(BAD_ROWS[why], held)
    assert all(store.isnan().all() for layer in held for store in layer)


def whole(tokens: list[int], pages: list[int]) -> Span:
    return Span(0, 0, tokens, samples=False, pages=pages)


BAD_SOURCES = {
    "a token beyond the vocabulary": [whole([5, 150], PAGES)],
    "a token below it": [whole([5, -1], PAGES)],
    "more tokens than pages": [whole([5] * 9, [0, 1])],
    "more tokens than positions": [whole([5] * (POSITIONS + 1), list(range(17)))],
    "a page that is not there": [whole([5] * 9, [0, 1, 17])],
    "a page before the first": [whole([5] * 9, [0, -1, 2])],
    "one of nothing": [whole([5], [0]), whole([], [1])],
    "two in one page": [whole([5] * 5, [0, 1]), whole([5] * 5, [2, 1])],
    "none": [],
}


@pytest.mark.parametrize("why", BAD_SOURCES)
def test_a_source_that_leads_out_of_memory_is_refused_and_writes_nothing(why: str) -> None:
    kernels = CpuEncoderDecoder(encoder_decoder_of("two vocabularies"))
    held = made_pages(kernels, 17, 4)
    with pytest.raises(InvalidStep):
        kernels.encode(BAD_SOURCES[why], held)
    assert all(store.isnan().all() for layer in held for store in layer)


def test_keys_and_values_of_other_shapes_are_refused() -> None:
    kernels = CpuEncoderDecoder(encoder_decoder_of("marian"))
    held = made_pages(kernels, 6, 4)

    def refused(spoiled: list[LayerPages]) -> None:
        with pytest.raises(InvalidStep, match="keys and values"):
            kernels.encode([whole([5], [0])], spoiled)

    refused(held[:-1])
    first, rest = held[0], held[1:]
    refused([first._replace(values=first.values[:1]), *rest])
    refused([LayerPages(*(store[:, :, :1] for store in first)), *rest])
    refused([LayerPages(*(store.bfloat16() for store in first)), *rest])
    refused([LayerPages(*(store.contiguous() for store in first)), *rest])
    refused([*made_pages(kernels, 5, 4)[:1], *rest])
    kernels.encode([whole([5], [0])], held)
    assert held[-1].keys[0, 0].isfinite().all()


def test_what_is_no_number_stays_with_its_own_row() -> None:
    kernels = CpuEncoderDecoder(encoder_decoder_of("mbart"))
    texts, pages = lying([20, 21, 22], 16)
    held = made_pages(kernels, pages, 16)
    kernels.encode([source_of(text.whole()) for text in texts], held)
    held[1].values[texts[1].pages[0]] = torch.nan
    logits = kernels.translate([text.part(0, 1) for text in texts], held)
    assert logits.isnan().any(dim=1).tolist() == [False, True, False]
