"""A thread for each request, each in transformers' `generate` with a streamer: the usual first design."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from tests.bench.engine.contender import TEMPERATURE, TOP_P, ContenderFailed, GenerationRequest, TokenUpdate

WAIT_S = 0.05


class _Streamer(BaseStreamer):
    """Reports each token; `generate` passes the prompt first, which is not one."""

    def __init__(self, name: str, news: SimpleQueue[TokenUpdate | Exception]) -> None:
        self._name = name
        self._news = news
        self._seen_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Take the prompt, then each token; `generate` calls it."""
        if self._seen_prompt:
            self._news.put(TokenUpdate(self._name, value.numel(), ended=False))
        self._seen_prompt = True

    def end(self) -> None:
        """Do nothing at the end, which is reported once the thread is done; `generate` calls it."""


class _Stopped(StoppingCriteria):
    """Ends one generation on request."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return one truth value per row; `generate` calls it after each token."""
        return torch.full((len(input_ids),), self.event.is_set(), device=input_ids.device)


class ThreadPerRequest:
    """The model, and a thread for each of its requests."""

    def __init__(self, folder: str, dtype: str) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self._model = model.eval()
        self._news: SimpleQueue[TokenUpdate | Exception] = SimpleQueue()
        self._running: dict[str, _Stopped] = {}

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """See `Contender`. Requests share the cores: more compute threads than cores are slower."""
        share = max(1, (os.cpu_count() or 1) // len(requests))
        for request in requests:
            stopped = self._running[request.name] = _Stopped()
            threading.Thread(target=self._generate, args=(request, stopped, share), daemon=True).start()

    def wait(self) -> Sequence[TokenUpdate]:
        """See `Contender`."""
        try:
            news = self._news.get(timeout=WAIT_S)
        except Empty:
            return []
        if isinstance(news, Exception):
            raise ContenderFailed(f"generate failed: {news}") from news
        return [news]

    def cancel(self, name: str) -> None:
        """See `Contender`."""
        if stopped := self._running.get(name):
            stopped.event.set()

    def close(self) -> None:
        """See `Contender`."""
        for stopped in list(self._running.values()):
            stopped.event.set()

    def _generate(self, request: GenerationRequest, stopped: _Stopped, compute_threads: int) -> None:
        try:
            torch.set_num_threads(compute_threads)  # OpenMP's own count for this thread
            with torch.inference_mode():
                self._call(request, stopped)
        except Exception as error:  # noqa: BLE001 - the boundary of this thread; the reader raises it
            self._news.put(error)
        finally:
            del self._running[request.name]
            self._news.put(TokenUpdate(request.name, 0, ended=True))

    def _call(self, request: GenerationRequest, stopped: _Stopped) -> None:
        ids = torch.tensor([list(request.prompt)])
        self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=request.new_tokens,
            do_sample=True,
            temperature=TEMPERATURE,
            top_p=TOP_P,
            top_k=0,
            pad_token_id=0,
            streamer=_Streamer(request.name, self._news),
            stopping_criteria=StoppingCriteriaList([stopped]),
        )
