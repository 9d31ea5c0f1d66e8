"""Who may ask: the holder of the token, from a page of this server, under a name of this machine.

| attack | what stops it |
| --- | --- |
| another user or program of the machine asks | the token, of 256 bits, compared in constant time |
| a web page asks in the user's browser (CSRF) | `Origin`, `Sec-Fetch-Site` and a `SameSite=Strict` cookie |
| a web page's name is made to mean 127.0.0.1 (DNS rebinding) | `Host` must be an address or name of this machine |
| a log contains markup or a script | everything is escaped, and the policy runs scripts of this server only |
| a page of this server sends data away, or is framed | the policy names no other server |
| another server on this machine reads its visitors' cookies | the cookie is a MAC of the port under the token |

Browsers send cookies of 127.0.0.1 to every port of it. The cookie proves its holder to a server on the same port with
the same token, and is no token: no bearer, no link, nothing on another port. It stays good over restarts, so that open
pages go on; a program of another user that the browser asks can keep it, and use it as long as a server with this token
runs on that port. Another token ends that.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from html import escape
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightdp._files import contents, durable
from lightdp.errors import ArgumentError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (  # of the page of `lightdp report`, which carries its scripts and asks for nothing
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::(?P<port>[0-9]{1,5}))?")
_MOST_ASKED = 200  # requests at once of those who are let in, streams among them
_LOCAL = ("localhost", "127.0.0.1", "::1")
ENTER = """<!doctype html><html lang=en><meta charset=utf-8><title>lightdp</title>
<meta http-equiv=refresh content="0;url={place}"><p><a href="{place}">Continue</a></p>"""
"""A page that leads to another one."""
_CLOSED = """<!doctype html><html lang=en><meta charset=utf-8><title>lightdp</title>
<meta name=viewport content="width=device-width, initial-scale=1"><style>:root {color-scheme: light dark}
body {font: 16px/1.5 system-ui, sans-serif; max-width: 60ch; margin: 15vh auto; padding: 0 20px}</style>
<h1>Open the link with its token</h1><p>The command <code>lightdp ui</code> has printed a link that ends in
<code>token=…</code>. Open that one.</p><p>If you did so before, and came here by a link of another page:
<a href="">open this page again</a>.</p>"""


def token(path: Path) -> str:
    """The token in a private file, which is made if there is none.

    Raises:
        ArgumentError: the file is not private, or holds something else, or cannot be made.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with suppress(FileExistsError), durable(path, replace=False) as file:  # another one may be quicker
                file.write(secrets.token_urlsafe(32).encode() + b"\n")
        found = contents(path, limit=256, private=True).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"token_file must be readable and writable, got {str(path)!r}: {error}") from None
    if len(found) < 32 or not found.replace("-", "").replace("_", "").isalnum():
        raise ArgumentError(f"token_file must hold at least 32 letters and digits, got {str(path)!r} with others")
    return found


class Guard:
    """Lets requests through to an app, or answers 400, 403 or 503; all answers get the headers of a closed page.

    Args:
        app: what is guarded.
        token: the secret.
        port: on which the server listens.
        hosts: names and addresses, besides those of loopback, by which it may be called.
        any_address: whether it may be called by any address, as it must where it listens on all of them.
    """

    def __init__(
        self, app: ASGIApp, *, token: str, port: int, hosts: Iterable[str] = (), any_address: bool = False
    ) -> None:
        self._app, self._token, self._port = app, token, port
        self._hosts = {*_LOCAL, *(host.lower() for host in hosts)}
        self._any = any_address
        self._asked = 0
        self.cookie = f"lightdp-{port}"  # cookies know no ports
        self._proof = hmac.new(token.encode(), f"lightdp cookie {port}".encode(), "sha256").hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check and pass on; connections other than plain HTTP are refused."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def closed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._answer(scope)
        if refused is None and self._asked >= _MOST_ASKED:
            refused = PlainTextResponse("too many requests at once\n", 503)
        if refused is not None:
            refused.headers["connection"] = "close"  # strangers hold none open
            await refused(scope, receive, closed)
            return
        self._asked += 1
        try:
            await self._app(scope, receive, closed)
        finally:
            self._asked -= 1

    def _answer(self, scope: Scope) -> Response | None:
        """What is answered in the place of the app."""
        headers = Headers(scope=scope)
        if not self._known(headers.get("host", "")):
            return PlainTextResponse("the Host of a request must be an address of this machine\n", 400)
        if _foreign(scope, headers):
            return PlainTextResponse("requests of pages of other servers are refused\n", 403)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given and scope["method"] == "GET":
            if not _same(given[-1], self._token):
                return HTMLResponse(_CLOSED, 403)
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            place = "/" + quote(scope["path"].lstrip("/\\")) + (f"?{rest}" if rest else "")
            entered = HTMLResponse(ENTER.format(place=escape(place)))
            entered.set_cookie(self.cookie, self._proof, httponly=True, samesite="strict", path="/")
            return entered
        if self._shown(headers):
            return None
        return HTMLResponse(_CLOSED, 403, headers={"www-authenticate": "Bearer"})

    def _known(self, host: str) -> bool:
        found = _HOST.fullmatch(host.lower())
        if found is None or int(found["port"] or 80) != self._port:
            return False
        name = found["six"] or found["name"]
        return name in self._hosts or (self._any and _is_address(name))

    def _shown(self, headers: Headers) -> bool:
        """Whether a header shows the token, or a cookie its proof; cookies of other servers may have any form."""
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return _same(value.strip(), self._token)
        pairs = (each.strip().partition("=") for each in ";".join(headers.getlist("cookie")).split(";"))
        return any(_same(value, self._proof) for name, _, value in pairs if name == self.cookie)


def _same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def _foreign(scope: Scope, headers: Headers) -> bool:
    """Whether a page of another server asks; only opening a page by a link of another one is let through."""
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{scope['scheme']}://{headers.get('host', '')}".lower():
        return True
    opened = scope["method"] == "GET" and headers.get("sec-fetch-mode", "navigate") == "navigate"
    return headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not opened


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
