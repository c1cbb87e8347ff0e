"""The longest texts and lists in messages of devices, and which of them can be printed. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from edgebed.errors import printable

Text = Annotated[str, msgspec.Meta(max_length=500)]
"""A name in a message of a device: of an agent, a task, a phase, a transfer."""

MOST_TEXT = 500
"""Characters that are kept of a text for people, such as an error."""

Facts = Annotated[dict[Text, Text], msgspec.Meta(max_length=64)]
Samples = Annotated[tuple[int, ...], msgspec.Meta(max_length=10_000)]
Runs = Annotated[tuple[float, ...], msgspec.Meta(max_length=100)]


def check_names(*texts: str) -> None:
    """Raises ValueError where one of them cannot be printed."""
    for text in texts:
        if not text.isprintable():
            raise ValueError(f"{printable(text)!r} is no name: it holds what cannot be printed")


def printed(facts: dict[str, str]) -> dict[str, str]:
    """The same, with texts that can be printed."""
    if all(key.isprintable() and value.isprintable() for key, value in facts.items()):
        return facts
    return {printable(key): printable(value, MOST_TEXT) for key, value in facts.items()}


def take_over(message: msgspec.Struct, **fields: object) -> None:
    """Set fields of a frozen message that is being made."""
    for name, value in fields.items():
        msgspec.structs.force_setattr(message, name, value)
