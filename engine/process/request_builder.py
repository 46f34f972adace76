"""Turns requests into jobs for the maker of prompts, and the results into requests for the core."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Protocol

from engine.images.tiling import PlacedImage
from engine.messages import CountRequest, CountResult, ErrorCode, Finished, FinishReason, Params, Request
from engine.parsing.reply_factory import ReplyPrefix, StartedReply
from engine.prompts.jobs import Answer, BuildPrompt, BuiltPrompt, Rejected, TooLong
from engine.text.prepared_request import PreparedRequest, resolve_sampling
from engine.text.reply_memory import ReplyRecorder, WrittenReply


class ReplyStarter(Protocol):
    """Begins replies: see `engine.parsing.reply_factory.ReplyFactory`."""

    def begin(self, request: Request, beginning: ReplyPrefix, notes: ReplyRecorder) -> StartedReply:
        """Return the reply to a request."""


class RequestBuilder:
    """Makes requests ready for the core. For one thread."""

    def __init__(
        self,
        replies: ReplyStarter,
        defaults: Params,
        *,
        context_tokens: int,
        remember: Callable[[str, WrittenReply], None],
    ) -> None:
        """Take the loaded model's parts, and the factory of replies. `context_tokens`: the most of a prompt with its reply.

        `remember` is called by the step loop with the salt and the record of each reply.
        """
        self._replies = replies
        self._defaults = defaults
        self._context_tokens = context_tokens
        self._remember = remember

    def job(self, request: Request | CountRequest) -> BuildPrompt:
        """Return the job for a request or a count.

        Prompts were counted as the tokenizer spells them. The last quarter of the window is reserved for the reply, if it needs
        that much.
        """
        window = self._context_tokens
        if isinstance(request, CountRequest):
            return BuildPrompt(request.messages, window, spec=request.spec, counts=True)
        sampling = resolve_sampling(request.params, self._defaults)
        room = min(sampling.max_new_tokens, window // 4)
        return BuildPrompt(
            request.messages,
            window,
            spec=request.spec,
            salt=request.cache_salt,
            most=window - room,
            shares_system=request.shares_system,
        )

    def prepared(self, request: Request, made: Answer) -> PreparedRequest | Finished:
        """Return the prepared request, or its end if there is no prompt."""
        if not isinstance(made, BuiltPrompt):
            is_of_spec = isinstance(made, Rejected) and made.field
            return _refused(
                request, self._why(made), ErrorCode.BAD_PARAMS if is_of_spec else ErrorCode.INTERNAL
            )
        prompt = array("i", made.token_ids).tolist()
        sampling = resolve_sampling(request.params, self._defaults)
        images = {image.digest: image for message in request.messages for image in message.images}
        notes = ReplyRecorder(partial(self._remember, request.cache_salt))
        beginning = ReplyPrefix(made.opened, prompt[len(prompt) - made.continued :])
        reply, logprobs = self._replies.begin(request, beginning, notes)
        return PreparedRequest(
            request.request_id,
            prompt,
            sampling,
            reply,
            cache_salt=request.cache_salt,
            client=request.client,
            priority=request.priority,
            shared_tokens=made.shared_tokens,
            logprobs=logprobs,
            grammar=made.grammar,
            source=array("i", made.source).tolist(),
            shown=[PlacedImage(images[digest], starts) for digest, starts in made.shown],
            draft=array("i", made.draft).tolist(),
            ahead=None if request.spec.translation is None else request.spec.translation.ahead,
            trace=request.trace,
        )

    def counted(self, count: CountRequest, made: Answer) -> CountResult:
        """Return the prompt's length as far as it was read, or why there is none."""
        if isinstance(made, BuiltPrompt | TooLong):
            return CountResult(count.count_id, made.tokens)
        field = made.field if isinstance(made, Rejected) else ""
        return CountResult(count.count_id, 0, self._why(made), field)

    def _why(self, made: Answer) -> str:
        if isinstance(made, TooLong):
            within = self._context_tokens
            return f"The prompt has {made.tokens} tokens or more; with its reply it must fit into {within}."
        return made.why if isinstance(made, Rejected) else "Nobody waits for the prompt."


def _refused(request: Request, why: str, code: ErrorCode) -> Finished:
    return Finished(
        request.request_id,
        FinishReason.ERROR,
        prompt_tokens=0,
        cached_tokens=0,
        generated_tokens=0,
        error=why,
        error_code=code,
    )
