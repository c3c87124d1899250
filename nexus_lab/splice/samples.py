"""Conversations to measure with: made from a seed, of any length, and never the same stretch twice.

An agent's history is mostly tool calls and their JSON results, so that is what these hold.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["SYSTEM_PROMPT", "Message", "sample_history", "sample_tokens"]

Message = dict[str, str]

SYSTEM_PROMPT = (
    "You are a careful assistant for a software team. You may call the tools you are given. "
    "Answer in one or two sentences, and never make up a value that the user did not give."
)

_PEOPLE = ("Amara", "Bjorn", "Chidi", "Divya", "Elena", "Farid", "Greta", "Hiro", "Ines", "Jonas")
_PROJECTS = ("harbor", "lighthouse", "quarry", "orchard", "granary", "ferry", "viaduct", "millpond")
_PARTS = ("parser", "scheduler", "importer", "login page", "search index", "mailer", "exporter", "cache")
_FAULTS = (
    "crashes on empty input",
    "leaks memory over night",
    "ignores the time zone",
    "shows stale results",
    "is slow on large files",
    "loses the last line",
    "rejects valid names",
)
_STATES = ("open", "closed", "in review", "blocked")
_CITIES = ("Lagos", "Oslo", "Quito", "Turin", "Osaka", "Perth", "Tunis", "Gdansk")


def sample_history(seed: int) -> Iterator[Message]:
    """Yield the messages of an endless conversation, four a turn: request, tool call, result, answer.

    Parameters
    ----------
    seed
        Another seed gives another conversation.
    """
    rng = random.Random(seed)  # noqa: S311 - a reproducible text, not a secret
    while True:
        yield from rng.choice((_issues, _people, _weather, _notes))(rng)


def sample_tokens(
    n_tokens: int,
    *,
    seed: int,
    render: Callable[[list[Message]], str],
    tokenize: Callable[[str], list[int]],
    system: str = SYSTEM_PROMPT,
) -> list[int]:
    """Return exactly `n_tokens` tokens: the system prompt, then as much of the history as fits.

    Parameters
    ----------
    n_tokens
        Length wanted; the last turn is cut where it ends.
    seed
        Seed of `sample_history`.
    render, tokenize
        The model's chat template and tokenizer.
    system
        The system prompt.
    """
    messages: list[Message] = [{"role": "system", "content": system}]
    tokens = tokenize(render(messages))
    for message in sample_history(seed):
        if len(tokens) >= n_tokens:
            break
        messages.append(message)
        # A turn adds at least a token a word, so rendering waits until the text can be long enough.
        if sum(len(m["content"].split()) for m in messages) * 2 >= n_tokens - len(tokens):
            tokens = tokenize(render(messages))
    return tokens[:n_tokens]


def _turns(request: str, call: str, arguments: object, result: object, answer: str) -> Iterator[Message]:
    yield {"role": "user", "content": request}
    yield {"role": "assistant", "content": json.dumps({"name": call, "arguments": arguments})}
    yield {"role": "user", "content": "Tool result: " + json.dumps(result)}
    yield {"role": "assistant", "content": answer}


def _issues(rng: random.Random) -> Iterator[Message]:
    project, person = rng.choice(_PROJECTS), rng.choice(_PEOPLE)
    found = [
        {
            "number": rng.randrange(10, 9000),
            "title": f"{rng.choice(_PARTS)} {rng.choice(_FAULTS)}",
            "state": rng.choice(_STATES),
            "assignee": rng.choice(_PEOPLE).lower(),
            "comments": rng.randrange(30),
        }
        for _ in range(rng.randrange(2, 5))
    ]
    arguments = {"repository": project, "assignee": person.lower()}
    yield from _turns(
        f"Which issues of {project} wait for {person}?",
        "find_issues",
        arguments,
        found,
        f"{len(found)} issues of {project} came back; number {found[0]['number']} says that "
        f"the {found[0]['title']}.",
    )


def _people(rng: random.Random) -> Iterator[Message]:
    name, other = rng.sample(_PEOPLE, 2)
    hour = rng.randrange(7, 19)
    result = {
        "person": name.lower(),
        "free_from": f"{hour:02d}:{rng.choice(('00', '15', '30', '45'))}",
        "minutes": rng.choice((15, 30, 45, 60)),
        "room": f"{rng.choice(_PROJECTS)}-{rng.randrange(1, 40)}",
    }
    yield from _turns(
        f"When can {name} meet {other} about the {rng.choice(_PARTS)}?",
        "find_free_time",
        {"people": [name.lower(), other.lower()]},
        result,
        f"{name} is free from {result['free_from']} for {result['minutes']} minutes, in {result['room']}.",
    )


def _weather(rng: random.Random) -> Iterator[Message]:
    city = rng.choice(_CITIES)
    days = [
        {"day": day, "high": rng.randrange(4, 36), "low": rng.randrange(-6, 20), "rain_mm": rng.randrange(25)}
        for day in ("today", "tomorrow", "the day after")
    ]
    yield from _turns(
        f"{rng.choice(_PEOPLE)} travels to {city}. What weather is coming?",
        "forecast",
        {"city": city, "days": 3},
        days,
        f"{city} reaches {days[0]['high']} degrees today; tomorrow brings {days[1]['rain_mm']} mm of rain.",
    )


def _notes(rng: random.Random) -> Iterator[Message]:
    project, part, fault = rng.choice(_PROJECTS), rng.choice(_PARTS), rng.choice(_FAULTS)
    yield from _turns(
        f"Write down that the {part} of {project} {fault}, and tell {rng.choice(_PEOPLE)}.",
        "add_note",
        {"project": project, "text": f"The {part} {fault}.", "urgent": rng.random() < 0.3},  # noqa: PLR2004
        {"id": f"note-{rng.randrange(16**6):06x}", "saved": True},
        f"I wrote the note about the {part}; it stands in the log of {project}.",
    )
