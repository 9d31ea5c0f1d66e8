"""How much code is there? Lines of code and of docstrings, by package and in public modules.

A line of code holds a token other than a comment and is no part of a docstring; blank lines count nowhere. A module is
public if no part of its path begins with an underscore. The numbers are exact; run it on another checkout to compare.

Run: python benchmarks/lines.py [FOLDER, by default src]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def count(text: str) -> tuple[int, int]:
    """Lines of code and of docstrings in a source."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docs |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    filled = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    return len((code - docs) & filled), len(docs & filled)


def main() -> None:
    """Count and print."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "src")
    code, docs = Counter[str](), Counter[str]()
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        public = not any(part.startswith("_") and part != "__init__" for part in parts)
        lines = count(path.read_text(encoding="utf-8"))
        for name in (parts[0], "all", *(["public modules of lightdp"] if public and parts[0] == "lightdp" else [])):
            code[name] += lines[0]
            docs[name] += lines[1]
    for name in sorted(code):
        print(f"{name}: {code[name]:,} of code, {docs[name]:,} of docstrings, {docs[name] / code[name]:.2f}")


if __name__ == "__main__":
    main()
