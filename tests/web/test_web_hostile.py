"""Folders, logs, cookies and connections of somebody who wants to do harm."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("starlette")

from lightdp.errors import ArgumentError
from lightdp.web._app import App
from lightdp.web._audited import audited
from lightdp.web._folder import Folder
from lightdp.web._guard import Guard
from support.asked import BASE, BEARER, TOKEN, Asked
from support.audited_logs import a_plan, lines_of, some_rounds
from support.pages import eventually
from support.run_logs import logged, written

if TYPE_CHECKING:
    from pathlib import Path

OWN = BEARER | {"origin": BASE}


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder has modules of the names that commands import; they leave a file behind."""
    for name in ("typer", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'caught')!r}, 'w')\nraise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "caught"


def test_an_audit_imports_nothing_from_the_folder(tmp_path: Path, trap: Path) -> None:
    plan = a_plan()
    written(tmp_path / "a.jsonl", lines_of(plan, some_rounds(plan, 8)))
    assert Asked(tmp_path).post("/api/audit?run=a.jsonl", headers=OWN).json()["holds"] is True
    assert not trap.exists()


def test_a_live_page_imports_nothing_from_the_folder(
    tmp_path: Path, trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightdp.web import beside  # noqa: PLC0415  after the trap

    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\necho there > {tmp_path / 'opened'}\n")
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with beside(tmp_path / "a.jsonl"):
        eventually((tmp_path / "opened").exists)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError(3)", "the audit failed: KeyError: 3"),
        ("raise SystemExit(1)", "the audit failed: it ended with"),
    ],
)
def test_an_audit_that_dies_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str) -> None:
    (tmp_path / "broken" / "typer").mkdir(parents=True)
    (tmp_path / "broken" / "typer" / "__init__.py").write_text(body)
    path = written(tmp_path / "a.jsonl", logged())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"), prepend=":")
    with pytest.raises(ArgumentError, match=said):
        asyncio.run(audited(path))


def entered(folder: Path) -> str:
    """The value of the cookie that the link gives."""
    (found,) = re.findall(r"lightdp-8765=([^;]*)", Asked(folder).get(f"/plan?token={TOKEN}").headers["set-cookie"])
    return found


def test_the_cookie_is_not_the_token_and_stands_for_it_nowhere_else(tmp_path: Path) -> None:
    value = entered(tmp_path)
    assert TOKEN not in value
    assert value == entered(tmp_path)  # so that pages go on after a restart
    others = [{"authorization": f"Bearer {value}"}, {"cookie": f"lightdp-8765={TOKEN}"}]
    assert [Asked(tmp_path).get("/plan", headers=each).status_code for each in others] == [403, 403]
    assert Asked(tmp_path).get(f"/plan?token={value}").status_code == 403
    there = Guard(App(Folder(tmp_path), lambda: True).routes(), token=TOKEN, port=8766)
    scope = {
        "type": "http", "method": "GET", "scheme": "http", "path": "/plan", "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8766"), (b"cookie", f"lightdp-8766={value}".encode())],
    }  # fmt: skip
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(there(scope, None, send))  # type: ignore[arg-type]
    assert sent[0]["status"] == 403


@pytest.mark.parametrize(
    "around", ['bad="{}; %s', "a,b=[1]; %s; c", "%s; lightdp-8765=wrong", "lightdp-8765=wrong;%s", "=; ;; %s", "é; %s"]
)
def test_cookies_of_other_servers_lock_nobody_out(tmp_path: Path, around: str) -> None:
    sent = (around % f"lightdp-8765={entered(tmp_path)}").encode("latin-1")
    assert Asked(tmp_path).get("/plan", headers=[(b"cookie", sent)]).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/%09/evil.example/", "/%0a/evil.example", "/%09%5Cevil.example", "//%2Fevil.example", "/%5C/evil.example/"],
)
def test_the_page_after_the_link_is_none_of_another_server(tmp_path: Path, path: str) -> None:
    text = Asked(tmp_path).get(f"{path}?token={TOKEN}").text
    (place,) = re.findall(r'url=([^"]*)"', text)
    seen = place.translate({ord(each): None for each in "\t\r\n"}).replace("\\", "/")  # as browsers read it
    assert seen.startswith("/")
    assert not seen.startswith("//")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8765#evil", "127.0.0.1:8765?", "127.0.0.1:8765/", "127.0.0.1:8765;a", "[::1", "127.0.0.1:٨٧٦٥"]
)
def test_a_host_with_more_than_a_name_and_a_port_is_refused(tmp_path: Path, host: str) -> None:
    sent = [(b"host", host.encode()), (b"authorization", BEARER["authorization"].encode())]
    assert Asked(tmp_path).get("/plan", headers=sent).status_code == 400
