"""The app of `lightdp ui` in this process, asked without a network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx

from lightdp.web._app import App
from lightdp.web._folder import Folder
from lightdp.web._guard import Guard

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "right-" + "x" * 40
BASE = "http://127.0.0.1:8765"
BEARER = {"authorization": f"Bearer {TOKEN}"}


class Asked:
    """A client that keeps cookies; its server is about to end, so that streams do."""

    def __init__(self, folder: Path, **options: Any) -> None:
        app = App(Folder(folder), lambda: True).routes()
        self._app, self._cookies = Guard(app, token=TOKEN, port=8765, **options), httpx.Cookies()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, cookies=self._cookies) as client:
                reply = await client.request(method, BASE + path, **options)
                self._cookies = client.cookies
                return reply

        return asyncio.run(asked())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)
