"""Who may ask, and what can be asked for."""

from __future__ import annotations

import os
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("starlette")

from lightdp.errors import ArgumentError
from lightdp.web._guard import token
from support.asked import BASE, BEARER, TOKEN, Asked
from support.run_logs import logged, written

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "logs"
    (place / "below").mkdir(parents=True)
    written(place / "a.jsonl", logged())
    written(place / "below" / "b c: é.jsonl", logged("exact"))
    written(tmp_path / "outside.jsonl", logged())
    (tmp_path / "secret.txt").write_text("secret")
    return place


@pytest.mark.parametrize(
    "path", ["/plan", "/api/plan", "/api/runs", "/runs/log?run=a.jsonl", "/metrics", "/static/x/ui.js"]
)
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"cookie": "lightdp-8765=wrong"}])
def test_nothing_is_answered_without_the_token(folder: Path, path: str, headers: dict[str, str]) -> None:
    reply = Asked(folder).get(path, headers=headers)
    assert reply.status_code == 403
    assert "token" in reply.text
    assert TOKEN not in reply.text


def test_the_link_gives_a_strict_cookie_and_leaves_the_token_out_of_the_address(folder: Path) -> None:
    asked = Asked(folder)
    reply = asked.get(f"/runs/view?run=a.jsonl&token={TOKEN}")
    assert reply.status_code == 200
    cookie = SimpleCookie(reply.headers["set-cookie"])["lightdp-8765"]
    assert (cookie["httponly"], cookie["samesite"].lower(), cookie["path"]) == (True, "strict", "/")
    assert 'content="0;url=/runs/view?run=a.jsonl"' in reply.text
    assert TOKEN not in reply.text
    assert asked.get("/plan").status_code == 200  # by the cookie
    assert Asked(folder).get("/plan?token=wrong").status_code == 403


def test_the_page_after_the_link_is_one_of_this_server_and_no_markup(folder: Path) -> None:
    reply = Asked(folder).get(f'//evil.example/"><script>alert(1)</script>?a="><b>&token={TOKEN}')
    assert "<script" not in reply.text
    assert "//evil" not in reply.text
    assert "<b>" not in reply.text


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8765@evil", "192.0.2.1:8765", ""],
)
def test_a_name_that_is_not_of_this_machine_is_refused(folder: Path, host: str) -> None:
    assert Asked(folder).get("/plan", headers=BEARER | {"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "LOCALHOST:8765", "[::1]:8765"])
def test_names_of_this_machine_are_let_in(folder: Path, host: str) -> None:
    assert Asked(folder).get("/plan", headers=BEARER | {"host": host}).status_code == 200


def test_a_server_on_all_addresses_may_be_called_by_any_address_but_not_by_any_name(folder: Path) -> None:
    asked = Asked(folder, hosts=["box"], any_address=True)
    codes = {host: asked.get("/plan", headers=BEARER | {"host": f"{host}:8765"}).status_code for host in
             ("192.0.2.1", "[2001:db8::1]", "box", "evil.example")}  # fmt: skip
    assert codes == {"192.0.2.1": 200, "[2001:db8::1]": 200, "box": 200, "evil.example": 400}


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "https://127.0.0.1:8765"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
    ],
)
def test_pages_of_other_servers_are_refused_also_with_the_token(folder: Path, headers: dict[str, str]) -> None:
    for reply in (
        Asked(folder).get("/api/runs", headers=BEARER | headers),
        Asked(folder).post("/api/audit?run=a.jsonl", headers=BEARER | headers),
    ):
        assert reply.status_code == 403


