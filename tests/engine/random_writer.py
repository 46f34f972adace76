"""Replies of a model that says anything at all: its logits are random numbers, and only the grammar makes sense of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from msgspec.structs import replace

from engine.execution.guide import Deferred, Guide, MaskWorkers, SpanFailure
from engine.execution.sampler import Sampler, SamplerState
from engine.grammar import GrammarCompiler, GrammarSource
from engine.text.reply_text import SamplingParams

SAMPLING = SamplingParams(10_000, True, 1.0, 1.0, 0, 1.0, None, None)
CLOSING = ('"', "}", "]", ",", '",', '"}', '"]', "}}", "]}")
EAGER = 5.0
"""What is added to the logits of tokens that close something: replies would hardly end without."""
LONG = 600.0


class Reply(NamedTuple):
    """What was written, and whether it ended by itself. `fault`: why it could not go on."""

    text: bytes
    ended: bool
    fault: str = ""


class RandomWriter:
    """Writes replies with the engine's own guides and sampler, several of one grammar at a time."""

    def __init__(self, compiler: GrammarCompiler, *, replies: int, tokens: int) -> None:
        """Take how many replies are written of a grammar, and how long they may be."""
        vocabulary = compiler.vocabulary
        self._compiler = compiler
        self._replies = replies
        self._tokens = tokens
        self._guides = MaskWorkers(compiler)
        self._sampler = Sampler(
            slots=replies, vocabulary=vocabulary.size, device=torch.device("cpu"), ends=vocabulary.ends
        )
        self._bias = torch.zeros(vocabulary.size)
        closing = {tokens[0] for text in CLOSING if len(tokens := vocabulary.tokens.tokenize_str(text)) == 1}
        self._bias[[*closing, *vocabulary.ends]] = EAGER

    def write(self, source: GrammarSource) -> list[Reply]:
        """Return the replies that a grammar gives, the same ones each time."""
        own = [_Written(self._guides.guide(source)) for _ in range(self._replies)]
        for slot, one in enumerate(own):
            self._guides.begin(one.guide)
            self._sampler.join(slot, SamplerState.of(replace(SAMPLING, seed=slot), one.guide), [0])
        random = torch.Generator().manual_seed(0)
        for _ in range(self._tokens):
            self._wait(own)
            ready = [slot for slot, one in enumerate(own) if one.goes_on]
            if not ready:
                break
            logits = torch.randn(len(ready), len(self._bias), generator=random) + self._bias
            for slot, token in zip(ready, self._sampler.choose(logits, ready).tolist(), strict=True):
                assert token >= 0, "a row had no token that may come"
                self._take(own[slot], token)
        self._wait(own)
        return [self._reply(one) for one in own]

    def _wait(self, own: Sequence[_Written]) -> None:
        self._guides.look_ahead()
        self._guides.wait([one.guide for one in own], LONG)

    def _take(self, one: _Written, token: int) -> None:
        if token in one.guide.ends:
            one.has_ended = True
        else:
            one.tokens.append(token)
            self._guides.advance(one.guide, token)

    def _reply(self, one: _Written) -> Reply:
        guide = one.guide
        text = self._compiler.vocabulary.tokens.decode_bytes(one.tokens)
        fault = guide.blocked.message if isinstance(guide.blocked, SpanFailure) else ""
        reply = Reply(bytes(text), one.has_ended or guide.blocked is Deferred.COMPLETE, fault)
        guide.close()
        return reply


@dataclass(slots=True)
class _Written:
    """A reply as far as it is written."""

    guide: Guide
    tokens: list[int] = field(default_factory=list)
    has_ended: bool = False

    @property
    def goes_on(self) -> bool:
        return self.guide.blocked is None and not self.has_ended
