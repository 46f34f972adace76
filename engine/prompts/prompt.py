"""Turns messages into the token ids of a prompt: with the chat template of the model's tokenizer, or for a translation.

One prompt is made at a time, no more of it than fits the context window. Knows no process.
"""

from __future__ import annotations

import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, NamedTuple

import jinja2
import msgspec

from engine.errors import PromptRejected
from engine.grammar import GrammarMaker, GrammarSource, TrialPostponed
from engine.history import normalized
from engine.loading.tokenizer import TranslationTokenizer
from engine.messages import PLAIN, Message, ReplySpec, Translation
from engine.prompts.chat_template import (
    ChatTemplate,
    ControlTokens,
    Mark,
    as_is,
    template_messages,
    template_tools,
)
from engine.prompts.jobs import (
    Answer,
    BuildPrompt,
    BuiltPrompt,
    DecodedTiles,
    DecodeImage,
    Prompt,
    Rejected,
    Stopped,
    TooLong,
    characters,
    without_images,
)
from engine.text.formats import ReplyFormat
from engine.vision.image import IMAGE, Grid, Image, Tiling
from engine.vision.processor import DAMAGED, TURNING, ImageNotDecodable, ImageProcessor

CHARS_A_TOKEN = 6
"""A text with more characters for each token of the window hardly fits, so its tokens are counted piece by piece first."""

PIECE_CHARS = 16_384

NO_GRAMMARS = "Replies of this model can't be held to a format: its tokenizer does not allow it."

CUT_TOKENS = 4
"""The most tokens that a cut adds: two parts of a text may have this many more than the whole."""

log = logging.getLogger(__name__)


class JobHandler:
    """Answers the jobs of one model."""

    def __init__(
        self,
        prompts: PromptBuilder | TranslationBuilder,
        grammars: GrammarMaker | None = None,
        prompt_images: PromptImages | None = None,
    ) -> None:
        """Take the builder of the model's prompts. `grammars`: None if replies can't be held to any with this tokenizer.

        `prompt_images`: None if the model takes no images.
        """
        self._prompts = prompts
        self._prompt_images = prompt_images
        self._grammars = grammars

    def decode_image(self, job: DecodeImage) -> Answer:
        """Return the pixels of an image."""
        return (
            Rejected("This model takes no images.")
            if self._prompt_images is None
            else self._prompt_images.tiles(job)
        )

    def build(self, job: BuildPrompt, stops: Callable[[], bool]) -> Answer:
        """Return the answer to a job. Calls `stops` now and then: True means that nobody waits for the answer."""
        try:
            return self._build(job, stops)
        except PromptRejected as error:
            return Rejected(str(error), error.field)
        except TrialPostponed:
            return Stopped()
        except Exception:
            # The one broad catch for a prompt, since a failure must not end the process for the others.
            log.exception("building a prompt failed")
            return Rejected("The prompt could not be prepared.")

    def _build(self, job: BuildPrompt, stops: Callable[[], bool]) -> Answer:
        if characters(job.messages, job.spec) > CHARS_A_TOKEN * job.window:
            tokens = self._least_tokens(job, stops)
            if tokens is None:
                return Stopped()
            if tokens >= job.window:
                return TooLong(tokens)
        prompt = self._prompts.prompt(job.messages, job.spec)
        tokens = len(prompt.source) + len(prompt.token_ids)
        grammar = self._grammar(job.spec, opened=bool(prompt.opened.strip()))
        if job.counts:
            return BuiltPrompt(tokens)
        if tokens >= job.window:
            return TooLong(tokens)
        shared = 0  # a translation has no system prompt
        if job.shares_system and isinstance(self._prompts, PromptBuilder):
            shared = self._prompts.system_tokens(job.messages, prompt.token_ids, job.spec)
        return BuiltPrompt(tokens, prompt, shared, grammar)

    def _grammar(self, spec: ReplySpec, *, opened: bool) -> GrammarSource | None:
        """Return the grammar of a reply. `opened`: the prompt has opened the thoughts. Raises PromptRejected."""
        if self._grammars is not None:
            return self._grammars.make(spec, opened=opened)
        if spec.format is not None or spec.tool_choice in {"required", "named"}:
            raise PromptRejected(NO_GRAMMARS, field="tools" if spec.format is None else "format")
        return None

    def _least_tokens(self, job: BuildPrompt, stops: Callable[[], bool]) -> int | None:
        """Return a lower bound of a prompt's tokens, counted until it reaches the window. None: nobody waits."""
        tokens = 0
        text = self._prompts.rendered(job.messages, job.spec)
        for start in range(0, len(text), PIECE_CHARS):
            if stops():
                return None
            tokens += max(0, self._prompts.count(text[start : start + PIECE_CHARS]) - CUT_TOKENS)
            if tokens >= job.window:
                break
        return tokens