def test_own_pages_and_links_to_them_are_let_in(folder: Path) -> None:
    own = {"origin": BASE, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert Asked(folder).get("/api/runs", headers=BEARER | own).status_code == 200
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert Asked(folder).get("/plan", headers=BEARER | link).status_code == 200
    assert Asked(folder).post("/api/audit?run=a.jsonl", headers=BEARER | link).status_code == 403


@pytest.mark.parametrize("path", ["/plan", "/runs", "/api/runs", "/metrics", "/nothing", "/runs/log?run=a.jsonl"])
def test_every_answer_is_closed_to_others(folder: Path, path: str) -> None:
    headers = Asked(folder).get(path, headers=BEARER).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy  # neither inline nor eval
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "name",
    [
        "../outside.jsonl", "below/../../outside.jsonl", "/etc/passwd", "..\\outside.jsonl", "a.jsonl/..", "secret.txt",
        "../secret.txt", "link.jsonl", "linked/b.jsonl", "linked/b c: é.jsonl", ".hidden.jsonl",
        "a.jsonl\0", "", ".", "below", "./a.jsonl",
        "below//b c: é.jsonl", "%2e%2e/outside.jsonl", "pipe.jsonl", "other.jsonl",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/runs/log", "/runs/csv", "/runs/model", "/runs/report", "/api/audit"])
def test_nothing_but_logs_below_the_folder_is_opened(folder: Path, path: str, name: str) -> None:
    (folder / "link.jsonl").symlink_to(folder.parent / "outside.jsonl")
    (folder / "linked").symlink_to(folder / "below")
    written(folder / ".hidden.jsonl", logged())
    (folder / "other.jsonl").write_text("my notes")
    os.mkfifo(folder / "pipe.jsonl")
    method = "POST" if path == "/api/audit" else "GET"
    reply = Asked(folder).request(method, path, params={"run": name}, headers=BEARER | {"origin": BASE})
    assert reply.status_code == 404
    assert reply.json()["error"].startswith("run must be")


def test_links_and_other_files_are_not_listed(folder: Path) -> None:
    (folder / "link.jsonl").symlink_to(folder.parent / "outside.jsonl")
    (folder / "linked").symlink_to(folder.parent)
    (folder / "other.jsonl").write_text('{"config": {}}\n')
    os.mkfifo(folder / "pipe.jsonl")
    asked = Asked(folder)
    runs = asked.get("/api/runs", headers=BEARER).json()["runs"]
    for run in runs:
        assert asked.get("/runs/csv", params={"run": run["name"]}, headers=BEARER).status_code == 200
    assert sorted(run["name"] for run in runs) == ["a.jsonl", "below/b c: é.jsonl"]


def test_a_model_beside_a_log_is_given_and_one_behind_a_link_is_not(folder: Path) -> None:
    asked = Asked(folder)
    assert asked.get("/runs/model?run=a.jsonl", headers=BEARER).status_code == 404
    (folder / "a.safetensors").symlink_to(folder.parent / "secret.txt")
    assert asked.get("/runs/model?run=a.jsonl", headers=BEARER).status_code == 404
    (folder / "a.safetensors").unlink()
    (folder / "a.safetensors").write_bytes(b"weights")
    reply = asked.get("/runs/model?run=a.jsonl", headers=BEARER)
    assert reply.content == b"weights"
    assert reply.headers["content-disposition"].startswith("attachment")


def test_a_token_is_made_once_private_and_long(tmp_path: Path) -> None:
    file = tmp_path / "new" / "ui.token"
    first = token(file)
    assert token(file) == first
    assert len(first) >= 43
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(ArgumentError, match="private"):
        token(file)


@pytest.mark.parametrize("text", ["", "short", "x" * 40 + " y", "\xff" * 40])
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ui.token"
    file.write_text(text, encoding="latin-1")
    file.chmod(0o600)
    with pytest.raises(ArgumentError, match="token_file must"):
        token(file)


@pytest.mark.parametrize("place", ["link", "file/ui.token"])
def test_a_token_that_can_be_neither_read_nor_made_is_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ArgumentError, match=r"token_file must be readable and writable, got .*(link|file)"):
        token(tmp_path / place)


def test_the_settings_of_a_link_to_the_front_page_reach_the_planner(folder: Path) -> None:
    asked = Asked(folder)
    assert 'url=/?clients=5&amp;colluders=7"' in asked.get(f"/?token={TOKEN}&clients=5&colluders=7").text
    assert asked.get("/?clients=5&colluders=7").headers["location"] == "/plan?clients=5&colluders=7"
    assert asked.get("/").headers["location"] == "/plan"
