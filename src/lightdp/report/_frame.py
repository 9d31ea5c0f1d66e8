"""The frame that all pages share, and how a page is written into it. Its markup is in frame.html, with page.js.

`rendered` fills a template that extends frame.html; `save_page` writes a `Page`, for which sheet.html is the template.
A page needs no network and no other file. Everything put into it is escaped, in the text and in the data of charts.
"""

from __future__ import annotations

import html
import re
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import vl_convert

from lightdp._validate import rounded_down, rounded_up
from lightdp.report._chart import FONT, HEAD, LOOK, PAGES, SUFFIXES, Chart, alt, draw, whole
from lightdp.report._figures import printable
from lightdp.report._packed import packed
from lightdp.report._panel import Page, Panel

_MADE = re.compile(r'<meta name=lightdp content="(\w+)">.*?<title>(.*?) · lightdp</title>', re.DOTALL)
_BESIDE = re.compile(rb"(?<=<!--lightdp:beside-->).*?(?=<!--/lightdp:beside-->)", re.DOTALL)
_FIRST = re.compile(rb'</title>\s*<meta name=lightdp-first content="([^"]*)">')
_MOST_LINKS = 6
_DIGITS = 7  # of numbers in the data of charts


def save_either(
    path: Path, name: str, command: str | None, *, page: Callable[..., str], chart: Callable[[], Chart] | None,
    overwrite: bool = False, first: Sequence[str] = (),
) -> None:  # fmt: skip
    """Write a page if `path` ends in .html, and otherwise a picture: whole or not at all.

    The pages of lightdp beside a new page get a link to it; nothing else in them changes.

    Args:
        path: the file.
        name: what errors call it.
        command: the command line that makes it, which a page shows; None if it was not made by one.
        page: makes the text of the page, given `command`, `beside` and `first` for the frame.
        chart: makes the picture; None if there is none.
        overwrite: whether it may replace any file.
        first: as `beside` takes it.

    Raises:
        ArgumentError: the suffix is another one, the folder does not exist or refuses the file, or a file is there that
            is no page or picture of lightdp and may not be replaced.
    """
    with whole(path, name, SUFFIXES if chart is not None else PAGES, overwrite=overwrite) as file:
        if chart is None or path.suffix in PAGES:
            text = page(command=command, beside=beside(path, first), first=first)
            file.write_text(text, encoding="utf-8", errors="replace")
        else:
            draw(chart(), file)
    if path.suffix in PAGES:
        for other in _neighbours(path):
            with suppress(OSError):  # it went away, or may not be changed
                _relink(other)


def save_page(
    page: Page | Callable[[], Page],
    path: Path,
    command: str | None = None,
    name: str = "out",
    chart: Callable[[], Chart] | None = None,
) -> None:
    """Write a page to an .html file, or its charts to a .png or .svg one: whole or not at all.

    Args:
        page: what is on it, or what makes that.
        path: the file.
        command: the command line that makes it; None if it was not made by one.
        name: what errors call `path`.
        chart: makes the picture; None if there is none.

    Raises:
        ArgumentError: the suffix is another one, or the folder does not exist or refuses the file.
    """

    def text(**frame: Any) -> str:  # noqa: ANN401  of the frame
        return page_text(page if isinstance(page, Page) else page(), **frame)

    save_either(path, name, command, page=text, chart=chart)


def page_text(page: Page, **frame: Any) -> str:  # noqa: ANN401  of the frame
    """A page as text.

    Args:
        page: what is on it.
        **frame: what else the frame shows: `command` and `beside`.
    """
    panels = [panel for section in page.sections for panel in section.panels]
    content = {"kind": page.kind, "title": page.title, "summary": page.lead, "docs": page.docs, "page": page}
    return rendered("sheet.html", panels=panels, **content, **frame)


def rendered(file: str, *, panels: Sequence[Panel], **content: Any) -> str:  # noqa: ANN401, D417
    """A page as text.

    Args:
        file: the template, which is given everything else.
        panels: its charts, in their order.
    """
    specs = packed({f"chart-{place}": spec(panel.chart) for place, panel in enumerate(panels)})
    frame: dict[str, Any] = {"font": FONT, "specs": specs, "scripts": scripts(), "made_with": _version()}
    frame |= {"command": None, "beside": (), "first": ()}
    return engine().get_template(file).render(**frame | content, panels=panels)


