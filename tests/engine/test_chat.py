from __future__ import annotations

import pytest

from nexus_lab.engine import ChatTemplateError
from nexus_lab.engine.chat import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hello {{ 7 * 6 }} <b>"}]


def test_contents_are_text_and_never_template():
    text = ChatTemplate("{% for m in messages %}{{ m['content'] }}{% endfor %}").render(MESSAGES)
    assert text == "Hello {{ 7 * 6 }} <b>"


def test_without_a_template_chatml_is_used_and_said():
    template = ChatTemplate(None)
    assert template.is_fallback
    assert template.render(MESSAGES).endswith("<|im_start|>assistant\n")
    assert not template.render(MESSAGES, add_generation_prompt=False).endswith("assistant\n")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for %}",
        "{{ messages[0].content.no_such.thing }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ 1 + 'one' }}",
    ],
)
def test_what_a_template_must_not_do_is_typed(source: str):
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render(MESSAGES)


def test_templates_get_what_they_expect():
    loop = "{% for m in messages %}{% break %}{% endfor %}"
    source = "{{ bos_token }}{{ strftime_now('%Y')|length }}" + loop + "{{ eos_token }}"
    assert ChatTemplate(source, bos="<s>", eos="</s>").render(MESSAGES) == "<s>4</s>"
