"""`lightdp ui` and `lightdp run --live` as users start them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("uvicorn")
import httpx

from support.command_line import assert_refused
from support.pages import eventually, serving
from support.run_logs import logged, written

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Run

TRAIN = ["run", "--clients", "6", "--colluders", "1", "--stragglers", "1", "--epsilon", "50", "--no-report", "--live"]


def test_the_link_opens_the_page_and_ctrl_c_ends_with_0(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with serving(tmp_path / "logs") as served:
        assert served.base.startswith("http://127.0.0.1:")
        assert httpx.get(served.link).status_code == 200
        assert httpx.get(served.base + "/plan").status_code == 403
        assert httpx.get(served.base + "/plan", headers=served.bearer).status_code == 200
        assert served.stop() == 0
    token = tmp_path / "state" / "lightdp" / "ui.token"
    assert token.read_text().strip() == served.token


def test_the_other_address_of_this_machine_works_and_needs_no_warning(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    try:
        with socket.socket(socket.AF_INET6) as other:
            other.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no ::1")
    with serving(tmp_path / "logs", "--host", "::1") as served:
        assert served.base.startswith("http://[::1]:")
        assert httpx.get(served.link).status_code == 200


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_although_somebody_watches(tmp_path: Path, ends: signal.Signals) -> None:
    (tmp_path / "logs").mkdir()
    written(tmp_path / "logs" / "a.jsonl", logged()[:-1])
    with serving(tmp_path / "logs") as served:
        with httpx.stream("GET", served.base + "/api/events?run=a.jsonl", headers=served.bearer, timeout=20) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("retry")
            served.process.send_signal(ends)
            assert "event: stop" in list(lines)
        assert served.process.wait(20) == 0


def test_only_this_machine_can_reach_it(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with serving(tmp_path / "logs") as served:
        with socket.socket() as other:
            other.bind(("127.0.0.2", 0))  # another address of this machine
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.2:{served.port}/plan", headers=served.bearer)


def test_an_address_that_others_reach_is_warned_about(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lightdp", "ui", str(tmp_path), "--host", "0.0.0.0", "--port", "0", "--no-browser"]  # noqa: S104
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        link = re.search(r"http\S+", process.stdout.readline())
        assert link is not None
        assert httpx.get(link[0]).status_code == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert err.startswith("warning: others on the network can reach this page")
    assert process.returncode == 0


def test_a_port_in_use_is_one_line(tmp_path: Path, run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("ui", tmp_path, "--port", port, "--token-file", tmp_path / "token", "--no-browser")
    assert_refused(done, f"port={port}", "Address already in use", "port 0")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none"], "FOLDER must be a folder"),
        ([".", "--port", "70000"], "port must be in 0..65535, got port=70000"),
        ([".", "--host", "192.0.2.1", "--port", "0"], "host='192.0.2.1'"),
        ([".", "--token-file", "open"], "private"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "open").write_text("x" * 50)
    (tmp_path / "open").chmod(0o644)
    done = run("ui", *arguments, "--no-browser")
    assert done.code == 2
    assert "Traceback" not in done.err
    assert words in done.err.splitlines()[-1]


def test_a_home_that_cannot_be_written_has_a_token_for_this_run(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "state").write_text("no folder")
    with serving(tmp_path / "logs") as served:
        assert httpx.get(served.link).status_code == 200


@pytest.mark.parametrize("command", [["ui"], ["run", "--live", "--out", "new.jsonl"]])
def test_without_the_extra_one_line_says_which(tmp_path: Path, command: list[str]) -> None:
    code = f"import sys; sys.modules['uvicorn'] = None; sys.argv[1:] = {command!r}; from lightdp import cli; cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    said = "error: lightdp ui needs an extra; from a clone: pip install '.[ui]'\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A browser that writes down the link to which the file leads that it is to open."""
    script, opened = tmp_path / "browser", tmp_path / "opened"
    script.write_text(f"""#!/bin/sh
echo "$1" > {tmp_path}/argument
sed 's/&amp;/\\&/g' "${{1#file://}}" | sed -nE 's/.*href="([^"]*)".*/\\1/p' > {opened}.new
mv {opened}.new {opened}
""")
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(script))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return opened


def test_the_token_is_in_no_argument_and_the_file_that_holds_it_is_private(tmp_path: Path, browser: Path) -> None:
    (tmp_path / "logs").mkdir()
    words = [sys.executable, "-m", "lightdp", "ui", str(tmp_path / "logs"), "--port", "0"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as served:
        link = eventually(lambda: browser.exists() and browser.read_text().strip())
        assert httpx.get(link).status_code == 200
        (page,) = tmp_path.glob("lightdp-*.html")
        assert (tmp_path / "argument").read_text().strip() == page.as_uri()
        assert page.stat().st_mode & 0o777 == 0o600
        served.send_signal(signal.SIGINT)
        assert served.wait(20) == 0
    assert not page.exists()


def test_a_live_run_opens_its_page_which_ends_with_the_command(tmp_path: Path, browser: Path) -> None:
    pytest.importorskip("torch")
    words = [sys.executable, "-m", "lightdp", *TRAIN, "--rounds", "40", "--json", "--out", str(tmp_path / "a.jsonl")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        link = eventually(lambda: browser.exists() and browser.read_text().strip())
        assert "/runs/view?run=a.jsonl&token=" in link
        rounds, ended = 0, False
        base, token = re.match(r"(http://[^/]+)/.*token=(\S+)", link).groups()  # type: ignore[union-attr]
        url, own = base + "/api/events?run=a.jsonl", {"authorization": f"Bearer {token}"}
        with httpx.stream("GET", url, headers=own, timeout=60) as stream:
            for line in stream.iter_lines():
                if line.startswith('data: {"runs'):
                    (found,) = json.loads(line[6:])["runs"]
                    rounds += len(found["rows"])
                    ended = found["figures"]["status"] == "finished"
                if line == "event: stop":
                    break
        out, err = process.communicate(timeout=60)
    assert (rounds, ended) == (40, True)  # the last look is after the end
    assert process.returncode == 0
    assert json.loads(out)["rounds"] == 40
    assert f"live: {link}" in err
    with pytest.raises(httpx.ConnectError):
        httpx.get(link)


def is_gone(link: str) -> bool:
    try:
        httpx.get(link)
    except httpx.TransportError:
        return True
    return False


@pytest.mark.parametrize("option", ["--browser", "--no-browser"])
def test_the_page_of_a_run_that_is_killed_ends_too(tmp_path: Path, browser: Path, option: str) -> None:
    pytest.importorskip("torch")
    words = [sys.executable, "-m", "lightdp", *TRAIN, option, "--rounds", "5000", "--out", str(tmp_path / "a.jsonl")]
    said = tmp_path / "said"
    with said.open("w") as err, subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=err) as process:
        link = eventually(lambda: re.search(r"live: (http\S+)\n", said.read_text()))[1]
        eventually((tmp_path / "a.jsonl").exists)
        process.kill()
    eventually(lambda: is_gone(link))
    if option == "--browser":
        assert eventually(browser.exists)
    else:
        assert not browser.exists()


def test_a_page_that_cannot_start_does_not_touch_the_training(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    done = run(*TRAIN, "--rounds", "2", "--json", "--out", tmp_path / "a.jsonl")
    assert (done.code, json.loads(done.out)["rounds"]) == (0, 2)
