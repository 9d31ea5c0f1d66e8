"""What `make docs` adds to mkdocs: files outside docs, reference pages made from code, formulas as MathML.

A hook of mkdocs (mkdocs.yml names it). Pages link to files of the repository, as they do where the repository is
browsed; on the site each such file becomes a page or a download of its own, so that no link leads elsewhere. Formulas
become MathML, which browsers draw without a script.
"""

from __future__ import annotations

import dataclasses
import html
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import latex2mathml.converter
import ziamath.fonts
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE, THEORY = "repository", "theory.md"
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]+)((?:#[^)\s]*)?\))")
DISPLAYED = re.compile(r"^\$\$.*\$\$$", re.MULTILINE)  # a formula on a line of its own is a paragraph
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
TIGHT = re.compile("<mo[^>]*>(&#x0007C;|&#x0002F;)</mo>")  # bars and slashes stand close
LABEL = re.compile(r"\(([EDRPWCS]\d)(?:(-)([EDRPWCS]?\d))?\)")
TOKEN = re.compile(r"(<[^>]+>)")
UNLINKED = ("a", "code", "pre", "math", "h1", "h2", "h3", "h4", "script")
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".yaml": "yaml",
    ".service": "ini",
    ".env": "sh",
    ".csv": "text",
    "": "text",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs, and what these link to in turn."""
    font = Path(ziamath.fonts.__file__).with_name("STIXTwoMath-Regular.ttf")
    files.append(File.generated(config, "assets/math.ttf", abs_src_path=str(font)))
    waiting = [file.src_uri for file in files.documentation_pages()]
    while waiting:
        uri = waiting.pop()
        file = files.get_file_from_path(uri)
        for target in _outside(_source(uri), "" if file is None else file.content_string):
            found = _uri(target)
            if files.get_file_from_path(found) is None:
                files.append(File.generated(config, found, content=_content(target)))
                if found.endswith(".md"):
                    waiting.append(found)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files outside docs at their copies, and fill in what is made from code."""
    del config, files
    if page.file.src_uri.startswith(OUTSIDE):
        page.meta["search"] = {"exclude": True}
    source, here = _source(page.file.src_uri), PurePosixPath(page.file.src_uri).parent

    def moved(link: re.Match[str]) -> str:
        target = _resolved(source, link[2])
        if _inside(target) and _inside(source):
            return link[0]
        return f"{link[1]}{os.path.relpath(_uri(target), here)}{link[3]}"

    text = DISPLAYED.sub(r"\n\g<0>\n", LINK.sub(moved, markdown))
    if page.file.src_uri == THEORY:
        text = re.sub(r"^\*\*\(([EDRPWCS]\d)\)", r'<a id="\1"></a>\g<0>', text, flags=re.MULTILINE)
    for mark, made in (
        ("commands", commands),
        ("settings of a run", run_settings),
        ("settings of a plan", plan_settings),
    ):
        place = f"<!-- {mark} -->"
        if place in text:
            text = text.replace(place, made())
    return text


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw formulas by MathML, and link labels of the theory, such as (E1), to their statements."""
    del config
    theory = files.get_file_from_path(THEORY)
    if theory is None:
        raise PluginError(f"{THEORY} is missing")
    place, depth, made = theory.url_relative_to(page.file), 0, []
    for token in TOKEN.split(FORMULA.sub(_mathml, content)):
        name = re.match(r"</?(\w+)", token)
        if name is not None and name[1] in UNLINKED:
            depth += -1 if token.startswith("</") else 1
        made.append(token if name is not None or depth > 0 else LABEL.sub(partial(_linked, place), token))
    return "".join(made)


def on_post_build(config: MkDocsConfig) -> None:
    """Drop the page for missing addresses: it is for servers, and its links lead nowhere from a disk."""
    (Path(config.site_dir) / "404.html").unlink(missing_ok=True)


def _linked(place: str, label: re.Match[str]) -> str:
    ends = [one if one[0].isalpha() else label[1][0] + one for one in (label[1], label[3]) if one is not None]
    return "(" + "-".join(f'<a href="{place}#{end}">{end}</a>' for end in ends) + ")"


def commands() -> str:
    """The help page of every command, as the command prints it."""
    found = []
    for words in (["lightdp"], *map(list, _commands())):
        title = "The command" if len(words) == 1 else " ".join(words)
        found.append(f"## {title}\n\n```text\n{_help(words)}\n```\n")
    return "\n".join(found)


def _commands() -> list[tuple[str, ...]]:
    import click  # noqa: PLC0415  the command line is imported for its own page alone

    from lightdp.cli import app  # noqa: PLC0415  likewise

    found: list[tuple[str, ...]] = []
    outer = click.Context(app, info_name="lightdp")
    for name in app.list_commands(outer):
        command = app.get_command(outer, name)
        if command is None:
            raise PluginError(f"lightdp lists {name}, but has no such command")
        context = command.make_context(name, [], parent=outer, resilient_parsing=True)
        below = getattr(context.command, "commands", {})
        found += [("lightdp", name, each) for each in below] or [("lightdp", name)]
    return found


def _help(words: list[str]) -> str:
    environment = {**os.environ, "COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}
    made = subprocess.run(  # noqa: S603  our own command
        [sys.executable, "-m", *words, "--help"], capture_output=True, text=True, check=True, env=environment
    )
    return "\n".join(line.rstrip() for line in made.stdout.strip("\n").splitlines())


def run_settings() -> str:
    """The settings of `lightdp run`, by group."""
    from lightdp.training.config import Config  # noqa: PLC0415  for one page

    return _settings(Config)


def plan_settings() -> str:
    """The settings of `lightdp plan` and `lightdp.plan`."""
    from lightdp.planning import Request  # noqa: PLC0415  for one page

    return _settings(Request)


def _settings(owner: type) -> str:
    groups: dict[str, list[str]] = {}
    for field in dataclasses.fields(owner):
        default = "required" if field.default is dataclasses.MISSING else f"`{_shown(field.default)}`"
        row = f"| `{field.name}` | {default} | {field.metadata['help'].replace('|', chr(92) + '|')} |"
        groups.setdefault(field.metadata["group"], []).append(row)
    head = "| name | default | meaning |\n| --- | --- | --- |\n"
    return "\n\n".join(f"### {group}\n\n{head}" + "\n".join(rows) for group, rows in groups.items())


def _shown(value: object) -> str:
    return "true" if value is True else "false" if value is False else "not set" if value is None else str(value)


def _mathml(found: re.Match[str]) -> str:
    latex = html.unescape(found[2]).strip()
    drawn = latex2mathml.converter.convert(latex, display="block" if found[1] == "div" else "inline")
    drawn = TIGHT.sub(r'<mo stretchy="false" lspace="0" rspace="0">\1</mo>', drawn)
    return drawn if found[1] == "span" else f'<div class="formula">{drawn}</div>'


def _source(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    if not uri.startswith(f"{OUTSIDE}/"):
        return f"docs/{uri}"
    path = uri.removeprefix(f"{OUTSIDE}/")
    return path if (ROOT / path).is_file() else path.removesuffix(".md")


def _uri(path: str) -> str:
    """Where a file or folder of the repository lies on the site."""
    if _inside(path):
        return path.removeprefix("docs/")
    text = (ROOT / path).is_dir() or (PurePosixPath(path).suffix in LANGUAGES)
    return f"{OUTSIDE}/{path}.md" if text else f"{OUTSIDE}/{path}"


def _content(path: str) -> str | bytes:
    place, suffix = ROOT / path, PurePosixPath(path).suffix
    if place.is_dir():
        listed = sorted(str(file.relative_to(place)) for file in place.rglob("*.*") if "__pycache__" not in file.parts)
        return f"# {path}\n\nThe files of this folder of the repository:\n\n" + "\n".join(
            f"- `{name}`" for name in listed
        )
    if suffix == ".md":
        return place.read_text(encoding="utf-8")
    if suffix in LANGUAGES:
        return f"# {path}\n\n````{LANGUAGES[suffix]}\n{place.read_text(encoding='utf-8')}````\n"
    return place.read_bytes()


def _outside(source: str, text: str) -> set[str]:
    if not source.endswith(".md"):
        return set()
    return {target for link in LINK.finditer(text) if not _inside(target := _resolved(source, link[2]))}


def _resolved(source: str, link: str) -> str:
    return os.path.normpath(PurePosixPath(source).parent / link)


def _inside(path: str) -> bool:
    return path.startswith("docs/")
