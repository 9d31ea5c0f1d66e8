"""What the server answers, behind its guard."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)  # fmt: skip
from starlette.routing import Route

from lightdp.errors import ArgumentError
from lightdp.planning import HEADINGS
from lightdp.report import FATES, LOOK, WHEREABOUTS, engine, save_runs
from lightdp.runlog import MOST_BYTES, RunLog
from lightdp.schemes import schemes
from lightdp.web._audited import audited
from lightdp.web._folder import Folder
from lightdp.web._guard import REPORT_POLICY
from lightdp.web._metrics import TYPE, exposed
from lightdp.web._plan import CONTROLS, answer, field_of, others, settings
from lightdp.web._state import figures, table
from lightdp.web._stream import events

_HERE = Path(__file__).parent
_SCRIPTS = {path.name: path for path in sorted(_HERE.glob("*.js"))}
_MOST_RUNS = 8  # on one page
_FRESH = {"cache-control": "private, max-age=31536000, immutable"}


@cache
def _script(name: str) -> str:
    """The address of a script, another one for another content, so that a browser may keep it."""
    every = b"".join(path.read_bytes() for path in _SCRIPTS.values())  # they import each other
    return f"/static/{hashlib.sha256(every).hexdigest()[:12]}/{name}"


def _page(name: str, title: str, summary: str, **more: Any) -> HTMLResponse:  # noqa: ANN401  what the template takes
    words: dict[str, Any] = {"title": title, "summary": summary, "font": LOOK["font"], "specs": {}, "scripts": ""}
    words |= {"script": _script, "schemes": schemes(), "fates": FATES, "whereabouts": WHEREABOUTS}
    return HTMLResponse(engine(_HERE).get_template(name).render(**words, **more))


def _refused(error: ArgumentError, code: int = 422) -> JSONResponse:
    return JSONResponse({"error": str(error), "field": field_of(str(error))}, code)


class App:
    """The routes.

    Args:
        folder: whose logs are shown.
        stopping: whether the server is about to end.
    """

    def __init__(self, folder: Folder, stopping: Callable[[], bool]) -> None:
        self._folder, self._stopping = folder, stopping
        self._plans, self._slow, self._audits = CapacityLimiter(2), CapacityLimiter(1), CapacityLimiter(1)

    def routes(self) -> Starlette:
        """As an ASGI app."""
        get = [
            ("/", self.front), ("/plan", self.plan), ("/api/plan", self.planned), ("/api/others", self.compared),
            ("/runs", self.runs), ("/api/runs", self.listed), ("/runs/view", self.view), ("/api/events", self.stream),
            ("/runs/log", self.log), ("/runs/csv", self.csv), ("/runs/model", self.model),
            ("/runs/report", self.report), ("/metrics", self.metrics), ("/static/{digest}/{name}", self.static),
            ("/favicon.ico", self.icon),
        ]  # fmt: skip
        paths = [Route(path, function, methods=["GET"]) for path, function in get]
        return Starlette(
            routes=[*paths, Route("/api/audit", self.audit, methods=["POST"])],
            exception_handlers={
                ArgumentError: lambda _, error: _refused(error, 404),
                ArithmeticError: lambda _, error: _refused(ArgumentError(f"run must have sound figures: {error}")),
            },
        )

    async def front(self, request: Request) -> Response:
        """To the planner, with the settings of the query."""
        return RedirectResponse(f"/plan?{request.url.query}" if request.url.query else "/plan", 303)

    async def icon(self, _: Request) -> Response:
        """There is none, and browsers ask for it."""
        return Response(status_code=204)

    async def static(self, request: Request) -> Response:
        """One of our scripts."""
        path = _SCRIPTS.get(request.path_params["name"])
        if path is None:
            return PlainTextResponse("no such script\n", 404)
        return FileResponse(path, media_type="text/javascript", headers=_FRESH)

    async def plan(self, _: Request) -> Response:
        """The planner; its script reads the query."""
        groups: dict[str, list[Any]] = {}
        for control in CONTROLS:
            groups.setdefault(control.group, []).append(control)
        lead = "How much privacy can you have, and what does it cost? Every number is the one that lightdp plan prints."
        return _page(
            "plan.html", "Plan", lead, groups=groups, headings=HEADINGS, here="plan", folder=self._folder.label
        )

    async def planned(self, request: Request) -> Response:
        """The plan of a query."""
        return await self._computed(request, answer, self._plans)

    async def compared(self, request: Request) -> Response:
        """All schemes for a query."""
        return await self._computed(request, others, self._slow)  # a quick plan waits for none of these

    async def _computed(
        self, request: Request, compute: Callable[[Mapping[str, Any]], dict[str, Any]], limiter: CapacityLimiter
    ) -> Response:
        try:
            asked = settings(request.query_params.multi_items())
            found = await to_thread.run_sync(partial(compute, asked), limiter=limiter)
        except ArgumentError as error:
            return _refused(error)
        return JSONResponse({"asked": asked} | found)

    async def runs(self, _: Request) -> Response:
        """The logs of the folder."""
        return _page("runs.html", "Runs", f"Run logs in {self._folder.label}", here="runs", folder=self._folder.label)

    def _listed(self) -> list[dict[str, Any]]:
        found = self._folder.logs()
        return [figures(name, each, model=self._folder.model(name) is not None) for name, each in found]

    async def listed(self, _: Request) -> Response:
        """The figures of every log."""
        return JSONResponse({"runs": await to_thread.run_sync(self._listed)})

    def _names(self, request: Request) -> list[str]:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not 1 <= len(names) <= _MOST_RUNS:
            raise ArgumentError(f"run must be given 1 to {_MOST_RUNS} times, got {len(names)}")
        return names

    async def view(self, request: Request) -> Response:
        """One run, or several laid over each other, live."""
        names = self._names(request)
        title = names[0] if len(names) == 1 else f"{len(names)} runs compared"
        return _page(
            "run.html",
            title,
            "Everything here comes from the log.",
            here="runs",
            names=names,
            folder=self._folder.label,
        )

    async def stream(self, request: Request) -> Response:
        """Server-sent events; `Last-Event-ID`, or `after`, says where a reader stopped."""
        names = self._names(request)
        marks = (request.headers.get("last-event-id") or request.query_params.get("after", "")).split(",")
        if len(marks) != len(names):
            marks = [""] * len(names)
        stream = events(self._folder, names, marks, self._stopping)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-cache"})

    def _name(self, request: Request) -> str:
        [name, *more] = self._names(request)
        if more:
            raise ArgumentError(f"run must be given once, got {1 + len(more)}")
        return name

    async def log(self, request: Request) -> Response:
        """The log, as it is."""
        path = self._folder.file(self._name(request))
        return FileResponse(path, media_type="application/x-ndjson", filename=path.name)

    def _read_whole(self, name: str) -> Path:
        """The file of a log that is not too long to be read at once."""
        path = self._folder.file(name)
        if (size := path.stat().st_size) > MOST_BYTES:
            raise ArgumentError(f"run must have at most {MOST_BYTES:,} bytes, got run={name!r} with {size:,}")
        return path

    async def csv(self, request: Request) -> Response:
        """The rounds as a table."""
        path = self._read_whole(self._name(request))
        text = await to_thread.run_sync(lambda: table(RunLog.read(path, torn=True)))
        name = json.dumps(path.with_suffix(".csv").name.encode("ascii", "replace").decode())
        return Response(text, media_type="text/csv", headers={"content-disposition": f"attachment; filename={name}"})

    async def model(self, request: Request) -> Response:
        """The model beside the log."""
        name = self._name(request)
        self._folder.file(name)
        if (path := self._folder.model(name)) is None:
            raise ArgumentError(f"run must have a model beside it, got run={name!r}")
        return FileResponse(path, media_type="application/octet-stream", filename=path.name)

    async def report(self, request: Request) -> Response:
        """The page of `lightdp report`."""
        paths = [self._read_whole(name) for name in self._names(request)]

        def drawn() -> str:
            with tempfile.TemporaryDirectory() as place:
                save_runs([RunLog.read(path, torn=True) for path in paths], file := Path(place) / "report.html")
                return file.read_text(encoding="utf-8")

        text = await to_thread.run_sync(drawn, limiter=self._slow)
        return HTMLResponse(text, headers={"content-security-policy": REPORT_POLICY})

    async def audit(self, request: Request) -> Response:
        """`lightdp audit` of a log."""
        path = self._read_whole(self._name(request))
        async with self._audits:
            try:
                return JSONResponse(await audited(path))
            except ArgumentError as error:
                return _refused(error)

    async def metrics(self, _: Request) -> Response:
        """For Prometheus."""
        runs = await to_thread.run_sync(self._listed)
        return Response(exposed(runs, version("lightdp-fl")), headers={"content-type": TYPE})
