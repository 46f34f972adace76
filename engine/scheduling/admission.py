"""Checks a request at its arrival, and makes the scheduler's view of it, or says why it can't be served."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from engine.cache.layout import Source
from engine.cache.translation_layout import salted
from engine.images.tiling import keyed
from engine.messages import ErrorCode, Finished, FinishReason
from engine.model.loaded_model import LoadedModel
from engine.scheduling.active_request import ActiveRequest
from engine.scheduling.image_inputs import image_error
from engine.scheduling.plan import ScheduledRequest
from engine.text.prepared_request import PreparedRequest, request_error, sampling_error

MOST_DRAFTED = 64
"""Tokens of a draft: it is computed in one step, beside those of others. What lies behind is made as if nobody had guessed it."""


def scheduled_request(request: PreparedRequest, model: LoadedModel) -> ScheduledRequest:
    """Return a request as the scheduler sees it. The source of a translation fills whole pages before its target."""
    source = Source.of(len(request.source), model.kv.page_size) if request.source else None
    before = [] if source is None else [*request.source, *[0] * (source.reserved - source.length)]
    tokens = model.vision_config.tiling.tokens if model.vision_config is not None else 0
    most = min(room_for(request, model), len(before) + len(request.prompt) + request.sampling.max_new_tokens)
    draft = _draft_of(request, model)[: max(0, most - len(before) - len(request.prompt) - 1)]
    return ScheduledRequest(
        request.request_id,
        [*before, *keyed(request.prompt, request.shown, tokens)],
        salt=request.cache_salt if source is None else salted(request.cache_salt, request.source),
        client=request.client,
        priority=request.priority,
        shared_tokens=request.shared_tokens,
        images_end=max((one.stop(tokens) for one in request.shown), default=0),
        most=None
        if request.grammar
        else most,  # a grammar shows only behind its last token whether it is complete
        source=source,
        draft=draft,
        # without what was right of a draft, a hypothesis must be free to come to its end
        ahead=request.ahead if _checks_drafts(request) and (draft or not request.draft) else None,
    )


def _checks_drafts(request: PreparedRequest) -> bool:
    """Whether a draft would be checked: only of a translation that always takes the likeliest token."""
    is_free = not request.grammar and not request.logprobs
    return bool(request.source) and is_free and request.sampling.takes_the_likeliest


def _draft_of(request: PreparedRequest, model: LoadedModel) -> Sequence[int]:
    """Return as much of a request's draft as is checked."""
    if not _checks_drafts(request):
        return ()
    return list(
        takewhile(
            lambda token: 0 <= token < model.vocabulary and token not in model.eos_ids,
            request.draft[:MOST_DRAFTED],
        )
    )


def room_for(request: PreparedRequest, model: LoadedModel) -> int:
    """Return how many tokens a request may have, its source and its reply included."""
    if not request.source or model.translation_config is None:
        return model.context_tokens
    before = Source.of(len(request.source), model.kv.page_size).reserved
    return min(model.context_tokens, before + model.translation_config.target_tokens)


def refusal(active: ActiveRequest, model: LoadedModel) -> Finished | None:
    """Return the end of a request that can't be served; None if it can."""
    request, vocabulary = active.prepared, model.vocabulary
    error = (
        image_error(request.shown, request.prompt, model.vision_config)
        or _of_source(request, model)
        or request_error(request, context_tokens=active.room - active.request.first, vocabulary=vocabulary)
    )
    if error:
        return active.finished(FinishReason.ERROR, error)
    if request.grammar is not None and active.sampler_state.guide is None:
        return active.finished(FinishReason.ERROR, "This model's replies can't be held to a format.")
    if error := sampling_error(request.sampling, vocabulary=vocabulary):
        return active.finished(FinishReason.ERROR, error, ErrorCode.BAD_PARAMS)
    return None


def _of_source(request: PreparedRequest, model: LoadedModel) -> str | None:
    """Return what is wrong with a request's source; None if nothing is."""
    if model.translation_config is None:
        return "This model does not translate." if request.source else None
    most, below = model.translation_config.languages.source_tokens, model.translation_config.source_vocabulary
    if not request.source:
        return "There is nothing to translate."
    if len(request.source) > most:
        return f"The text to translate has {len(request.source)} tokens; the model reads {most} at once."
    if min(request.source) < 0 or max(request.source) >= below:
        return f"The text to translate has a token id outside of the vocabulary of {below}."
    return None
