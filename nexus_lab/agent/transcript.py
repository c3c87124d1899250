"""The conversation as token pieces that only ever extend what is already in the cache.

Message texts are untrusted: a tool may return ``<|im_end|>``. So the chat template is rendered over
placeholders, and only its own markup is tokenised with special tokens; texts never are.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nexus_lab.errors import NexusError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["ChatModel", "Piece", "TemplateRewritesError", "Transcript", "join_tokens"]

# Private-use characters: no template writes them, and texts never pass through the template.
_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACEHOLDER = re.compile(f"{_OPEN}(\\d+){_CLOSE}")


class ChatModel(Protocol):
    """What the transcript needs of an engine."""

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
    ) -> str:
        """Render the model's chat template."""
        ...

    def tokenize(self, text: str, *, bos: bool = False, special: bool = True) -> list[int]:
        """Turn text into token ids."""
        ...


class TemplateRewritesError(NexusError):
    """The chat template changes earlier messages when a later one is added."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that extend the cache, and how many of them are the text of the part they end with."""

    tokens: tuple[int, ...]
    text: str


def join_tokens(pieces: Iterable[Piece]) -> tuple[int, ...]:
    """Return the tokens of `pieces` in a row."""
    return tuple(token for piece in pieces for token in piece.tokens)


@dataclass(frozen=True, slots=True)
class _Roles:
    """What the template accepts."""

    system: bool
    tool: bool


