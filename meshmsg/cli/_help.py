"""Help texts: paragraphs that wrap, and examples that do not."""

from __future__ import annotations


def help_text(*paragraphs: str, examples: tuple[str, ...] = ()) -> str:
    """A verb's help.  The backspace in front of the examples keeps their lines as they are.

    A word in brackets is no markup: meshmsg[spark].
    """
    parts = list(paragraphs)
    if examples:
        parts.append("\n  ".join(["\bExamples:", *examples]))
    return "\n\n".join(parts).replace("[", "\\[")
