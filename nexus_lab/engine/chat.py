"""The model's own chat template, rendered in a sandbox."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from nexus_lab.engine.errors import ChatTemplateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CHATML", "ChatTemplate"]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Used for a model whose file has no template."""

_SHOWN = 200


class ChatTemplate:
    """Renders conversations to prompt text.

    Parameters
    ----------
    source
        Jinja source from the GGUF, or ``None`` for the ChatML fallback.
    bos, eos
        Texts of the model's control tokens, for templates that write them.
    """

    def __init__(self, source: str | None, *, bos: str = "", eos: str = "") -> None:
        self.source = source or CHATML
        self.is_fallback = source is None
        self._bos = bos
        self._eos = eos
        self._template: Any = None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Return the prompt for `messages`, each with ``role`` and ``content``.

        A BOS that the template writes stays in the text; `Vocabulary.tokenize` does not double it.

        Raises
        ------
        ChatTemplateError
            When the template is broken, or refuses these messages.
        """
        from jinja2.exceptions import SecurityError, TemplateError

        try:
            text: str = self._compiled().render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None if tools is None else list(tools),
                bos_token=self._bos,
                eos_token=self._eos,
            )
        except (TemplateError, SecurityError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise ChatTemplateError(
                f"the chat template cannot be rendered: {str(error)[:_SHOWN]}",
                next_step="check roles and contents of the messages, or give a prompt of your own",
            ) from error
        return text

    def _compiled(self) -> Any:
        if self._template is None:
            from jinja2.ext import loopcontrols
            from jinja2.sandbox import ImmutableSandboxedEnvironment

            environment = ImmutableSandboxedEnvironment(
                trim_blocks=True,
                lstrip_blocks=True,
                extensions=[loopcontrols],
                autoescape=False,  # the output is a prompt, never markup that a browser reads
            )
            environment.globals["raise_exception"] = _refuse
            environment.globals["strftime_now"] = _now
            self._template = environment.from_string(self.source)
        return self._template


def _refuse(message: str) -> NoReturn:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message)


def _now(layout: str) -> str:
    return datetime.now(UTC).strftime(layout)
