"""Names of languages, for prompts, and their codes in models that translate. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages import Languages

AUTO = "auto"
"""The source is in whichever language it is."""
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
"""Names, and the codes of three letters (ISO 639-3) that NLLB has; where a language has several, the most spoken one's."""


def language_name(tag: str) -> str:
    """Return the English name of a language by its tag (`zh`, `pt-BR`); one that is not known is its own name."""
    primary, _, region = tag.partition("-")
    if (known := _KNOWN.get(primary.lower())) is None:
        return tag
    return f"{known[0]} ({region})" if region else known[0]


def language_code(tag: str, codes: Sequence[str]) -> str | None:
    """Return a language as a model names it, whose codes these are; None: it has no such.

    By the code itself, else the first one of the same language: `zh` is `zho_Hans` to NLLB, `zh-Hant` is `zho_Hant`.
    """
    if tag in codes:
        return tag
    primary, script = _parts(tag)
    same = [code for code in codes if _parts(code)[0] == primary]
    return next((code for code in same if _parts(code)[1] == script), same[0] if same else None)


def has_languages(known: Languages, source: str, target: str) -> bool:
    """Tell whether a model translates from one language to another. A source that is not told is any."""
    sources = not source or source == AUTO or language_code(source, known.sources) is not None
    return sources and (not target or language_code(target, known.targets) is not None)


def _parts(tag: str) -> tuple[str, str]:
    """The language of a tag or a code, by three letters where they are known, and what stands behind it."""
    primary, _, rest = tag.replace("_", "-").lower().partition("-")
    return (_KNOWN[primary][1] if primary in _KNOWN else primary), rest
