"""Examples in docstrings (`>>>`) as blocks of code on the reference page: an extension of griffe, which reads them."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Fences the examples of each docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401  what griffe passes
        """Rewrite the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""The text with each example, from `>>>` to the next empty line, in a fence.

    >>> fenced("Adds.\n\n>>> 1 + 1\n2").splitlines()
    ['Adds.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    made, open_ = [], False
    for line in text.splitlines():
        if line.startswith(">>>") and not open_:
            made.append("```pycon")
            open_ = True
        elif open_ and not line.strip():
            made.append("```")
            open_ = False
        made.append(line)
    return "\n".join([*made, "```"] if open_ else made)