MAX_BROKEN_IMAGES = 1024
"""How many undecodable images are remembered. Later turns of their conversations do without them."""

FIELD = "attachments"
"""The field of errors about images."""

NO_PLACE = "The model's chat template has no place for one of the images."
_SYSTEMS_KNOWN = 64


def images_of(messages: Iterable[Message]) -> list[Image]:
    """Return the images of a prompt, in order."""
    return [image for message in messages for image in message.images]


class PromptImages:
    """Puts images into the prompts of one model. For one thread at a time."""

    def __init__(self, image_processor: ImageProcessor) -> None:
        """Take the decoder of images."""
        self._image_processor = image_processor
        self._broken: OrderedDict[str, None] = OrderedDict()

    @property
    def tiling(self) -> Tiling:
        """How images are cut into tiles."""
        return self._image_processor.tiling

    def known(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages with a note in place of each image that is known to be broken.

        This includes the last message, which may repeat an image that failed before.
        """
        return without_images(messages, self._broken) if self._broken else messages

    def words(self, images: Iterable[Image]) -> list[str]:
        """Return the words that replace each image in a rendered prompt. Raises PromptRejected."""
        return [self.tiling.words(self._grid(image)) for image in images]

    def starts(
        self, token_ids: Sequence[int], images: Sequence[Image], token: int
    ) -> tuple[tuple[int, ...], ...]:
        """Return where the tokens of each image's tiles begin. `token`: the image token's id. Raises PromptRejected."""
        places = [place for place, one in enumerate(token_ids) if one == token]
        counts, of_tile = [self.tiling.tiles(self._grid(image)) for image in images], self.tiling.tokens
        starts = places[::of_tile]
        if len(places) != sum(counts) * of_tile or places[of_tile - 1 :: of_tile] != [
            start + of_tile - 1 for start in starts
        ]:
            raise PromptRejected(NO_PLACE)
        made, done = [], 0
        for count in counts:
            made.append(tuple(starts[done : done + count]))
            done += count
        return tuple(made)

    def tiles(self, look: DecodeImage) -> DecodedTiles | Rejected:
        """Return the pixels of an image's tiles, or why it can't be decoded."""
        try:
            points = self._image_processor.tiles(look.image)
        except ImageNotDecodable as why:
            return Rejected(self._broke(look.image, str(why)))
        except Exception:
            # The one broad catch for an image: a decoder may raise anything, and this process serves others, too.
            log.exception("an image of %d bytes could not be decoded", len(look.image.data))
            return Rejected(DAMAGED)
        return DecodedTiles(points.tobytes(), len(points))

    def _broke(self, image: Image, why: str) -> str:
        """Remember a broken image, if its bytes were there: one without them may be sound elsewhere. Returns `why`."""
        if image.data:
            self._broken[image.digest] = None
        while len(self._broken) > MAX_BROKEN_IMAGES:
            self._broken.popitem(last=False)
        return why

    def _grid(self, image: Image) -> Grid:
        """Return how an image is cut into tiles. Raises PromptRejected.

        Without an image's bytes, its orientation may be unknown: then the grid with more rows counts.
        """
        try:
            width, height = self._image_processor.size(image)
        except ImageNotDecodable as why:
            raise PromptRejected(self._broke(image, str(why)), field=FIELD) from why
        upright = self.tiling.grid(width, height)
        if image.data or image.media_type not in TURNING:
            return upright
        return max(upright, self.tiling.grid(height, width))


class Rendered(NamedTuple):
    """A prompt's text. `begun`: the beginning of a reply that is continued, which follows the text.

    `opened`: words of the template at the end of the text that belong to the reply. `disguised`: `text` and `begun`, with
    everything that the template did not write disguised.
    """

    text: str
    begun: str = ""
    opened: str = ""
    disguised: tuple[str, str] = ("", "")


class Renderer:
    """Renders the prompts of one model."""

    def __init__(self, tokenizer: Any, format_: ReplyFormat | None, *, takes_images: bool = False) -> None:
        """Take a transformers tokenizer with a chat template, and its model's reply format. `takes_images`: the model does."""
        self.template = ChatTemplate(tokenizer, parts=takes_images)
        self.tokens = ControlTokens(tokenizer, self.template.text, format_.markers if format_ else ())
        self._format = format_
        self._warned = False

    @property
    def takes_tools(self) -> bool:
        """Whether the model can be shown tools and results of calls, and its calls can be read."""
        return self.template.calls is not None and self._format is not None and self._format.has_calls

    @property
    def features(self) -> tuple[str, ...]:
        """The parts of a spec that prompts follow, as in `ModelFacts`."""
        known = {
            "tools": self.takes_tools,
            "reasoning": self.template.switches_reasoning,
            "effort": self.template.knows_efforts,
            "template": True,
            "continue": True,
            "images": self.template.shows_images,
        }
        return tuple(name for name, is_known in known.items() if is_known)

    def render(
        self, messages: Sequence[Message], spec: ReplySpec = PLAIN, *, disguises: bool = True
    ) -> Rendered:
        """Return the prompt that asks for the assistant's reply to these messages, or for more of the last one.

        `disguises`: return the disguised text, too. Raises PromptRejected if the spec can't be followed, and whatever
        templates and transformers raise.
        """
        if spec.shown_tools and not self.takes_tools:
            raise PromptRejected("The model can't be shown tools.", field="tools")
        known = normalized(messages, self.template.rules, continues=spec.continues)
        if spec.continues and (not known or known[-1].role != "assistant"):
            raise PromptRejected("There is no reply to continue.", field="continues")
        render = self._continued if spec.continues else self._render
        made = render(known, spec, as_is)
        if not disguises:
            return made
        disguised = self._disguised(partial(render, known, spec))
        return made._replace(disguised=(disguised.text, disguised.begun))

    def _disguised(self, render: Callable[[Mark], Rendered]) -> Rendered:
        """Return a prompt with everything that the template did not write disguised.

        If the template fails on that, only control tokens are disguised; the prompt may have just those that it has with
        blank texts. Raises PromptRejected.
        """
        tokens, fails = self.tokens, False
        try:
            made = render(tokens.disguised)
        except Exception as error:  # noqa: BLE001 - a template may raise anything for texts that it does not know
            fails = True
            if not self._warned:
                log.warning("chat template failed on disguised text: %s", type(error).__name__)
            self._warned = True
            made = render(tokens.quoted)
        if fails or tokens.are_cut(made.text):
            blank = render(tokens.blank).text
            made = made._replace(text=tokens.settled(made.text, blank))
            if fails and tokens.written(made.text) != tokens.written(blank):
                raise PromptRejected(
                    "The chat template makes control tokens of the messages. Change their words."
                )
        return made

    def _render(
        self, known: Sequence[Message], spec: ReplySpec, mark: Mark, *, continues: bool = False
    ) -> Rendered:
        tools, variables = template_tools(spec.shown_tools, mark), self.template.variables(spec)
        values: dict[str, Any] = {name: mark([value])[0] for name, value in variables.items()}
        made = template_messages(known, self.template.style, mark)
        text = self.template.render(made, tools, values, continues=continues)
        return Rendered(text, opened="" if self._format is None else self._format.opening(text))

    def _continued(self, messages: Sequence[Message], spec: ReplySpec, mark: Mark) -> Rendered:
        """Return the prompt of the last message, followed by that message: both were computed before.

        If the template opens reasoning that the message lacks, its prompt was another one; the template renders both.
        """
        last = messages[-1]
        prompt = self._render(messages[:-1], spec, mark)
        begun = self._with_reasoning(messages, spec, prompt, mark) if last.reasoning else None
        if begun is None and prompt.opened:
            made = self._render(messages, spec, mark, continues=True)
            return made._replace(opened=last.content)
        return prompt._replace(begun=mark(last.content) if begun is None else begun)

    def _with_reasoning(
        self, messages: Sequence[Message], spec: ReplySpec, prompt: Rendered, mark: Mark
    ) -> str | None:
        """Return a reply with its reasoning as the template writes it; None if the template leaves reasoning out.

        `prompt`: the reply's, which the result must follow. Raises PromptRejected if reasoning alone has no place.
        """
        last = messages[-1]
        if prompt.opened and not last.content:
            return str(mark(last.reasoning))
        thought, word = (f"w{secrets.token_hex(6)}{end}" for end in ("tz", "cz"))
        other = Message("assistant", word if last.content else "", reasoning=thought)
        shown = self._render([*messages[:-1], other], spec, mark).text
        ends = [shown.find(each) + len(each) for each in (thought, word) if each in shown]
        if not shown.startswith(prompt.text) or len(ends) != 1 + bool(last.content):
            if not last.content:
                why = "The model's chat template has no place for reasoning that is continued."
                raise PromptRejected(why, field="continues")
            return None
        raw = shown[len(prompt.text) : max(ends)]
        return raw.replace(thought, mark(last.reasoning)).replace(word, mark(last.content))


class PromptBuilder:
    """Renders and tokenizes prompts for one tokenizer. For one thread at a time."""

    def __init__(
        self, tokenizer: Any, format_: ReplyFormat | None = None, prompt_images: PromptImages | None = None
    ) -> None:
        """Take a transformers tokenizer with a chat template, and how its model writes replies; try what both support.

        `prompt_images`: None if the model takes no images.
        """
        self._tokenizer = tokenizer
        self._prompt_images = prompt_images
        self._renderer = Renderer(tokenizer, format_, takes_images=prompt_images is not None)
        self._system_beginning = lru_cache(_SYSTEMS_KNOWN)(self._beginning_of_system)

    @property
    def features(self) -> tuple[str, ...]:
        """The parts of a `ReplySpec` that its prompts follow."""
        return self._renderer.features

    def token_ids(self, messages: Sequence[Message], spec: ReplySpec = PLAIN) -> list[int]:
        """Return the tokens of `prompt`. Raises PromptRejected."""
        return self.prompt(messages, spec).token_ids

    def prompt(self, messages: Sequence[Message], spec: ReplySpec = PLAIN) -> Prompt:
        """Return the prompt that asks for the assistant's reply to these messages, or for more of the last one.

        The template writes every control token itself, the first one included. If anybody else spells one out, even the
        assistant, it is plain text: what a model was made to say must forge no role in its next turn. If the template
        has no system role, the system prompt goes in front of the first user message.

        Raises PromptRejected.
        """
        if spec.translation is not None:
            raise PromptRejected("This model does not translate; name one that does.", field="target")
        if self._prompt_images is not None:
            messages = self._prompt_images.known(messages)
        with _refusals():
            rendered = self._looked_up(self._renderer.render(messages, spec), messages)
            token_ids, begun = _some(self._encoded(rendered.text)), self._encoded_behind(rendered.begun)
            made = Prompt(token_ids + begun, rendered.opened, len(begun))
            text, disguised = rendered.text + rendered.begun, "".join(rendered.disguised)
            if not self._renderer.tokens.are_the_templates(made.token_ids, text, disguised):
                made = self._apart(rendered)
        return self._placed(made, messages)

    def _looked_up(self, rendered: Rendered, messages: Sequence[Message]) -> Rendered:
        """Return a prompt with the words for its images. Raises PromptRejected."""
        if self._prompt_images is None or not (images := images_of(messages)):
            return rendered
        tokens, words = self._renderer.tokens, self._prompt_images.words(images)
        disguised = tokens.replaced(rendered.disguised[0], IMAGE, words)
        if disguised is None:
            raise PromptRejected(NO_PLACE)
        text = tokens.replaced(rendered.text, IMAGE, words)
        if text is None:  # people's texts have the word, too
            text = tokens.true(disguised)
        return rendered._replace(text=text, disguised=(disguised, rendered.disguised[1]))

    def _placed(self, prompt: Prompt, messages: Sequence[Message]) -> Prompt:
        """Return a prompt with the places of its images. Raises PromptRejected."""
        if self._prompt_images is None or not (images := images_of(messages)):
            return prompt
        token = self._tokenizer.convert_tokens_to_ids(IMAGE)
        starts = self._prompt_images.starts(prompt.token_ids, images, token)
        return msgspec.structs.replace(
            prompt, shown=tuple((image.digest, of_one) for image, of_one in zip(images, starts, strict=True))
        )

    def rendered(self, messages: Sequence[Message], spec: ReplySpec = PLAIN) -> str:
        """Return the text that the template makes of messages, which is never longer than the prompt's text.

        Raises PromptRejected.
        """
        with _refusals():
            rendered = self._renderer.render(messages, spec, disguises=False)
        return rendered.text + rendered.begun

    def count(self, text: str) -> int:
        """Return how many tokens a piece of a prompt has by itself. Raises PromptRejected."""
        with _refusals():
            return len(self._encoded(text))

    def system_tokens(
        self, messages: Sequence[Message], prompt: Sequence[int], spec: ReplySpec = PLAIN
    ) -> int:
        """Return how many of the prompt's first tokens are the system prompt's, whatever the user writes after it.

        It is 0 without a system prompt, or if the template puts that elsewhere in longer conversations. Tokens after
        anything that one request adds, such as tools, are not counted. Raises PromptRejected.
        """
        if not messages or messages[0].role != "system":
            return 0
        beginning = self._system_beginning(messages[0].content)
        known = _common(beginning, prompt)
        return known if known == len(beginning) or spec.shown_tools or spec.template else 0

    def _beginning_of_system(self, system: str) -> list[int]:
        message = Message("system", system)
        ways = [self.token_ids([message, Message("user", text)]) for text in ("Hello.", "One")]
        return ways[0][: _common(*ways)]

    def _apart(self, rendered: Rendered) -> Prompt:
        """Return a prompt in which the control tokens that the template did not write are plain text."""
        text, begun = rendered.disguised
        token_ids, behind = _some(self._pieces(text)), self._pieces(begun, behind=True)
        return Prompt(token_ids + behind, rendered.opened, len(behind))

    def _pieces(self, disguised: str, *, behind: bool = False) -> list[int]:
        """Return the tokens of a disguised text, piece by piece. `behind`: it follows another text."""
        tokens, made = self._renderer.tokens, list[int]()
        for token, text in tokens.parts(disguised):
            whole = self._encoded(token + text) if token or not behind else self._encoded_behind(text)
            known = [tokens.id_of[token]] if token else []
            is_apart = whole[: len(known)] == known and tokens.are_text(whole[len(known) :], text)
            made += whole if is_apart else known + self._as_text(text)
        return made

    def _as_text(self, text: str) -> list[int]:
        """Return a text's tokens with no control token among them: each is cut in two, and spelled in parts."""
        made, cuts = list[int](), [text]
        while cuts:
            piece = cuts.pop()
            token_ids = self._encoded_behind(piece)
            if self._renderer.tokens.are_text(token_ids, piece):
                made += token_ids
            elif len(piece) > 1:
                cuts += reversed(self._cut(piece))
        return made

    def _cut(self, text: str) -> list[str]:
        """Return a text in pieces that end in the middle of its control tokens."""
        middles: list[int] = []
        if self._tokenizer.is_fast:
            found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            spans = zip(found["input_ids"], found["offset_mapping"], strict=True)
            controls = [span for id_, span in spans if id_ in self._renderer.tokens.ids]
            middles = sorted({(start + end) // 2 for start, end in controls if end - start > 1})
        ends = [*(middles or [len(text) // 2]), len(text)]
        return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _encoded(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids

    def _encoded_behind(self, text: str) -> list[int]:
        """Return the tokens of a text that follows another one, so that the tokenizer puts no space before it."""
        if not text:
            return []
        before = self._encoded("\n")
        behind = self._encoded(f"\n{text}")
        is_apart = behind[: len(before)] == before
        return behind[len(before) :] if is_apart else self._encoded(text)


def _some(token_ids: list[int]) -> list[int]:
    if not token_ids:
        raise PromptRejected("The messages make an empty prompt.")
    return token_ids


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many of the first tokens of two prompts are the same."""
    return sum(1 for _ in takewhile(bool, (one == other for one, other in zip(first, second, strict=False))))


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn what a template or a tokenizer raises into PromptRejected."""
    try:
        yield
    except jinja2.TemplateError as error:
        raise PromptRejected(f"The model's chat template refused the messages: {error}") from error
    except RecursionError as error:
        raise PromptRejected("The messages or the tools are nested too deeply.") from error
    except (ValueError, TypeError, UnicodeError) as error:
        raise PromptRejected(f"The model's tokenizer refused the messages: {error}") from error


class TranslationBuilder:
    """Makes prompts of models that translate. For one thread at a time."""

    features = ("translate",)

    def __init__(self, translation_tokenizer: TranslationTokenizer) -> None:
        """Take the tokenizer of a model that translates."""
        self._translation_tokenizer = translation_tokenizer

    def prompt(self, messages: Sequence[Message], spec: ReplySpec = PLAIN) -> Prompt:
        """Return a source, and the tokens that its translation begins with. Raises PromptRejected."""
        _refuse_others(spec)
        translation = spec.translation or Translation()
        source = self._translation_tokenizer.source(
            _text_to_translate(messages),
            translation.source,
            translation.target,
            unfinished=translation.unfinished,
        )
        most = self._translation_tokenizer.source_tokens
        if len(source) > most:
            raise PromptRejected(
                f"The text to translate has {len(source)} tokens; the model reads {most} at once. Send it in parts.",
                field="content",
            )
        begun, continued = self._translation_tokenizer.beginning(translation.target, translation.prefix)
        return Prompt(begun, continued=continued, source=source)

    def rendered(self, messages: Sequence[Message], spec: ReplySpec = PLAIN) -> str:
        """Return the text that is tokenized. Raises PromptRejected."""
        prefix = spec.translation.prefix if spec.translation is not None else ""
        return _text_to_translate(messages) + prefix

    def count(self, text: str) -> int:
        """Return how many tokens a piece of text has by itself."""
        return self._translation_tokenizer.count(text)


def _text_to_translate(messages: Sequence[Message]) -> str:
    text = messages[-1].content if messages and messages[-1].role == "user" else ""
    if not text.strip():
        raise PromptRejected("There is nothing to translate: the last message has no text.", field="content")
    return text


def _refuse_others(spec: ReplySpec) -> None:
    """Raise PromptRejected for parts of a spec that only chat models follow."""
    if spec.shown_tools:
        raise PromptRejected("The model translates; it can't be shown tools.", field="tools")
    if spec.format is not None:
        raise PromptRejected("The model translates; it can't be held to a format.", field="format")
    if spec.continues:
        raise PromptRejected("A translation continues its prefix, not a reply.", field="continues")
