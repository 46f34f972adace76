"""The core of the step loop: requests go in, outputs come out, one engine step at a time.

Owns each request from its submission to its one end. Knows no processes, no sockets and no tokenizer.

Images of running requests are encoded one at a time, in pieces of milliseconds between the steps of others. The next image
is chosen by priority, then fairly between groups and clients, by the tiles that were encoded for each. An image of several
requests is encoded once, as long as one of them is served. A request has its slot and its pages before its images are
encoded, so images that are in the cache are not encoded again. Pixels are asked for when an image's turn comes, so only one
image's are in memory.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never
from weakref import WeakValueDictionary

import torch

from engine.execution.executor import (
    Executor,
    LaunchedStep,
    LoadedModel,
    Outcome,
    OutOfMemory,
)
from engine.execution.guide import Deferred, SpanFailure
from engine.execution.sampler import SamplerState
from engine.fair_queue import FairQueue
from engine.kv_cache import PagePool
from engine.messages import EngineStatistics, ErrorCode, Finished, FinishReason, Output
from engine.model.devices import is_out_of_memory
from engine.prompts.jobs import DecodedTiles, DecodeImage, ImageResult, Rejected
from engine.scheduling.active_request import ActiveRequest, refusal, room_for, scheduled_request
from engine.scheduling.scheduler import PrefillBudget, Scheduler, Segment, StepPlan
from engine.text.reply_text import DuplicateRequest, PreparedRequest, ScoredToken
from engine.vision.tower import EncodingSteps, ImageInputs, VisionConfig

log = logging.getLogger(__name__)
NO_TEXT = "The reply's text could not be made."

STEP_TARGET_S = 0.06
"""About how long a step with prefill takes, for which cancels and replies wait. Without replies it is longer (`ALONE`)."""

QUEUE_REPORT_EVERY_S = 0.25
"""The shortest time between two rounds that tell waiting requests their new places in the queue."""


class EngineCore:
    """Serves up to `max_batch` requests at once with one model. More requests wait in a fair queue (`WaitingQueue`).

    Not thread-safe: all methods are called from one thread, between steps.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        max_batch: int | None = None,
        step_target_s: float = STEP_TARGET_S,
        clock: Callable[[], float] = time.monotonic,
        request_decode: DecodeCallback | None = None,
    ) -> None:
        """Take a model. `max_batch`: None means the one that the model was loaded for. `clock` gives seconds.

        `request_decode`: asks for the pixels of an image, which come by `put_image`; None only if the model takes no images.
        """
        slots = max_batch or model.max_batch
        self._model = model
        self._clock = clock
        self._scheduler = Scheduler(slots, PagePool(model.kv.pages, model.kv.page_size))
        self._executor = Executor(model, slots=slots)
        self._pace = PrefillBudget(step_target_s)
        self._flights: deque[_LaunchedPlan] = deque()
        self._pending_text: list[tuple[ActiveRequest, int]] = []
        self._active: dict[str, ActiveRequest] = {}
        self._leaving: list[RequestEnd | Finished] = []
        self._counts: Counter[str] = Counter()  # by their names in `EngineStatistics`
        self._step_seconds = 0.0
        self.made_at = 0.0
        """When the tokens of the last step's texts were fetched, by this core's clock."""
        self._done_at = 0.0
        self._queue_reported_at = float("-inf")
        self._image_encoder = ImageEncoder(model.vision_config, request_decode, clock)

    @property
    def busy(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._leaving or (self._active and not self._image_encoder.paused))

    def statistics(self) -> EngineStatistics:
        """Return the numbers for metrics."""
        scheduler, pool = self._scheduler, self._scheduler.pool
        page_bytes = pool.size * self._model.kv.bytes_per_token
        return EngineStatistics(
            **self._counts,
            step_seconds=self._step_seconds,
            running=scheduler.running,
            queued=scheduler.queued,
            preemptions=scheduler.preemptions,
            kv_used_bytes=pool.used * page_bytes,
            kv_cached_bytes=pool.cached * page_bytes,
            kv_total_bytes=pool.total * page_bytes,
        )

    def submit(self, request: PreparedRequest) -> None:
        """Queue a request. If it can't be served, the next step gives its end, with an error.

        Raises DuplicateRequest if a request with its id is still being served.
        """
        if request.request_id in self._active:
            raise DuplicateRequest(f"a request with the id {request.request_id!r} is still being served")
        room = room_for(request, self._model)
        own = scheduled_request(request, self._model, room)
        guide = self._executor.guide(request.grammar, request.sampling) if request.grammar else None
        active = ActiveRequest(request, own, SamplerState.of(request.sampling, guide), room)
        if (refused := refusal(active, self._model)) is not None:
            self._leaving.append(refused)
            return
        if request.shown and self._model.vision_config is not None:
            active.image_inputs = ImageInputs(request.shown, self._model.vision_config)
        self._image_encoder.paused = False
        self._active[request.request_id] = active
        self._scheduler.add(active.request)
        if request.sampling.max_time_s is not None:
            active.deadline = self._clock() + request.sampling.max_time_s

    def cancel(self, request_id: str) -> None:
        """End a request, wherever it is. The next step gives its end. Unknown and ended ids are ignored."""
        active = self._active.get(request_id)
        if active is None or active.steps_at_cancel is not None:
            return
        active.steps_at_cancel = active.request.steps
        self._leaving.append(RequestEnd(active, FinishReason.CANCELLED))

    def put_image(self, image_result: ImageResult) -> None:
        """Take the pixels of an image that was asked for, or why there are none, even if nobody waits for them any more."""
        self._image_encoder.paused = False
        if (end := self._image_encoder.put_image(image_result)) is not None:
            self._leaving.append(end)

    def step(self) -> list[Output]:
        """Run one engine step and return its outputs, in order; nothing when idle.

        If tokens are fed on the device, these are the outputs of the step before, whose text is made while the device
        computes this step. Where nothing depends on those tokens, this step is launched even before they are fetched. Ends
        that need no step (cancels, timeouts, refusals) are returned at once, before anything else runs. Raises RuntimeError
        if pages are in use though nobody holds them.
        """
        ends = self._ends_without_a_step()
        if not self._active:
            self._scheduler.pool.check_idle()
        if ends:
            self._image_encoder.paused = False
            return ends
        if self._runs_ahead():
            outputs = [*self._launch(), *self._collect(), *self._emit_texts()]
        elif self._executor.feeds:
            outputs = [*self._collect(), *self._launch(), *self._emit_texts()]
        else:
            outputs = [*self._launch(), *self._collect()]
        if not self._active:
            self._scheduler.pool.check_idle()
        return outputs

    def _runs_ahead(self) -> bool:
        """Whether a step is under way, and the next one need not wait for it."""
        return (
            self._executor.feeds
            and len(self._flights) == 1
            and self._scheduler.may_run_ahead
            and not any(active.waits for active in self._active.values())
        )

    def _ends_without_a_step(self) -> list[Output]:
        leaving, self._leaving = self._leaving, []
        now = self._clock()
        late = [active for active in self._active.values() if active.deadline <= now]
        leaving += (RequestEnd(active, FinishReason.TIMEOUT) for active in late)
        return [
            output for end in leaving for output in (self._end(end) if isinstance(end, RequestEnd) else [end])
        ]

    def _admit(self, plan: StepPlan) -> list[Output]:
        """Begin the requests that were admitted. Raises OutOfMemory."""
        outputs: list[Output] = []
        for request in plan.admitted:
            active = self._active[request.request_id]
            self._image_encoder.add(active)
            self._executor.join(
                request.slot or 0, active.sampler_state, active.tokens, generated=request.generated
            )
            if not request.generated:
                outputs.append(active.started())
        return outputs

    def _launch(self) -> list[Output]:
        """Plan the next step, and let the device begin it."""
        if not self._active:
            return []
        shares = self._look()
        began = self._clock()
        plan = self._scheduler.schedule(self._pace.budget_beside(self._scheduler.decoding) // shares)
        if not (
            plan.segments or plan.admitted
        ):  # all running ones wait for their last token, or for an image
            self._image_encoder.paused = self._image_encoder.waits and not self._flights
            return self._emit_queued(began)
        self._count(plan)
        active = [self._active[segment.request.request_id] for segment in plan.segments]
        try:
            outputs = [*self._admit(plan), *self._emit_queued(began)]
        except OutOfMemory:
            return self._admit_later(plan)
        if not plan.segments:
            return outputs
        try:
            launched_step = self._compute(plan, active)
        except OutOfMemory:
            return outputs + self._make_memory(active)
        self._flights.append(_LaunchedPlan(plan, active, launched_step, began))
        if self._executor.feeds:
            self._scheduler.complete(plan, in_flight=True)
        return outputs

    def _count(self, plan: StepPlan) -> None:
        """Count a step that begins."""
        self._counts["steps"] += 1
        self._counts["cached_tokens"] += sum(max(0, one.computed - one.padding) for one in plan.admitted)
        self._counts["prefill_steps"] += bool(plan.prefills)
        self._counts["prompt_tokens"] += plan.prefill_tokens

    def _look(self) -> int:
        """Encode images for a part of a step's time. Returns the number to divide the budget of prompts by."""
        if not self._image_encoder.computes:
            return 1
        self._executor.take_all_threads()
        share = 2 if self._scheduler.decoding else 1
        if (end := self._image_encoder.work(self._pace.target_s / share)) is not None:
            self._leaving.append(end)
        return share

    def _compute(self, plan: StepPlan, active: list[ActiveRequest]) -> LaunchedStep:
        """Copy the pages that a step writes to and others hold, then launch the step. Raises OutOfMemory."""
        copies = self._scheduler.pool.copies
        if copies:
            self._executor.copy(copies)
            copies.clear()
        return self._executor.launch(
            [one.span(segment) for one, segment in zip(active, plan.segments, strict=True)]
        )

    def _collect(self) -> list[Output]:
        """Take the outcomes of a launched step. Those of requests that have ended meanwhile are dropped."""
        if not self._flights:
            return []
        flight = self._flights.popleft()
        try:
            outcomes = self._executor.fetch(flight.launched_step)
        except OutOfMemory:
            self._give_up(flight)
            return self._make_memory(flight.active)
        self.made_at = self._clock()
        if not self._executor.feeds:
            self._scheduler.complete(flight.plan)
        outputs: list[Output] = []
        for one, segment, outcome in zip(flight.active, flight.plan.segments, outcomes, strict=True):
            if self._serves(one):
                outputs += self._take(one, segment, outcome)
        self._executor.look_ahead()
        if not self._executor.feeds:
            outputs += self._emit_texts()
        plan, now = flight.plan, self._clock()
        seconds, self._done_at = now - max(flight.began, self._done_at), now
        self._step_seconds += seconds
        self._pace.observe(prefill_tokens=plan.prefill_tokens, decoding=bool(plan.decodes), seconds=seconds)
        return outputs

    def _give_up(self, flight: _LaunchedPlan) -> None:
        """Undo a step whose tokens can't be fetched, and the step after it, which depends on them."""
        if self._executor.feeds:
            for one in reversed((flight, *self._flights)):
                self._scheduler.undo(one.plan)
            self._flights.clear()

    def _serves(self, active: ActiveRequest) -> bool:
        """Whether a request has not ended yet. Another one may have its id by now."""
        return self._active.get(active.request.request_id) is active

    def _make_memory(self, active: list[ActiveRequest]) -> list[Output]:
        """Preempt a reply after a step ran out of memory. If fewer than two run, end the requests of the step."""
        outputs = self._emit_texts()
        if self._scheduler.make_memory():
            log.warning("a step ran out of memory; the newest reply waits, and is computed again later")
        else:
            why = "The device has too little memory for this request."
            for one in filter(self._serves, active):
                outputs += self._end(RequestEnd(one, FinishReason.ERROR, why))
        return outputs

    def _emit_queued(self, now: float) -> list[Output]:
        if not self._scheduler.queued or now - self._queue_reported_at < QUEUE_REPORT_EVERY_S:
            return []
        self._queue_reported_at = now
        waiting = enumerate(self._scheduler.waiting(), start=1)
        return [output for place, one in waiting for output in self._active[one.request_id].queued(place)]

    def _admit_later(self, plan: StepPlan) -> list[Output]:
        """Undo a plan whose new requests found no memory to begin. Nothing of it was computed."""
        newcomers = [self._active[request.request_id] for request in plan.admitted]
        for one in newcomers:
            one.request.started = bool(one.request.generated)
            self._scheduler.preempt(one.request)
        return self._make_memory(newcomers)

    def _take(self, active: ActiveRequest, segment: Segment, outcome: Outcome) -> list[Output]:
        match outcome:
            case None:
                return active.prefilling()
            case Deferred.LATE:
                self._scheduler.repeat(active.request)
                return []
            case Deferred.COMPLETE:
                return self._end(RequestEnd(active, FinishReason.STOP))
            case SpanFailure(error, code, valid):
                return self._end(RequestEnd(active, FinishReason.ERROR, error, code, keep=valid))
            case int() | ScoredToken():
                return self._take_token(active, segment, outcome)
            case _:
                assert_never(outcome)

    def _take_token(
        self, active: ActiveRequest, segment: Segment, outcome: int | ScoredToken
    ) -> list[Output]:
        request, guide = active.request, active.sampler_state.guide
        if guide is not None and active.is_long_enough:
            # Its last token made it long enough. If its grammar were complete, it would have ended as COMPLETE.
            return self._end(RequestEnd(active, FinishReason.LENGTH))
        token = outcome.token if isinstance(outcome, ScoredToken) else outcome
        is_first = not request.generated
        self._scheduler.take(segment, token)
        if is_first:
            self._scheduler.share(request)
        self._counts["generated_tokens"] += 1
        if self._ends_with(active, token):
            return self._end(RequestEnd(active, FinishReason.STOP))
        if isinstance(outcome, ScoredToken) and active.prepared.reply.logprobs is not None:
            active.prepared.reply.logprobs.score(outcome)
        if guide is not None:
            self._executor.advance(guide, token)
        elif active.is_long_enough:
            if self._model.translation_config is not None and self._model.translation_config.forced_end:
                return self._end(RequestEnd(active, FinishReason.LENGTH))
            return self._emit(active, token, last=True)
        self._pending_text.append((active, token))
        return []

    def _ends_with(self, active: ActiveRequest, token: int) -> bool:
        """Whether a token ends a reply. A grammar allows an end token only where the reply may end, so it always counts."""
        if active.sampler_state.guide is not None:
            return token in active.sampler_state.guide.ends
        return token in self._model.eos_ids and not active.prepared.sampling.ignore_eos

    def _emit_texts(self) -> list[Output]:
        """Return the outputs of the tokens that came last and did not end their replies."""
        pending, self._pending_text = self._pending_text, []
        return [output for active, token in pending for output in self._emit(active, token, last=False)]

    def _emit(self, active: ActiveRequest, token: int, *, last: bool) -> list[Output]:
        try:
            step = active.prepared.reply.push(token)
            active.unsent += 1
            outputs = active.outputs_of(step.pieces)
        except Exception:
            # The one broad catch of a request's text, since other requests must not notice.
            log.exception("detokenizing request %s failed", active.prepared.named)
            return self._end(RequestEnd(active, FinishReason.ERROR, NO_TEXT, flush=False))
        if step.stopped:
            return outputs + self._end(RequestEnd(active, FinishReason.STOP, flush=False))
        return outputs + self._end(RequestEnd(active, FinishReason.LENGTH)) if last else outputs

    def _end(self, end: RequestEnd) -> list[Output]:
        """Forget a request, and return its last outputs. At a cancel, text that was held back is dropped.

        The end is sent even if text can't be made or pages can't be kept.
        """
        active, last = end.active, last_outputs(end)
        if not self._serves(active):
            return []
        del self._active[active.prepared.request_id]
        self._image_encoder.forget(active)
        try:
            self._scheduler.remove(active.request, keep=end.keep)
        except Exception:  # its pages are released all the same, and a later turn only has more to compute
            log.exception("what request %s computed could not be kept", active.prepared.named)
        if active.sampler_state.guide is not None:
            active.sampler_state.guide.close()
        if not self._active:
            self._flights.clear()  # a step that nobody waits for would count idle time as its own
        if end.reason is FinishReason.CANCELLED:
            self._counts["cancels"] += 1
            self._counts["steps_after_cancel"] += active.steps_after or 0
        return last


@dataclass(frozen=True, slots=True)
class _LaunchedPlan:
    """A step that was launched: its plan, its requests, and when it began."""

    plan: StepPlan
    active: list[ActiveRequest]
    launched_step: LaunchedStep
    began: float


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """Why a request ends. `flush`: emit text that is held back. `keep`: its keys and values may serve a later turn."""

    active: ActiveRequest
    reason: FinishReason
    error: str | None = None
    code: ErrorCode = ErrorCode.INTERNAL
    flush: bool = True
    keep: bool = True


def last_outputs(end: RequestEnd) -> list[Output]:
    """Return the last outputs of a request. If its text can't be made, its end is emitted all the same."""
    active = end.active
    try:
        flushes = end.flush and end.reason is not FinishReason.CANCELLED  # nothing more after a cancel
        held_back = active.prepared.reply.flush() if flushes else ()
        return [*active.outputs_of(held_back), active.finished(end.reason, end.error, end.code)]
    except Exception:
        log.exception("detokenizing request %s failed", active.prepared.named)
        return [active.finished(FinishReason.ERROR, NO_TEXT)]


LITTLE_MEMORY = "The device has too little memory for this image."
NOT_DECODED = "The image could not be decoded."
DecodeCallback = Callable[[DecodeImage], None]


def _refused_image(active: ActiveRequest, why: str) -> RequestEnd:
    return RequestEnd(active, FinishReason.ERROR, why, ErrorCode.BAD_PARAMS)


@dataclass(slots=True, eq=False)
class _CurrentImage:
    """The image that is being encoded. `pieces`: the steps left; None until its pixels have come."""

    active: ActiveRequest
    number: int
    pieces: EncodingSteps | None = None


class ImageEncoder:
    """Encodes the images of running requests, in turn if there are several."""

    def __init__(
        self,
        vision_config: VisionConfig | None,
        request_decode: DecodeCallback | None,
        clock: Callable[[], float],
    ) -> None:
        """Take the model's vision part, the callback that requests pixels, and a clock that gives seconds."""
        self._vision_config = vision_config
        self._request_decode = request_decode
        self._clock = clock
        self._queue: FairQueue[str, ActiveRequest] = FairQueue()
        self._current: _CurrentImage | None = None
        self._states: WeakValueDictionary[str, torch.Tensor] = WeakValueDictionary()
        self.paused = False

    @property
    def computes(self) -> bool:
        """Whether there is something to compute now."""
        self._start_next()
        return self._current is not None and self._current.pieces is not None

    @property
    def waits(self) -> bool:
        """Whether the current image waits for its pixels."""
        return self._current is not None and self._current.pieces is None

    def forget(self, active: ActiveRequest) -> None:
        """Drop the images of a request that has ended."""
        if self._current is not None and self._current.active is active:
            self._current = None
        self._queue.remove(active.prepared.request_id)

    def put_image(self, image_result: ImageResult) -> RequestEnd | None:
        """Take requested pixels, or drop them if nobody waits any more. Returns the end of a request whose image has none."""
        current, look = self._current, image_result.look
        if current is None or current.pieces is not None:
            return None
        if (current.active.prepared.request_id, current.number) != (look.request_id, look.number):
            return None
        if not isinstance(image_result.answer, DecodedTiles):
            self._current = None
            return _refused_image(
                current.active,
                image_result.answer.why if isinstance(image_result.answer, Rejected) else NOT_DECODED,
            )
        assert self._vision_config is not None  # noqa: S101 - only a model that takes images asks
        side, answer = self._vision_config.tiling.side, image_result.answer
        points = torch.frombuffer(bytearray(answer.points), dtype=torch.uint8)
        current.pieces = self._vision_config.tower.look(points.view(answer.count, 3, side, side))
        return None

    def work(self, seconds: float) -> RequestEnd | None:
        """Compute for `seconds`, but at least one piece. Returns the end of a request whose image can't be encoded."""
        until = self._clock() + seconds
        while self.computes:
            current = self._current
            assert current is not None and current.pieces is not None  # noqa: S101, PT018 - as `computes` says
            try:
                with torch.inference_mode():
                    next(current.pieces)
            except StopIteration as done:
                self._image_encoded(current, done.value)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._current = None
                return _refused_image(current.active, LITTLE_MEMORY)
            if self._clock() >= until:
                break
        return None

    def _image_encoded(self, current: _CurrentImage, states: torch.Tensor) -> None:
        self._current = None
        assert current.active.image_inputs is not None  # noqa: S101 - only requests with images are here
        current.active.image_inputs.add_states(current.number, states)
        self._states[current.active.image_inputs.image(current.number).digest] = states
        self.add(current.active)
        for one in [*self._queue]:  # some of these may have waited for the same image
            self.add(one)

    def add(self, active: ActiveRequest) -> None:
        """Make a request wait for its next image, or let the request be computed if none is missing."""
        number = self._missing(active)
        active.request.waits_for_images = number is not None
        if number is not None and active.image_inputs is not None:
            prepared, tiles = active.prepared, active.image_inputs.tiles(number)
            self._queue.add(
                prepared.request_id, active, client=prepared.client, priority=prepared.priority, cost=tiles
            )
        else:
            self._queue.remove(active.prepared.request_id)

    def _missing(self, active: ActiveRequest) -> int | None:
        """Return the number of the image that a request needs next; None if it needs none."""
        image_inputs = active.image_inputs
        while (
            image_inputs is not None and (number := image_inputs.missing(active.request.computed)) is not None
        ):
            states = self._states.get(image_inputs.image(number).digest)
            if states is None:
                return number
            image_inputs.add_states(number, states)
        return None

    def _start_next(self) -> None:
        """Drop an image that nobody waits for any more, and ask for the next one."""
        if self._current is not None and self._current.active.request.slot is None:
            self._current = None
        while self._current is None and self._queue:
            _, active = self._queue.pop()
            if active.request.slot is not None and (number := self._missing(active)) is not None:
                self._current = _CurrentImage(active, number)
                prepared = active.prepared
                assert self._request_decode is not None and active.image_inputs is not None  # noqa: S101, PT018 - a model that takes images comes with one
                image = active.image_inputs.image(number)
                self._request_decode(
                    DecodeImage(prepared.request_id, number, image, prepared.client, prepared.priority)
                )
