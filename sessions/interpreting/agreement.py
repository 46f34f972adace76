"""Decides which words of a hypothesis may be told while its sentence still grows. Pure.

LocalAgreement-2: those that the previous hypothesis has, too (Polák et al., "CUNI-KIT System for Simultaneous Speech
Translation Task at IWSLT 2022"). Wait-k: the words that are k behind the source (Ma et al., "STACL", ACL 2019).
"""

from __future__ import annotations

from sessions.interpreting.scripts import ends_a_sentence, units, whole_units


def agreed_end(before: str, now: str, told: int, *, finished: bool) -> int:
    """Return the end of the words on which two hypotheses agree. Both begin with the `told` characters.

    `finished`: the newer one is complete. The last word of its sentence does not count, since more text follows.
    """
    older = _without_end(whole_units(before[told:], finished=True))
    newer = _without_end(whole_units(now[told:], finished=finished))
    end = told
    for one, other in zip(older, newer, strict=False):
        if one != other:
            break
        end += len(one)
    return end


def waited_end(now: str, told: int, *, read: int, wait: int, finished: bool) -> int:
    """Return the end of the words that may be told, `wait` words behind the `read` words of the source."""
    allowed = read - wait - len(units(now[:told]))
    newer = _without_end(whole_units(now[told:], finished=finished))
    return told + sum(map(len, newer[: max(0, allowed)]))


def _without_end(found: list[str]) -> list[str]:
    return found[:-1] if found and ends_a_sentence(found[-1]) else found
