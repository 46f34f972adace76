"""Makes the grammar of a spec, or says why there is none. It remembers the outcomes of trials."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from engine.errors import PromptRejected
from engine.grammar.grammar_writer import GrammarWriter
from engine.grammar.source import GrammarSource
from engine.reply_spec import ReplySpec

TRIED = 1024
"""The most outcomes of trials that are remembered: a digest and a sentence each."""

Trial = Callable[[GrammarSource], str]
"""Returns what is wrong with a grammar, or an empty string."""


class GrammarMaker:
    """Makes grammars, and remembers which of them can be used. For one thread."""

    def __init__(self, writer: GrammarWriter, trial: Trial, *, opened: GrammarWriter | None = None) -> None:
        """Take a writer and a trial. `opened`: the writer for replies whose thoughts the prompt has opened."""
        self._writers = (writer, opened or writer)
        self._trial = trial
        self._tried: OrderedDict[bytes, str] = OrderedDict()

    def make(self, spec: ReplySpec, *, opened: bool = False) -> GrammarSource | None:
        """Return the grammar of a reply; None if the reply is free. Raises PromptRejected if its spec can't be followed.

        `opened`: the prompt has opened the thoughts.
        Schemas of tools that are not strict are no reason: if they can't be followed, the arguments may be any object.
        """
        writer = self._writers[opened]
        source = writer.write(spec)
        if source is None or not (fault := self._fault(source)):
            return source
        field = self._field_at_fault(writer, spec)
        if field == "tools":
            simpler = writer.write(spec, exact=False)
            if simpler is not None and not self._fault(simpler):
                return simpler
        raise PromptRejected(f"The {field} can't be followed: {fault}", field=field)

    def _field_at_fault(self, writer: GrammarWriter, spec: ReplySpec) -> str:
        if spec.format is None:
            return "tools"
        alone = writer.write(msgspec.structs.replace(spec, tools=(), tool_choice="auto"))
        return "format" if alone is not None and self._fault(alone) else "tools"

    def _fault(self, source: GrammarSource) -> str:
        digest = source.digest
        if digest not in self._tried:
            self._tried[digest] = self._trial(source)
            if len(self._tried) > TRIED:
                self._tried.popitem(last=False)
        self._tried.move_to_end(digest)
        return self._tried[digest]
