"""What pages of the documentation show runs, from the first block of a page to its last, and prints what they show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from support.docs import LANGUAGES, PAGES, ROOT, Reader, agrees, blocks

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Run

GROUPS = ("bench", "identity", "prior", "state")
TUTORIALS = ("first-training.md", "own-data.md", "simulation-to-flower.md")
"""Followed by tests of their own, which look at more: tests/test_tutorials.py, test_docs_own_data.py."""
WRONG = {
    "false": "page.md",
    "false | true": "page.md",
    "ls absent\ntrue": "absent",
    "lightdp plan --absent": "No such option",
    "lightdp compare --absent": "No such option",
    "lightdp reproduce table9 --data-path DIR": "'table9' is not one of",
    "lightdp absent DIR": "No such command",
    "lightdp ui absent": "FOLDER must be a folder",
    "flwr run examples/flower-minimal --absent": "No such option",
    "flwr run examples/absent": "examples/absent/pyproject.toml",
    "flwr run examples/flower-minimal --run-config absent=1": "no setting {'absent'}",
    "flwr supernode register absent.pub": "No such file",
    "flower-supernode --absent": "unrecognized arguments",
    "flower-supernode --insecure --node-config lightdp-absent=1": "no setting {'absent'}",
    "make absent": "No rule to make target",
    "pip install '.[absent]'": "no extra {'absent'}",
    "pip install -c absent.txt '.[train]'": "No such file",
    "systemctl enable --now absent": "absent.service",
    "journalctl -u absent -f": "absent.service",
}
"""Commands, and what is said against them."""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in TUTORIALS], ids=named)
def test_a_page_does_what_it_shows(page: Path, tmp_path: Path) -> None:
    Reader(page, tmp_path).follow()


def test_every_block_says_what_it_is_so_that_no_command_goes_unnoticed() -> None:
    for page in PAGES:
        text = page.read_text()
        assert len(blocks(page)) == len(re.findall(r"^ *(?:```|~~~)", text, flags=re.MULTILINE)) / 2, page.name
        assert {block.language for block in blocks(page)} <= LANGUAGES, page.name
        for block in blocks(page, "text"):
            assert not re.search(r"^(?:\$|lightdp|flwr|make|pip|python) ", block.text, flags=re.MULTILINE), block.text


def test_options_of_commands_in_the_text_exist(run: Run) -> None:
    helped = dict[str, str]()
    for page in (page for page in PAGES if page.name != "wire.md"):  # where bytes begin so
        for text in re.findall(r"`lightdp ([a-z][^`\n]*)`", re.sub("(?ms)^```.*?^```", "", page.read_text())):
            words = text.split()
            command = " ".join(words[: 2 if words[0] in GROUPS else 1])
            if command not in helped:
                done = run(*command.split(), "--help")
                assert done.code == 0, f"{page.name}: lightdp {text}"
                helped[command] = done.out
            for option in re.findall(r"(?<!\S)--[a-z-]+", text):
                assert re.search(rf"{option}(?![\w-])", helped[command]), f"{page.name}: lightdp {text}: {option}"


def test_lines_that_are_left_out_stand_for_any_number_and_no_others() -> None:
    assert agrees(["a", "b", "c"], ["a", "...", "c"])
    assert agrees(["a", "c"], ["a", "...", "c"])
    assert not agrees(["a", "b", "c", "d"], ["a", "...", "c"])
    assert not agrees(["a", "b"], ["a"])


@pytest.mark.parametrize(("commands", "said"), WRONG.items(), ids=WRONG)
def test_a_command_that_is_wrong_is_found(commands: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=re.escape(said)):
        followed(f"```sh\n{commands}\n```\n", tmp_path)


@pytest.mark.parametrize("program", ["make", "ssh-keygen"])
def test_a_page_is_skipped_where_a_program_is_missing(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=rf"page\.md needs {program}$"):
        followed(f"```sh\nfalse\n{program} absent\n```\n", tmp_path)


def test_output_that_differs_is_found(tmp_path: Path) -> None:
    followed("```console\n$ echo one\none\n$ echo two\n```\n", tmp_path / "right")
    with pytest.raises(AssertionError, match="one"):
        followed("```console\n$ echo one\ntwo\n```\n", tmp_path / "wrong")


def test_files_folders_and_variables_last_for_a_page_and_home_is_its_own(tmp_path: Path) -> None:
    reader = followed(
        """
```toml title="made.toml"
a = 1
```

```sh
grep -q "a = 1" made.toml
cd examples && export NAME="with a space"
cp ../made.toml /etc/made.toml
touch ~/at-home
```

```python
open("by-python", "w").close()
```

```sh
echo "$NAME" in "${PWD##*/}"; ls /etc/made.toml ../by-python
```
""",
        tmp_path,
    )
    assert reader.printed == ["", "with a space in examples\n../by-python\n/etc/made.toml\n"]
    assert (tmp_path / "home/at-home").exists()


def followed(text: str, place: Path) -> Reader:
    """Somebody who has followed a page of this text."""
    place.mkdir(exist_ok=True)
    (place / "page.md").write_text(text, encoding="utf-8")
    reader = Reader(place / "page.md", place)
    reader.follow()
    return reader
