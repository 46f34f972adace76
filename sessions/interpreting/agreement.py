"""Decides which words of a hypothesis may be told while its sentence still grows. Pure.

LocalAgreement-n: those that the n - 1 hypotheses before said too (Liu et al., "Low-Latency Sequence-to-Sequence Speech
Recognition and Translation by Partial Hypothesis Selection", Interspeech 2020; Polák et al., IWSLT 2022, for n = 2). Wait-k: so
many words behind the source's (Ma et al., "STACL", ACL 2019).
"""

from __future__ import annotations

from collections.abc import Sequence

from sessions.interpreting.scripts import ends_a_sentence, units, whole_units

AGREEING = 3
"""Hypotheses in a row: a model that knows whole sentences alone invents the same end to two beginnings of one."""


def agreed_end(before: Sequence[str], now: str, committed: int, *, finished: bool) -> int:
    """Return up to where hypotheses say the same, word by word. All begin with the `committed` characters that were told.

    `before`: those before it; where they are too few nothing is agreed. `finished`: the newest one has all of its words.
    How they end the sentence is nothing to agree on: more comes.
    """
    if len(before) < AGREEING - 1:
        return committed
    hypotheses = [_without_end(whole_units(one[committed:], finished=True)) for one in before[1 - AGREEING :]]
    hypotheses.append(_without_end(whole_units(now[committed:], finished=finished)))
    end = committed
    for words in zip(*hypotheses, strict=False):
        if len(set(words)) > 1:
            break
        end += len(words[0])
    return end


def wait_k_end(now: str, committed: int, *, read: int, wait: int, finished: bool) -> int:
    """Return the end of the words that may be told, `wait` words behind the `read` words of the source."""
    allowed = read - wait - len(units(now[:committed]))
    newer = _without_end(whole_units(now[committed:], finished=finished))
    return committed + sum(map(len, newer[: max(0, allowed)]))


def _without_end(found: list[str]) -> list[str]:
    return found[:-1] if found and ends_a_sentence(found[-1]) else found
