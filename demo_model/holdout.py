"""Decides, by hash alone, which values and wordings training may never see.

Knows nothing of what the texts mean; the same text is held out on every machine and in every run.
"""

import enum
import random
import zlib
from collections.abc import Callable, Sequence


class Split(enum.Enum):
    """The side of the hold-out a dialogue is written for."""

    TRAIN = "train"
    HELD_OUT = "held-out"


# Too common for a model that people try out to stumble over.
_ALWAYS_TRAINED = frozenset({"colour:green", "time wording:how late is it?"})


def held_out(key: str) -> bool:
    """Whether `key` (any case) is among the tenth that only the evaluation may use."""
    return (
        key.casefold() not in _ALWAYS_TRAINED and zlib.crc32(f"held out? {key.casefold()}".encode()) % 10 == 0
    )


def chance(rng: random.Random, share: float) -> bool:
    """True in `share` of all calls."""
    return rng.random() < share


def draw(split: Split, kind: str, make: Callable[[], str]) -> str:
    """Call `make` until it returns a value of the wanted split; `kind` keeps the name Rose and the colour rose apart."""
    while True:
        value = make()
        if held_out(f"{kind}:{value}") == (split is Split.HELD_OUT):
            return value


def pick(rng: random.Random, split: Split, kind: str, values: Sequence[str]) -> str:
    """A value of `values` from the wanted split.

    Raises:
        ValueError: no value of this kind lies in that split.

    """
    wanted = split is Split.HELD_OUT
    allowed = [value for value in values if held_out(f"{kind}:{value}") == wanted]
    if not allowed:
        raise ValueError(f"no {kind} is {split.value}")
    return rng.choice(allowed)
