"""Runs as they go on: nothing is lost or doubled, whatever happens to the file or the server."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("starlette")

from lightdp.runlog import Follower, LogWriter, RunLog
from lightdp.runlog._read import read_line
from lightdp.web._folder import Folder
from lightdp.web._stream import events, news
from support.asked import BEARER, Asked
from support.run_logs import Lines, logged, written

if TYPE_CHECKING:
    from pathlib import Path


def text(lines: Lines) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


class Reader:
    """What a page does with events."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}
        self.mark, self.got, self.resets = "", 0, 0

    def take(self, folder: Folder) -> dict[str, Any]:
        ([found], [self.mark]) = news(folder, ["a.jsonl"], [self.mark])
        if found["reset"]:
            self.rows.clear()
            self.resets += 1
        self.got += len(found["rows"])
        self.rows |= {row["round"]: row for row in found["rows"]}
        return found["figures"]


def test_a_log_that_is_written_in_pieces_comes_line_by_line_once(tmp_path: Path) -> None:
    whole, path = text(logged(rounds=40)), tmp_path / "a.jsonl"
    cuts = sorted(random.Random(1).sample(range(1, len(whole)), 60))  # noqa: S311  where a file is cut
    reader, folder = Reader(), Folder(tmp_path)
    path.write_bytes(b"")
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        with path.open("ab") as file:
            file.write(whole[start:end])
        state = reader.take(folder)
        seen = whole[:end].count(b"\n")
        assert len(reader.rows) == max(0, min(seen - 1, 40))
    assert state["status"] == "finished"
    assert (reader.got, reader.resets) == (40, 0)


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, path = logged(rounds=50), tmp_path / "a.jsonl"
    written(path, lines[:-2])
    followed, checked = Follower(path), list[int]()

    def counted(*arguments: Any, **more: Any) -> Any:
        checked.append(1)
        return read_line(*arguments, **more)

    monkeypatch.setattr("lightdp.runlog._follow.read_line", counted)
    followed.look()
    assert len(checked) == 50
    with path.open("ab") as file:
        file.write(text(lines[-2:]))
    followed.look()
    assert not followed.look()
    assert len(checked) == 52


def test_another_server_goes_on_after_the_last_event(tmp_path: Path) -> None:
    lines, path = logged(rounds=9), tmp_path / "a.jsonl"
    written(path, lines[:5])
    reader = Reader()
    reader.take(Folder(tmp_path))
    written(path, lines)
    reader.take(Folder(tmp_path))  # a new one, as after a restart
    assert (reader.got, reader.resets, sorted(reader.rows)) == (9, 0, [*range(1, 10)])


def test_a_reader_of_another_log_begins_anew(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", logged(rounds=9))
    folder, reader = Folder(tmp_path), Reader()
    reader.take(folder)
    written(path, logged("exact", rounds=5))  # overwritten, as by --overwrite
    reader.take(folder)
    assert (reader.resets, sorted(reader.rows)) == (1, [1, 2, 3, 4, 5])
    assert reader.rows[5]["epsilon"] == RunLog.read(path).rounds[4].epsilon


def test_a_run_that_is_resumed_from_an_earlier_round_is_shown_as_it_is(tmp_path: Path) -> None:
    lines, path = logged(rounds=9)[:-1], tmp_path / "a.jsonl"
    written(path, lines)
    folder, reader = Folder(tmp_path), Reader()
    reader.take(folder)
    with LogWriter(path, keep=4) as log:
        reader.take(folder)
        assert sorted(reader.rows) in ([1, 2, 3], [1, 2, 3, 4])  # the newline of the last comes with the next
        log.write(RunLog.read(written(tmp_path / "b.jsonl", lines)).rounds[4])
    reader.take(folder)
    assert sorted(reader.rows) == [1, 2, 3, 4, 5]


def test_a_log_that_is_away_keeps_its_rounds_and_comes_back(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", logged()[:-1])
    folder, reader = Folder(tmp_path), Reader()
    reader.take(folder)
    path.rename(tmp_path / "away")
    assert reader.take(folder)["status"] == "gone"
    assert len(reader.rows) == 7
    written(path, logged())
    assert reader.take(folder)["status"] == "finished"
    assert (len(reader.rows), reader.resets) == (7, 0)


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    folder, reader = Folder(tmp_path), Reader()
    assert reader.take(folder)["status"] == "gone"
    written(tmp_path / "a.jsonl", logged())
    assert reader.take(folder)["status"] == "finished"
    assert len(reader.rows) == 7


def test_a_link_in_the_place_of_a_followed_log_is_not_followed(tmp_path: Path) -> None:
    place = tmp_path / "logs"
    place.mkdir()
    path = written(place / "a.jsonl", logged()[:-1])
    folder, reader = Folder(place), Reader()
    reader.take(folder)
    path.unlink()
    path.symlink_to(written(tmp_path / "other.jsonl", logged("exact")))
    assert reader.take(folder)["status"] == "gone"


def told(folder: Folder, names: list[str], marks: list[str]) -> list[dict[str, str]]:
    async def collected() -> str:
        return "".join([each async for each in events(folder, names, marks, lambda: True)])

    blocks = asyncio.run(collected()).strip().split("\n\n")
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]


def test_events_have_the_form_that_browsers_read(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", logged())
    written(tmp_path / "b.jsonl", logged("exact"))
    retry, event, stop = told(Folder(tmp_path), ["a.jsonl", "b.jsonl"], ["", ""])
    assert int(retry["retry"]) > 0
    assert stop["event"] == "stop"
    data = json.loads(event["data"])
    assert [len(run["rows"]) for run in data["runs"]] == [7, 7]
    marks = event["id"].split(",")
    again = json.loads(told(Folder(tmp_path), ["a.jsonl", "b.jsonl"], marks)[1]["data"])
    assert [(run["rows"], run["reset"]) for run in again["runs"]] == [([], False)] * 2


def test_the_stream_goes_on_after_last_event_id_or_after(tmp_path: Path) -> None:
    written(tmp_path / "a.jsonl", logged())
    asked = Asked(tmp_path)
    first = asked.get("/api/events?run=a.jsonl", headers=BEARER)
    assert first.headers["content-type"].startswith("text/event-stream")
    (mark,) = (line[4:] for line in first.text.splitlines() if line.startswith("id: "))
    for reply in (
        asked.get("/api/events?run=a.jsonl", headers=BEARER | {"last-event-id": mark}),
        asked.get(f"/api/events?run=a.jsonl&after={mark}", headers=BEARER),
    ):
        (data,) = (json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith('data: {"runs'))
        assert data["runs"][0]["rows"] == []


def test_a_folder_is_walked_once_in_a_while_and_forgets_what_is_not_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "a.jsonl", logged())
    written(tmp_path / "b.jsonl", logged("exact"))
    now, walks = [1000.0], list[int]()
    folder, names = Folder(tmp_path), Folder._names

    def counted(self: Folder) -> Any:
        walks.append(1)
        return names(self)

    monkeypatch.setattr(Folder, "_names", counted)
    monkeypatch.setattr("lightdp.web._folder.time.monotonic", lambda: now[0])
    first = {name: followed for _ in range(5) for name, followed in folder.logs()}
    assert (sorted(first), len(walks)) == (["a.jsonl", "b.jsonl"], 1)
    for _ in range(20):
        now[0] += 4
        assert folder.follow("a.jsonl") is first["a.jsonl"]
    assert folder.follow("b.jsonl") is not first["b.jsonl"]  # its lines were dropped
    folder.logs()
    assert len(walks) == 2