class Transcript:
    """Messages, their rendering so far, and the pieces each new message adds.

    Parameters
    ----------
    model
        Renders and tokenises; an :class:`nexus_lab.engine.Engine`.
    system
        System prompt; folded into the first user message where the template has no such role.
    roles
        What the template is known to accept; tried out by default.
    """

    def __init__(self, model: ChatModel, *, system: str, roles: _Roles | None = None) -> None:
        self._model = model
        self._roles = roles or _probe_roles(model)
        self._texts: list[str] = []
        self._messages: list[dict[str, str]] = []
        self._rendered = ""
        self._system = system

    def __len__(self) -> int:
        return len(self._messages)

    def text(self, index: int) -> str:
        """Return what message `index` says, without markup."""
        content = self._messages[index]["content"]
        return _PLACEHOLDER.sub(lambda match: self._texts[int(match[1])], content)

    def restarted(self) -> Transcript:
        """Return an empty transcript for the same model, with the same system prompt."""
        return Transcript(self._model, system=self._system, roles=self._roles)

    def message(self, role: str, text: str) -> list[Piece]:
        """Add a whole message of any role; an assistant's with what opens and closes its reply."""
        if role == "system":
            self._system = text
            return self.open()
        if role == "assistant":
            opening = self.open_reply()
            said = Piece(tuple(self._model.tokenize(text, special=False)) if text else (), text)
            return [*opening, said, *self.close_reply(text)]
        return self.tool(text) if role == "tool" else self.user(text)

    def open(self) -> list[Piece]:
        """Return the pieces of the system prompt; empty where it waits for the first user message."""
        if not self._roles.system:
            return []
        return self._add("system", [self._system])

    def user(self, *parts: str) -> list[Piece]:
        """Add a user message of `parts`; one piece per part, the last with what closes the message.

        Where the template has no system role, the first user message begins with one more piece, the prompt.

        Parameters
        ----------
        parts
            Texts in order, for example a tool's block and the request. A piece ends with its part, so
            that the tokens of a part do not depend on what follows.
        """
        first = not any(message["role"] == "user" for message in self._messages)
        if first and not self._roles.system:
            parts = (f"{self._system}\n\n", *parts)
        return self._add("user", parts)

    def preview(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens of a block that the next user message would begin with; adds nothing.

        Returns
        -------
        tuple
            What that message would bring before the block (a system prompt that the template folds into it),
            and the block.
        """
        mark = self.mark()
        *opening, block, _ = self.user(text, "")
        self.rewind(mark)
        return join_tokens(opening), block.tokens

    def tool(self, text: str) -> list[Piece]:
        """Add a tool's response."""
        return self._add("tool" if self._roles.tool else "user", [text])

    def open_reply(self) -> list[Piece]:
        """Return what opens the assistant's reply."""
        return self._extend(parts=0, reply=True)

    def close_reply(self, text: str) -> list[Piece]:
        """Close the assistant's reply, whose tokens are in the cache already; returns the markup."""
        placeholder = self._hold(text)
        self._messages.append({"role": "assistant", "content": placeholder})
        self._rendered += placeholder
        return self._extend(parts=0, reply=False)

    def mark(self) -> tuple[int, int, str]:
        """Return a mark to come back to with :meth:`rewind`."""
        return len(self._messages), len(self._texts), self._rendered

    def rendering(self, n_messages: int) -> tuple[int, int, str]:
        """Return a mark behind the first `n_messages`, which stand at the start of what is rendered.

        Raises
        ------
        TemplateRewritesError
            When the template renders them otherwise alone.
        """
        messages = self._messages[:n_messages]
        rendered = self._model.render_chat(messages, add_generation_prompt=False) if messages else ""
        if not self._rendered.startswith(rendered):
            raise TemplateRewritesError(
                "the model's chat template rewrites earlier messages", next_step="start a new conversation"
            )
        n_texts = sum(len(_PLACEHOLDER.findall(message["content"])) for message in messages)
        return n_messages, n_texts, rendered

    def rewind(self, mark: tuple[int, int, str]) -> None:
        """Forget what was added since `mark`."""
        messages, texts, self._rendered = mark
        del self._messages[messages:], self._texts[texts:]

    def _hold(self, text: str) -> str:
        self._texts.append(text)
        return f"{_OPEN}{len(self._texts) - 1}{_CLOSE}"

    def _add(self, role: str, parts: Sequence[str]) -> list[Piece]:
        self._messages.append({"role": role, "content": "".join(self._hold(part) for part in parts)})
        return self._extend(parts=len(parts), reply=False)

    def _extend(self, *, parts: int, reply: bool) -> list[Piece]:
        rendered = self._model.render_chat(self._messages, add_generation_prompt=reply)
        if not rendered.startswith(self._rendered):
            raise TemplateRewritesError(
                "the model's chat template rewrites earlier messages, so its cache cannot be extended",
                next_step="use a model whose template only appends, or start a new conversation per request",
            )
        fresh, first = rendered[len(self._rendered) :], not self._rendered
        self._rendered = rendered
        return self._cut(fresh, parts=parts, first=first)

    def _cut(self, fresh: str, *, parts: int, first: bool) -> list[Piece]:
        """Split new rendering behind each part's text; trailing markup joins the last piece."""
        ends = [match.end() for match in _PLACEHOLDER.finditer(fresh)]
        if len(ends) != parts:
            raise TemplateRewritesError(
                f"the model's chat template shows {len(ends)} of {parts} parts of a message",
                next_step="use a model whose template prints message contents as they are",
            )
        bounds = [0, *ends[:-1], len(fresh)] if parts else [0, len(fresh)]
        return [
            self._tokenise(fresh[start:stop], bos=first and start == 0)
            for start, stop in itertools.pairwise(bounds)
        ]

    def _tokenise(self, rendered: str, *, bos: bool) -> Piece:
        tokens: list[int] = []
        text = ""
        for index, fragment in enumerate(_PLACEHOLDER.split(rendered)):
            is_text = index % 2 == 1
            content = self._texts[int(fragment)] if is_text else fragment
            if content or (bos and index == 0):
                tokens += self._model.tokenize(content, bos=bos and index == 0, special=not is_text)
            text += content
        return Piece(tuple(tokens), text)


def _probe_roles(model: ChatModel) -> _Roles:
    user = {"role": "user", "content": "u"}
    call = {"role": "assistant", "content": "a"}
    return _Roles(
        system=_accepts(model, [{"role": "system", "content": "s"}, user], "s"),
        tool=_accepts(model, [user, call, {"role": "tool", "content": "result"}], "result"),
    )


def _accepts(model: ChatModel, messages: list[dict[str, str]], shown: str) -> bool:
    try:
        return shown in model.render_chat(messages, add_generation_prompt=True)
    except NexusError:
        return False
