"""Finds out how a model writes its replies, by its tokenizer's response template, or else its chat template and tokens."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from engine.parsing.families import CALLING, OTHER_CALLS, THINKING, Family, Reasoning
from engine.parsing.formats import ReplyFormat
from engine.parsing.response_templates import response_format

log = logging.getLogger(__name__)


def detect_format(tokenizer: Any) -> ReplyFormat | None:
    """Return how the model of a transformers tokenizer writes its replies; None if they are only text."""
    template = getattr(tokenizer, "response_template", None)
    if template:
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        try:
            return response_format(template, special)
        except ValueError as error:
            log.warning("the tokenizer's response template can't be used: %s", error)
    return family_format(templates_text(tokenizer), tokenizer.added_tokens_encoder)


def templates_text(tokenizer: Any) -> str:
    """Return a tokenizer's chat template, or all of its templates, one after the other."""
    template = tokenizer.chat_template
    return "\n".join(template.values()) if isinstance(template, dict) else template or ""


def family_format(template: str, tokens: Collection[str]) -> ReplyFormat | None:
    """Return a model's format by its chat template and the names of its added tokens; None if no family fits."""
    calling, thinking = _calling(template, tokens), _thinking(template, tokens)
    if calling is None and thinking is None:
        return None
    names = [
        f"calls as {calling.name}" if calling else "",
        f"reasoning in {thinking.open}" if thinking else "",
    ]
    return ReplyFormat(
        ", ".join(filter(None, names)),
        (*(() if thinking is None else (thinking.region,)), *(() if calling is None else calling.regions)),
        markers=(
            *(() if thinking is None else (thinking.open, thinking.close)),
            *(() if calling is None else calling.markers),
        ),
        opened=None if thinking is None else thinking.opened,
        call_form=None if calling is None else calling.form,
        thought_form=None if thinking is None else thinking.form,
    )


def _calling(template: str, tokens: Collection[str]) -> Family | None:
    if any(mark in template for mark in OTHER_CALLS):
        return None
    return next((one for one in CALLING if _is_of(one, template, tokens)), None)


def _is_of(family: Family, template: str, tokens: Collection[str]) -> bool:
    spelled = all(mark in template for mark in family.spelled)
    return spelled and all(mark in template or mark in tokens for mark in family.known_by)


def _thinking(template: str, tokens: Collection[str]) -> Reasoning | None:
    return next(
        (
            one
            for one in THINKING
            if one.open in template or one.close in template or (one.open in tokens and one.close in tokens)
        ),
        None,
    )
