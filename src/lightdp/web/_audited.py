"""`lightdp audit run.jsonl` for a page: the command itself, in a process of its own that can be ended."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightdp.errors import ArgumentError

LIMIT_S = 120.0
"""An audit that takes longer is ended."""


async def audited(log: Path, limit: float = LIMIT_S) -> dict[str, Any]:
    """What `lightdp audit LOG --json` prints.

    Args:
        log: the file.
        limit: in seconds.

    Raises:
        ArgumentError: the command refuses the log, or takes too long.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "lightdp", "audit", str(log), "--json",  # -P: no module of the current folder
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), limit)
    except TimeoutError:
        raise ArgumentError(f"the audit took more than {limit:g} s and was ended: lightdp audit {log}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode in (0, 1):
        with suppress(ValueError):  # Python ends with 1 too where it dies
            return json.loads(out)
    words = err.decode("utf-8", "replace").strip().splitlines() or [f"it ended with {process.returncode}"]
    said = words[-1].removeprefix("error: ")
    raise ArgumentError(said if process.returncode == 2 else f"the audit failed: {said}")
