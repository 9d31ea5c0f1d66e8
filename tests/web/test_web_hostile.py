"""Folders, logs, cookies and connections of somebody who wants to do harm."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import socket
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("starlette")
import httpx

from lightdp.errors import ArgumentError
from lightdp.runlog import MOST_BYTES, Follower, LogWriter, RunLog
from lightdp.web import _guard, _serve
from lightdp.web._app import App
from lightdp.web._audited import audited
from lightdp.web._folder import Folder
from lightdp.web._guard import Guard
from support.asked import BASE, BEARER, TOKEN, Asked
from support.audited_logs import a_plan, lines_of, some_rounds
from support.pages import eventually, serving
from support.run_logs import Lines, logged, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

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


def put(line: int, **values: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[line].update(values)


def deep(line: int, where: str, **values: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[line][where].update(values)


ODD = {
    "noise": put(3, noise_std=1e200),
    "epsilon": put(-1, epsilon=1e308),
    "claimed": deep(0, "plan", epsilon=1e308),
    "clients": deep(0, "config", clients="HUGE"),
    "negative": deep(0, "config", clients="-HUGE"),
    "rounds": deep(0, "config", rounds=10**400),
    "most rounds": deep(0, "config", rounds=10**308),
    "scheme": deep(0, "config", scheme=["list"]),
    "half": deep(0, "config", dataset="\ud800"),
    "half key": deep(0, "config", **{"\udfff": 1}),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("whole", [True, False])
def test_an_odd_log_is_shown_as_damaged_and_takes_no_other_with_it(tmp_path: Path, odd: str, *, whole: bool) -> None:
    lines = logged()
    ODD[odd](lines)
    text = "".join(json.dumps(line) + "\n" for line in (lines if whole else lines[:-1]))
    (tmp_path / "odd.jsonl").write_text(re.sub('"(-?)HUGE"', r"\g<1>1e999", text))
    written(tmp_path / "good.jsonl", logged())
    asked = Asked(tmp_path)
    runs = {run["name"]: run for run in asked.get("/api/runs", headers=BEARER).json()["runs"]}
    assert runs["good.jsonl"]["status"] == "finished"
    assert 'run="good.jsonl"' in asked.get("/metrics", headers=BEARER).text
    assert "event: stop" in asked.get("/api/events?run=odd.jsonl&run=good.jsonl", headers=BEARER).text
    for path in ("csv", "report"):
        assert asked.get(f"/runs/{path}?run=odd.jsonl", headers=BEARER).status_code in {200, 404, 422}
    if odd not in {"most rounds", "scheme", "claimed"} and (whole or odd != "epsilon"):
        assert runs["odd.jsonl"]["status"] == "damaged"
        assert runs["odd.jsonl"]["error"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_not_unicode_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"f\xff")
    folder.mkdir()
    written(folder / "good.jsonl", logged())
    written(folder / os.fsdecode(b"b\xff.jsonl"), logged())
    asked = Asked(folder)
    assert [run["name"] for run in asked.get("/api/runs", headers=BEARER).json()["runs"]] == ["good.jsonl"]
    assert [asked.get(path, headers=BEARER).status_code for path in ("/metrics", "/runs", "/plan")] == [200] * 3


@pytest.mark.parametrize(
    ("text", "fine"),
    [('"\\ud83d\\ude00"', True), ("1e300", True), ('"1e999"', True), ("1e999", False), ("-1E+400", False),
     ('"\\ud83d"', False), ('["\\uDC00"]', False), ("9" * 308, True), ("9" * 309, False)],
)  # fmt: skip
def test_a_line_holds_unicode_and_numbers_that_are_finite(tmp_path: Path, text: str, *, fine: bool) -> None:
    lines = logged()
    lines[0]["config"]["odd"] = "HERE"
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines).replace('"HERE"', text))
    if fine:
        assert RunLog.read(path).started.config["odd"] == json.loads(text)
    else:
        with pytest.raises(ArgumentError, match=r"line 1: (a number must be finite|text must be Unicode)"):
            RunLog.read(path)


def test_a_line_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    first = RunLog.read(written(path, logged())).started
    with LogWriter(path) as log, pytest.raises(ArgumentError, match="must be Unicode"):
        log.write(dataclasses.replace(first, config={"file": "\udcff"}))
    assert path.read_bytes() == b""


def test_a_folder_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    folder, secret = tmp_path / "logs", tmp_path / "secret"
    (folder / "below").mkdir(parents=True)
    secret.mkdir()
    written(folder / "below" / "a.jsonl", logged()[:-1])
    written(secret / "a.jsonl", logged())
    asked = Asked(folder)
    assert '"running"' in asked.get("/api/events?run=below/a.jsonl", headers=BEARER).text
    (folder / "below").rename(tmp_path / "away")
    assert '"gone"' in asked.get("/api/events?run=below/a.jsonl", headers=BEARER).text
    (folder / "below").symlink_to(secret)
    text = asked.get("/api/events?run=below/a.jsonl", headers=BEARER).text
    assert '"gone"' in text
    assert '"finished"' not in text
    (folder / "below").unlink()
    (tmp_path / "away").rename(folder / "below")
    assert '"running"' in asked.get("/api/events?run=below/a.jsonl", headers=BEARER).text


def padded(path: Path, size: int) -> Path:
    """A log with one whole line, then zeros that take no place on the disk."""
    written(path, logged()[:1])
    os.truncate(path, size)
    return path


def test_a_log_that_is_too_long_is_read_in_no_route(tmp_path: Path) -> None:
    padded(tmp_path / "a.jsonl", MOST_BYTES + 1)
    asked = Asked(tmp_path)
    (run,) = asked.get("/api/runs", headers=BEARER).json()["runs"]
    assert "bytes" in run["error"]
    for method, path in (("GET", "/runs/csv"), ("GET", "/runs/report"), ("POST", "/api/audit")):
        reply = asked.request(method, f"{path}?run=a.jsonl", headers=OWN)
        assert (reply.status_code, "must have at most" in reply.json()["error"]) == (404, True)


def test_a_line_that_is_too_long_is_damage(tmp_path: Path) -> None:
    followed = Follower(padded(tmp_path / "a.jsonl", 2**26 + 2000))
    followed.look()
    assert len(followed.lines) == 1
    assert "line 2 must have fewer than" in str(followed.error)


def test_an_unfinished_line_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps(line) + "\n" for line in logged()]
    path = tmp_path / "a.jsonl"
    path.write_text(lines[0] + lines[1][:-20])
    followed, read_bytes = Follower(path), list[int]()

    def read(file: BinaryIO) -> None:
        Follower._read(followed, file)
        read_bytes.append(file.tell())

    monkeypatch.setattr(followed, "_read", read)
    assert [followed.look() for _ in range(3)] == [True, False, False]
    assert read_bytes == [path.stat().st_size, len(lines[0]), len(lines[0])]
    with path.open("a") as file:
        file.write(lines[1][-20:])
    assert followed.look()
    assert len(followed.lines) == 2


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_of_many_connections_that_ask_nothing_the_oldest_are_closed_at_once(tmp_path: Path) -> None:
    """So that files to open do not run out; those who ask are answered."""
    (tmp_path / "logs").mkdir()
    patient = "import runpy; from lightdp.web import _serve; _serve._ASK_S = 1e6; "
    patient += "runpy.run_module('lightdp', None, '__main__')"
    with (
        serving(tmp_path / "logs", program=("-c", patient)) as served,
        ExitStack() as stack,
        httpx.Client(headers=served.bearer) as owner,
    ):
        assert owner.get(served.base + "/plan").status_code == 200
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", served.port))) for _ in range(600)]
        for each in idle:
            each.settimeout(0)
        eventually(lambda: sum(not ended(each) for each in idle) <= _serve._MOST_WAITING)
        assert all(ended(each) for each in idle[:100])
        assert not any(ended(each) for each in idle[-50:])
        assert owner.get(served.base + "/plan").status_code == 200
        assert httpx.get(served.base + "/plan", headers=served.bearer).status_code == 200


def test_connections_that_ask_nothing_keep_nobody_out_and_are_closed(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with serving(tmp_path / "logs") as served, ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", served.port))) for _ in range(250)]
        for each in idle[1::2]:
            each.sendall(b"GET /plan HTTP/1.1\r\nHost: ")  # and no more
        assert httpx.get(served.base + "/plan", headers=served.bearer).status_code == 200
        for each in idle[-2:]:
            each.settimeout(30)
            assert ended(each)
        refused = httpx.get(served.base + "/plan")
        assert (refused.status_code, refused.headers["connection"]) == (403, "close")
        assert httpx.get(served.link).status_code == 200


def test_requests_at_once_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_guard, "_MOST_ASKED", 0)
    assert Asked(tmp_path).get("/plan", headers=BEARER).status_code == 503
    assert Asked(tmp_path).get("/plan").status_code == 403
