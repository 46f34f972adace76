"""The words that tell T5 and its kin their task in front of a text, as their configuration names them."""

from __future__ import annotations

import re
from typing import Any

from engine.errors import PromptRejected

_TRANSLATION = re.compile(r"translation_([a-z]{2,3})_to_([a-z]{2,3})")


class TaskPrefixes:
    """The translation tasks of one model. A text without a target is passed on unchanged: it may name its task itself."""

    def __init__(self, config: Any) -> None:
        """Take a model's configuration, whose list of tasks may be missing."""
        named: dict[str, Any] = getattr(config, "task_specific_params", None) or {}
        self._prefixes: dict[tuple[str, str], str] = {
            (found[1], found[2]): task.get("prefix", "")
            for name, task in named.items()
            if (found := _TRANSLATION.fullmatch(name)) and isinstance(task, dict)
        }
        self.sources = tuple(dict.fromkeys(source for source, _ in self._prefixes))
        self.targets = tuple(dict.fromkeys(target for _, target in self._prefixes))

    def with_prefix(self, text: str, source: str, target: str) -> str:
        """Return a text behind the words that tell the model to translate it. Raises PromptRejected."""
        if not target:
            if source:
                raise PromptRejected("Say the target language, too, or leave both out.", field="target")
            return text
        known = {pair: prefix for pair, prefix in self._prefixes.items() if pair[1] == target}
        if not known:
            raise PromptRejected(self._lacking(target), field="target")
        pairs = [pair for pair in known if source in ("", pair[0])]
        if not pairs:
            listed = ", ".join(pair[0] for pair in known)
            raise PromptRejected(f"The model translates into {target!r} from {listed} alone.", field="source")
        return known[pairs[0]] + text

    def _lacking(self, target: str) -> str:
        if not self.targets:
            return "The model names no languages: leave target out, and say in the text what to do."
        return f"The model has no target language {target!r}; it has {', '.join(self.targets)}."
