"""README as a browser shows it: at most two screens, and nothing that is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.pages import chromium

__all__ = ["chromium"]

ROOT = Path(__file__).parents[1]
SCREEN = 1080
COLUMN = 1012
PHONE = 375
STYLE = """
main { max-width: 1012px; font: 16px/1.5 'Noto Sans', Helvetica, Arial, sans-serif; overflow-wrap: break-word }
h1, h2, h3 { margin: 24px 0 16px; font-weight: 600; line-height: 1.25 } main > :first-child { margin-top: 0 }
h1, h2 { padding-bottom: .3em; border-bottom: 1px solid } h1 { font-size: 2em } h2 { font-size: 1.5em }
h3 { font-size: 1.25em } p, ul, table, pre { margin: 0 0 16px } ul { padding-left: 2em } li + li { margin-top: .25em }
table { display: block; width: max-content; max-width: 100%; overflow: auto; border-collapse: collapse }
th, td { padding: 6px 13px; border: 1px solid } code { font: 85% 'Liberation Mono', monospace; padding: .2em .4em }
pre { padding: 16px; overflow: auto; font-size: 85%; line-height: 1.45 } pre code { padding: 0; font-size: 100% }
img { max-width: 100% } img[align=right] { padding-left: 20px } img[align=left] { padding-right: 20px }
"""  # as wide and as high as on the site that shows it first


@pytest.fixture(scope="module")
def page(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    markdown = pytest.importorskip("markdown_it")
    text = markdown.MarkdownIt("commonmark").enable("table").render((ROOT / "README.md").read_text(encoding="utf-8"))
    file = tmp_path_factory.mktemp("readme") / "readme.html"
    base = f'<base href="{ROOT.as_uri()}/">'
    file.write_text(f"<!doctype html><meta charset=utf-8>{base}<style>{STYLE}</style><main>{text}</main>")
    found = chromium.new_page(viewport={"width": COLUMN + 48, "height": SCREEN})
    found.goto(file.as_uri())
    found.wait_for_function("() => [...document.images].every(image => image.complete)")
    return found


def test_the_readme_fits_on_two_screens(page: Any) -> None:
    height = page.evaluate("() => document.querySelector('main').getBoundingClientRect().height")
    assert SCREEN < height <= 2 * SCREEN


def test_pictures_of_the_readme_are_there_and_nothing_is_cut(page: Any) -> None:
    assert page.evaluate("() => [...document.images].map(image => image.naturalWidth > 0)") == [True, True]
    cut = "() => [...document.querySelectorAll('pre, table')].filter(each => each.scrollWidth > each.clientWidth + 1)"
    assert page.evaluate(f"{cut}.map(each => each.innerText)") == []


def test_a_phone_shows_the_pictures_and_need_not_scroll_sideways(page: Any) -> None:
    wide = page.viewport_size
    page.set_viewport_size({"width": PHONE, "height": SCREEN})
    pictures = page.evaluate("() => [...document.images].map(image => image.getBoundingClientRect().width)")
    assert min(pictures) > 0.9 * PHONE
    assert page.evaluate("() => document.documentElement.scrollWidth") <= PHONE
    page.set_viewport_size(wide)
