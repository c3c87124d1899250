"""Text that came from elsewhere, made harmless to show."""

from __future__ import annotations

import unicodedata

__all__ = ["neutralise", "repair_text"]


def neutralise(text: str, *, limit: int | None = None, keep_newlines: bool = False) -> str:
    r"""Return `text` with everything that could move the cursor or hide shown as an escape.

    Parameters
    ----------
    text
        Text of unknown origin: a tool's name, a description, a server's output.
    limit
        Longest result, in characters; the cut is marked with ``…``.
    keep_newlines
        Leave line feeds and tabs as they are.

    Examples
    --------
    >>> neutralise("red \x1b[31m")
    'red \\x1b[31m'
    """
    if limit is not None and len(text) > limit:
        text = text[: max(limit - 1, 0)] + "…"
    if text.isascii() and text.isprintable():
        return text
    kept = "\n\t" if keep_newlines else ""
    return "".join(c if c.isprintable() or c in kept else _escape(c) for c in text)


def _escape(character: str) -> str:
    """Return a space for odd spaces; an escape for controls, bidi overrides, tags and the like."""
    if unicodedata.category(character) == "Zs":
        return " "
    code = ord(character)
    if code <= 0xFF:  # noqa: PLR2004 - the three forms of Python's own escapes
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - see above


def repair_text(text: str) -> str:
    """Return `text` with lone surrogates, which no encoding can carry, replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass").decode(errors="replace")
    return text
