"""Help texts: paragraphs that wrap, and examples that can be pasted into a shell."""

from __future__ import annotations

import re

#: Of an example's line: with its indent it fits a terminal of 80 columns, so nothing folds it.
WIDTH = 74
_QUOTED = r"(?:'[^']*'|\"[^\"]*\"|\S)+"
#: A word, or an option with its value, which stay on one line.
_WORD = re.compile(rf"-\S+ (?![-|<]){_QUOTED}|{_QUOTED}")


def help_text(*paragraphs: str, examples: tuple[str, ...] = ()) -> str:
    """A verb's help.  The backspace in front of the examples keeps their lines as they are.

    A word in brackets is no markup: meshmsg[spark].
    """
    parts = list(paragraphs)
    if examples:
        lines = [line for example in examples for line in example_lines(example)]
        parts.append("\n  ".join(["\bExamples:", *lines]))
    return "\n\n".join(parts).replace("[", "\\[")


def example_lines(example: str) -> list[str]:
    """Lines of an example, `command  # comment`: a long one goes on behind a backslash."""
    if len(example) <= WIDTH:
        return [example]
    command, mark, comment = example.partition("  # ")
    lines = [""]
    for word in _WORD.findall(command):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > WIDTH:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return [f"# {comment}", *lines] if mark else lines
