"""Names of languages for prompts, and their codes in translation models. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from engine.messages import Languages

_SPACELESS = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
    r"\u3001-\u303f\u30fc\uff01-\uff65"
)
"""Scripts that put no blanks between words, and East Asian punctuation."""
_UNIT = regex.compile(rf"\s*(?:[{_SPACELESS}]\p{{M}}*+|[^\s{_SPACELESS}]++)")
_OPEN_WORD = regex.compile(rf"(?V1)[[\p{{L}}\p{{M}}\p{{N}}\p{{Pc}}'\u2019\-]--[{_SPACELESS}]]+\Z")
_IS_SPACELESS = regex.compile(rf"[{_SPACELESS}]")
SENTENCE_ENDS = frozenset(".!?…。！？｡．؟۔।॥։።။៕")  # noqa: RUF001 - of all scripts
"""Marks that end a sentence."""
ENDS_AT_ONCE = SENTENCE_ENDS - frozenset(".!?…")
"""Marks that end a sentence even without a blank after them."""

CLOSERS = frozenset("\"'”’»)]}」』）】〉》")  # noqa: RUF001 - of all scripts
"""Characters that may follow such a mark and belong to its sentence."""
_CLOSING = "".join(sorted(CLOSERS))


def units(text: str) -> list[str]:
    """Return the words of a text, each with the white space before it; in scripts without blanks, the characters."""
    found: list[str] = _UNIT.findall(text)
    return found


def whole_units(text: str, *, finished: bool) -> list[str]:
    """Return the units that will not change when more text follows; of a `finished` text, all."""
    found = units(text)
    if found and not finished and text[-1:].strip() and not is_spaceless(found[-1][-1:]):
        found.pop()
    return found


def whole_words(text: str) -> int:
    """Return the length of the text without an unfinished word at its end."""
    unfinished = _OPEN_WORD.search(text)
    return len(text) if unfinished is None else unfinished.start()


def is_spaceless(character: str) -> bool:
    """Return whether a character belongs to a script without blanks between words."""
    return _IS_SPACELESS.match(character) is not None


def ends_a_sentence(text: str) -> bool:
    """Return whether a text ends as a sentence does."""
    bare = text.rstrip().rstrip(_CLOSING)
    return bool(bare) and bare[-1] in SENTENCE_ENDS


def joint(before: str, skipped: str) -> str:
    """Return the separator between the translations of two segments, for the white space between the segments.

    `before`: the text so far. A new line in the source begins a new line in the target.
    """
    if not before:
        return ""
    if lines := skipped.count("\n"):
        return "\n" * min(lines, 2)
    return "" if ends_a_sentence(before) and is_spaceless(before[-1]) else " "


AUTO = "auto"
"""The language of the source is not given."""
_KNOWN = {
    "ar": ("Arabic", "ara"),
    "bg": ("Bulgarian", "bul"),
    "bn": ("Bengali", "ben"),
    "ca": ("Catalan", "cat"),
    "cs": ("Czech", "ces"),
    "da": ("Danish", "dan"),
    "de": ("German", "deu"),
    "el": ("Greek", "ell"),
    "en": ("English", "eng"),
    "es": ("Spanish", "spa"),
    "et": ("Estonian", "est"),
    "fa": ("Persian", "pes"),
    "fi": ("Finnish", "fin"),
    "fr": ("French", "fra"),
    "he": ("Hebrew", "heb"),
    "hi": ("Hindi", "hin"),
    "hr": ("Croatian", "hrv"),
    "hu": ("Hungarian", "hun"),
    "id": ("Indonesian", "ind"),
    "it": ("Italian", "ita"),
    "ja": ("Japanese", "jpn"),
    "ko": ("Korean", "kor"),
    "lt": ("Lithuanian", "lit"),
    "lv": ("Latvian", "lvs"),
    "ms": ("Malay", "zsm"),
    "nl": ("Dutch", "nld"),
    "no": ("Norwegian", "nob"),
    "pl": ("Polish", "pol"),
    "pt": ("Portuguese", "por"),
    "ro": ("Romanian", "ron"),
    "ru": ("Russian", "rus"),
    "sk": ("Slovak", "slk"),
    "sl": ("Slovenian", "slv"),
    "sr": ("Serbian", "srp"),
    "sv": ("Swedish", "swe"),
    "sw": ("Swahili", "swh"),
    "ta": ("Tamil", "tam"),
    "th": ("Thai", "tha"),
    "tr": ("Turkish", "tur"),
    "uk": ("Ukrainian", "ukr"),
    "ur": ("Urdu", "urd"),
    "vi": ("Vietnamese", "vie"),
    "zh": ("Chinese", "zho"),
}
"""Names, and NLLB's codes of three letters (ISO 639-3); for a language with several, that of the most spoken one."""


def language_name(tag: str) -> str:
    """Return the English name of a language by its tag (`zh`, `pt-BR`); an unknown tag is its own name."""
    primary, _, region = tag.partition("-")
    if (known := _KNOWN.get(primary.lower())) is None:
        return tag
    return f"{known[0]} ({region})" if region else known[0]


def language_code(tag: str, codes: Sequence[str]) -> str | None:
    """Return a model's code for a language, among `codes`; None if it has none.

    The same code, else the first one of the same language: `zh` is `zho_Hans` in NLLB, `zh-Hant` is `zho_Hant`.
    """
    if tag in codes:
        return tag
    primary, script = _parts(tag)
    same = [code for code in codes if _parts(code)[0] == primary]
    return next((code for code in same if _parts(code)[1] == script), same[0] if same else None)


def has_languages(known: Languages, source: str, target: str) -> bool:
    """Return whether a model translates between two languages. `AUTO` as the source: from any of them."""
    sources = not source or source == AUTO or language_code(source, known.sources) is not None
    return sources and (not target or language_code(target, known.targets) is not None)


def _parts(tag: str) -> tuple[str, str]:
    """Return the language of a tag or a code, with three letters if they are known, and the rest of it."""
    primary, _, rest = tag.replace("_", "-").lower().partition("-")
    return (_KNOWN[primary][1] if primary in _KNOWN else primary), rest
