"""The reference page of the format, made from the fields of its lines."""

from __future__ import annotations

import dataclasses

from lightdp.runlog._lines import Ended, Round, Started, type_of

_PAGE = """# The log of a run

`lightdp run` writes a log, by default `run.jsonl`, as does Flower's server with `LightDP(..., log=PATH)`; `lightdp \
report` and `lightdp audit` read it: one JSON object a line, in UTF-8. \
The key `kind` tells the kinds of lines apart. Keys that are not listed here are ignored; numbers are finite. \
Where there is a plan, nothing that speaks of privacy is null, except the ε of rounds with sampled batches.

This page is made by `python -m lightdp.runlog > docs/reference/run-log.md`.
"""


def schema() -> str:
    """The reference page of the format, in Markdown.

    >>> print(schema().splitlines()[0])
    # The log of a run
    """
    parts = [_PAGE]
    for line in (Started, Round, Ended):
        parts.append(f'\n## `"kind": "{line.kind}"`\n{(line.__doc__ or "").partition(chr(10))[0]}\n\n')
        parts.append("| field | type | meaning | null or absent |\n| --- | --- | --- | --- |\n")
        for field in dataclasses.fields(line):
            facts, (kind, _) = field.metadata, type_of(field)
            missing = "; ".join(f"{when}: {facts[when]}" for when in ("null", "absent") if when in facts)
            kind += " or null" if "null" in facts else ""
            parts.append(f"| `{field.name}` | {kind} | {facts['meaning']} | {missing} |\n")
    return "".join(parts)
