"""A tokenizer's vocabulary as bytes, which grammars match. It is made once, since that takes up to a second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llguidance import LLTokenizer

_TRIED = '{"key": [1, "é 字 😀\\n"]}'
_PANIC = "PanicException"
"""The name of the error of a panic in a Rust library. Its class can't be imported."""


class NoGrammars(Exception):
    """Replies can't be held to grammars with this tokenizer. The message is for the operator."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a model. `size`: how many ids it has. `ends`: the ids that end a reply.

    `controls`: tokens that no text of a grammar matches. `specials`: the ids of those that have a name. `loose`: those that
    models write amid their text, such as `<think>`; the tokenizer itself does not call them special.
    """

    tokens: LLTokenizer
    size: int
    ends: tuple[int, ...]
    controls: frozenset[int]
    specials: dict[str, int]
    loose: frozenset[int]


def vocabulary_of(tokenizer: Any, *, size: int | None = None, ends: Iterable[int] = ()) -> Vocabulary:
    """Return the vocabulary of a transformers tokenizer. `size`: the model's, if it has more ids than tokens.

    `ends`: the ids that end the model's replies, or else the tokenizer's own. Raises NoGrammars.
    """
    from llguidance import hf  # noqa: PLC0415 - it imports transformers, which users of `Vocabulary` alone don't need

    ending = sorted(ends) or [one for one in (tokenizer.eos_token_id,) if one is not None]
    if not ending:
        raise NoGrammars("It has no token that ends a reply.")
    try:
        tokens = hf.from_tokenizer(tokenizer, n_vocab=size, eos_token=ending)
        read = tokens.decode_str(tokenizer(_TRIED, add_special_tokens=False)["input_ids"])
    except Exception as error:
        raise NoGrammars(str(error)) from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise NoGrammars(str(error)) from error
    if read.lstrip() != _TRIED:
        raise NoGrammars("Its tokens can't be mapped to the bytes of their text.")
    controls = frozenset(filter(tokens.is_special_token, range(tokens.vocab_size)))
    added = {id_: token for id_, token in tokenizer.added_tokens_decoder.items() if id_ in controls}
    return Vocabulary(
        tokens=tokens,
        size=tokens.vocab_size,
        ends=tuple(ending),
        controls=controls,
        specials={token.content: id_ for id_, token in added.items()},
        loose=frozenset(id_ for id_, token in added.items() if not token.special) - {*ending},
    )
