"""Translates sentences while they grow, and tells what three hypotheses in a row agree on, as the service does.

LocalAgreement-n: Liu et al., Interspeech 2020. LAAL: Papi et al., AutoSimTrans 2022; here it counts words of the source, of
Chinese characters.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from demo_translator.pairs import Pair
from demo_translator.prefixes import ENDS, common, cuts, units
from demo_translator.tokenizer import CHINESE, ENGLISH

AGREEING = 3
"""Hypotheses in a row, of which the newest is one."""
_MOST = 64
"""Tokens of a sentence's translation."""


@dataclass(frozen=True, slots=True)
class SimultaneousScore:
    """How sentences fared into a language. `right`: letter for letter.

    `early`: words that were told before their source had its end; `premature`: those of them that the translation of the whole
    sentence has not in that place. `lag`: the mean LAAL. `contradicted`: sources, their translations, what was told early.
    """

    target: str
    total: int
    right: int
    early: int
    premature: int
    lag: float
    contradicted: tuple[tuple[str, str, str], ...]

    @property
    def rate(self) -> float:
        """The share of early words that were premature."""
        return self.premature / max(1, self.early)


def follow(
    model: Any, tokenizer: PreTrainedTokenizerBase, pairs: Sequence[Pair], target: str
) -> SimultaneousScore:
    """Translate each sentence while it grows."""
    early = premature = right = 0
    lags, contradicted = [], []
    for pair in pairs:
        source, wanted = pair if target == CHINESE else Pair(*pair[::-1])
        committed, delays = _committed(model, tokenizer, source, target)
        whole = _hypothesis(model, tokenizer, source, target, "")
        got = _hypothesis(model, tokenizer, source, target, committed)
        sure = len(units(common([committed, whole.rstrip(ENDS)])))
        early += len(units(committed))
        premature += len(units(committed)) - sure
        right += got == wanted
        length = len(units(source))
        lags.append(_laal([*delays, *[length] * (len(units(got)) - len(delays))], length, len(units(wanted))))
        if sure < len(units(committed)):
            contradicted.append((source, whole, committed))
    lag = sum(lags) / len(lags)
    return SimultaneousScore(target, len(pairs), right, early, premature, lag, tuple(contradicted))


def _committed(
    model: Any, tokenizer: PreTrainedTokenizerBase, source: str, target: str
) -> tuple[str, list[int]]:
    """What is told before a source has its end, and how much of that had come for each word."""
    committed = ""
    last: deque[str] = deque(maxlen=AGREEING)
    delays: list[int] = []
    for place in cuts(source):
        last.append(_hypothesis(model, tokenizer, source[:place], target, committed, unfinished=True))
        agreed = common(last) if len(last) == AGREEING else ""
        if len(agreed) > len(committed):
            delays += [len(units(source[:place]))] * (len(units(agreed)) - len(delays))
            committed = agreed
    return committed, delays


def _hypothesis(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str,
    committed: str,
    *,
    unfinished: bool = False,
) -> str:
    """The translation of a source that goes on from what was told; of one that grows without the mark at its end."""
    spoken: Any = tokenizer
    spoken.src_lang, spoken.tgt_lang = (ENGLISH, CHINESE) if target == CHINESE else (CHINESE, ENGLISH)
    is_cut = unfinished and getattr(model.config, "unfinished_sources", False)
    ids = tokenizer(source)["input_ids"][: -1 if is_cut else None]
    first = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(target)]
    prefix = tokenizer(text_target=committed, add_special_tokens=False)["input_ids"] if committed else []
    with torch.inference_mode():
        made = model.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            decoder_input_ids=torch.tensor([[*first, *prefix]]),
            max_new_tokens=_MOST,
        )
    text = str(tokenizer.decode(made[0, len(first) :], skip_special_tokens=True))
    return text.rstrip(ENDS) if unfinished else text


def _laal(delays: Sequence[int], source: int, reference: int) -> float:
    pace = source / max(len(delays), reference)
    last = next((place for place, delay in enumerate(delays) if delay >= source), len(delays) - 1)
    return sum(delay - place * pace for place, delay in enumerate(delays[: last + 1])) / (last + 1)
