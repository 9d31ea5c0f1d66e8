"""Local pages: a planner that answers as you move its sliders, and runs as they go on.

`serve` is what `lightdp ui` calls, `beside` what `lightdp run --live` does. One process answers on this machine alone,
behind a token (`_guard` lists what stops whom); it opens nothing but logs below one folder and their models, and asks
no other server for anything. Plans come from `lightdp.plan`, logs from `lightdp.runlog`. Needs the extra `ui`.

>>> from lightdp import web
>>> web.page_of("demo.jsonl")
'/runs/view?run=demo.jsonl'
"""

from lightdp.errors import MissingExtraError

try:
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError:
    raise MissingExtraError("ui", "lightdp ui") from None

from lightdp.web._serve import beside, is_loopback, open_browser, page_of, serve, token_file

__all__ = ["beside", "is_loopback", "open_browser", "page_of", "serve", "token_file"]
