"""Exceptions and their codes, and the page of refusals that is made from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightdp import errors


def kinds() -> list[type[errors.LightDPError]]:
    return [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]


def test_the_page_of_refusals_is_that_of_the_code() -> None:
    page = Path(__file__).parents[1] / "docs/reference/refusals.md"
    assert page.read_text(encoding="utf-8") == errors.page(), "python -m lightdp.errors > docs/reference/refusals.md"


@pytest.mark.parametrize("kind", kinds())
def test_every_code_is_on_the_page_with_what_to_do(kind: type[errors.LightDPError]) -> None:
    assert "code" in vars(kind)
    assert "refusals" in vars(kind)  # those of a base are not its own
    assert f"## `lightdp/{kind.code}`\n" in errors.page()
    assert errors.remedy_of(f"lightdp/{kind.code}: whatever it may be") == vars(kind)["remedy"]
    for each in kind.refusals:
        assert f"| `{each.says}` | {each.why} | {each.remedy} |" in errors.page()


def test_codes_and_words_tell_refusals_apart() -> None:
    assert len({kind.code for kind in kinds()}) == len(kinds()) == 7
    for kind in kinds():
        for each in kind.refusals:
            said = f"lightdp/{kind.code}: it is 7 that " + each.says.replace("…", "x=1") + " and so on"
            assert errors.refusal_of(said) == each
            assert errors.remedy_of(said) == each.remedy


@pytest.mark.parametrize("text", ["", "the plan must not change in a run", "lightdp/nothing: x", "other/budget: x"])
def test_other_text_has_no_remedy(text: str) -> None:
    assert errors.refusal_of(text) is None
    assert errors.remedy_of(text) is None


def test_words_are_looked_for_under_their_own_code() -> None:
    assert errors.refusal_of("lightdp/wire: the plan must not change in a run") is None
    assert errors.remedy_of("lightdp/wire: the plan must not change in a run") == errors.WireError.remedy