def beside(path: Path, first: Sequence[str] = ()) -> list[dict[str, str]]:
    """The newest pages of lightdp in the folder of `path`, by name: their links and titles. Others are left out.

    Pages with the same title are told apart by their files.

    Args:
        path: of the page that shows the links.
        first: links that come before others, however old their pages are.
    """
    found = _neighbours(path, first)
    often = Counter(found.values())
    return [
        {"link": quote(other.name), "title": title if often[title] == 1 else f"{title} · {printable(other.stem)}"}
        for other, title in sorted(found.items(), key=lambda each: (_place(each[0], first), each))
    ]


def _place(page: Path, first: Sequence[str]) -> int:
    """Where a page stands among links; those that are not `first` share a place behind these."""
    link = quote(page.name)
    return first.index(link) if link in first else len(first)


def _neighbours(path: Path, first: Sequence[str] = ()) -> dict[Path, str]:
    """The newest pages of lightdp in the folder of `path`, and their titles."""
    found = []
    for other in path.parent.glob("*.html"):
        with suppress(OSError):  # it went away, or may not be read
            if other.name == path.name or not other.is_file():
                continue
            with other.open(encoding="utf-8", errors="replace") as file:
                made = _MADE.search(file.read(HEAD))
            if made is not None:
                order = _place(other, first), -other.stat().st_mtime
                found.append((order, other, printable(html.unescape(made[2]))))
    return {other: title for _, other, title in sorted(found)[:_MOST_LINKS]}


def _relink(page: Path) -> None:
    """Make a page link to those that lie beside it now; nothing else in it changes, nor does its time.

    A page that may not be written, belongs to somebody else, is a link, or is saved again meanwhile is left as it is.
    """
    before = page.lstat()
    if not stat.S_ISREG(before.st_mode) or not before.st_mode & stat.S_IWUSR:
        return
    parts: Any = engine().get_template("parts.html").module
    text = page.read_bytes()
    named = _FIRST.search(text)
    first = [] if named is None else named[1].decode(errors="replace").split()
    links = str(parts.links(beside(page, first))).encode(errors="replace")
    fresh = _BESIDE.sub(lambda _: links, text, count=1)
    if fresh == text:
        return
    with tempfile.TemporaryDirectory(dir=page.parent, prefix=".lightdp-") as folder:
        file = Path(folder) / page.name
        file.write_bytes(fresh)
        shutil.copystat(page, file)
        now = page.lstat()
        same = (now.st_ino, now.st_mtime_ns, now.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
        if same and file.stat().st_uid == before.st_uid:
            file.replace(page)


@cache
def engine(*folders: Path) -> jinja2.Environment:
    """What fills templates of these folders, and of the frame that all share; whatever is put into them is escaped."""
    files, strict = jinja2.FileSystemLoader([*folders, Path(__file__).parent]), jinja2.StrictUndefined
    made = jinja2.Environment(loader=files, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=strict)
    made.filters |= {"printable": printable, "rounded_up": rounded_up, "rounded_down": rounded_down}
    made.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}  # keys keep their order
    return made


@cache
def scripts() -> str:
    """Everything that draws, for the version of charts that altair writes."""
    draw = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    return vl_convert.javascript_bundle(draw, vl_version=".".join(alt.SCHEMA_VERSION.split(".")[:2]))


def spec(chart: alt.Chart | alt.LayerChart) -> dict[str, Any]:
    """As wide as its place, transparent; the page's style gives the colour of its text."""
    drawn = chart.properties(width="container").configure(**LOOK, background="transparent").to_dict()
    return {name: _short(value) for name, value in drawn.items() if name != "usermeta"}


def _short(value: Any) -> Any:  # noqa: ANN401  of JSON
    """The same with numbers of as many digits as can be seen, which halves a page."""
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _version() -> str:
    try:
        return f"lightdp {version('lightdp-fl')}"
    except PackageNotFoundError:
        return "lightdp"
