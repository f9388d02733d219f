"""One answer split as it is generated: what is thought, what is said, and calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from foredraft.engine.thinking import thinking_of
from foredraft.protocols import Tokenizer
from foredraft.server.openai.logprobs import AnswerText
from foredraft.server.openai.origins import Origins
from foredraft.server.tools.choice import Tool
from foredraft.server.tools.deltas import CallEnd, CallStart, Delta, TextDelta, joined
from foredraft.server.tools.detect import spoken_dialect
from foredraft.server.tools.dialect import Dialect, ToolParser
from foredraft.server.tools.thought import PlainText, ThoughtParser
from foredraft.types import TARGET, Event, Thinking, TokenEvent


def answer_parser(
    dialect: Dialect, tools: Sequence[Tool], thinking: Thinking | None, *, plain: bool = False
) -> ToolParser | None:
    """A parser of an answer; None if it has no calls, no thought and no structure. `plain`: a constraint
    leaves no room for structure behind the thought, so what looks like it is text.
    """
    read = bool(tools) or (dialect.always_read and not plain)
    if thinking is None or (dialect.always_read and not plain):
        return dialect.parser(tools) if read else None
    layout = thinking.ending.partition(thinking.closing)[2].strip() if dialect.always_read else ""
    return ThoughtParser(thinking, dialect.parser(tools) if read else PlainText(), layout)


def chat_reader(
    tokenizer: Tokenizer, prompt: Sequence[int], origins: Origins | None = None
) -> AnswerReader | None:
    """A reader of the answer to a rendered conversation without tools; None if it is text alone. It keeps
    `origins`, if they are wanted.
    """
    thinking = thinking_of(tokenizer, prompt)
    dialect = spoken_dialect(tokenizer.chat_template or "", tokenizer.template_traits.variables)
    parser = answer_parser(dialect, (), thinking)
    if parser is None:
        return None
    marks = () if thinking is None else (thinking.opening, thinking.closing)
    known = control_markers(tokenizer, (*dialect.markers, *marks) if dialect.always_read else marks)
    reader = AnswerReader(parser, known, tokenizer, origins=origins)
    if dialect.always_read and thinking is not None and thinking.begun:
        reader.skip(thinking.opening)
    return reader


def control_markers(tokenizer: Tokenizer, markers: Iterable[str]) -> dict[int, str]:
    """The markers that are control tokens in this vocabulary: such tokens have no text."""
    found: dict[int, str] = {}
    for marker in markers:
        tokens = tokenizer.encode(marker, special=True)
        if len(tokens) == 1 and not tokenizer.token_bytes(tokens[0]):
            found[tokens[0]] = marker
    return found


class AnswerReader:
    """Splits one answer into text and calls as it is generated.

    A marker that is a control token has no text and is inserted at its position. Text before it may come
    later, because it could be the beginning of a stop string; the marker waits for it. An answer that is
    `forced` to call contains no text, whatever it ends with. `origins` are those of the text it shows.
    """

    def __init__(
        self,
        parser: ToolParser,
        markers: Mapping[int, str],
        tokenizer: Tokenizer,
        *,
        forced: bool = False,
        origins: Origins | None = None,
    ) -> None:
        self._parser = parser
        self._thought = parser if isinstance(parser, ThoughtParser) else None
        self._markers = markers
        self._places = AnswerText(tokenizer)
        self._shown = 0
        self._waiting: deque[tuple[int, str, str]] = deque()  # place, marker, origin
        self._pending: list[Delta] = []
        self._forced = forced
        self._begun = 0
        self._whole = 0
        self._origins = origins
        if origins is not None:
            parser.trace(origins.spans)
            origins.begin()

    def skip(self, head: str) -> None:
        """Read what precedes the answer, which is not shown."""
        self._parser.feed(head)
        if self._origins is not None:
            self._origins.skip(head)

    @property
    def called(self) -> bool:
        """Whether there are calls and all are complete: only then can a client execute them."""
        return 0 < self._begun == self._whole

    def begin(self, prefix: str) -> None:
        """Read the beginning of the answer that is part of the prompt."""
        if self._origins is not None:
            self._origins.insert(TARGET, prefix)
        self._pending = self._parser.feed(prefix)

    def read(self, event: TokenEvent) -> list[Delta]:
        """The deltas of a token."""
        if self._markers:
            place = self._places.add(event.token)
            if event.token in self._markers:
                self._waiting.append((place, self._markers[event.token], event.origin))
        if self._thought is not None:
            self._thought.place = event.place
        return self._given(self._parser.feed(self._with_markers(event.text)))

    def end(self, text: str, *, cut: bool = False) -> list[Delta]:
        """The deltas of the answer's last text and of held-back text. `cut`: the answer was cut off, possibly
        within a character, which is then not shown and may have belonged to a marker.
        """
        if cut:
            text = text.rstrip("\ufffd")
        last = self._parser.feed(self._with_markers(text))
        return self._given(last + self._parser.finish(cut=cut or self._forced))

    def _with_markers(self, text: str) -> str:
        """The text with its markers inserted."""
        pieces: list[str] = []
        while self._waiting and self._waiting[0][0] <= self._shown + len(text):
            place, marker, origin = self._waiting.popleft()
            pieces += [self._taken(text[: place - self._shown]), marker]
            if self._origins is not None:
                self._origins.insert(origin, marker)
            text = text[place - self._shown :]
            self._shown = place
        self._shown += len(text)
        return "".join([*pieces, self._taken(text)])

    def _taken(self, text: str) -> str:
        if self._origins is not None:
            self._origins.read(text)
        return text

    def _given(self, deltas: list[Delta]) -> list[Delta]:
        if self._origins is not None:
            self._origins.show()
        pending, self._pending = self._pending, []
        given = pending + deltas
        self._begun += sum(isinstance(delta, CallStart) for delta in given)
        self._whole += sum(isinstance(delta, CallEnd) for delta in given)
        return given


def deltas(reader: AnswerReader | None, events: Sequence[Event]) -> list[Delta]:
    """The deltas of one answer's events. `reader` finds tool calls; None: there are none."""
    if reader is None:
        text = "".join(event.text for event in events)
        return [TextDelta(text)] if text else []
    found: list[Delta] = []
    for event in events:
        if isinstance(event, TokenEvent):
            found += reader.read(event)
        else:
            found += reader.end(event.text, cut=event.reason.cut)
    return joined(found)
