"""The real server over stdio or TCP, with a scripted service: ``python serve_scripted.py [--tcp]``.

A document's language id says how its requests are answered. Messages ``test/...`` look inside.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fakes import Answer, ScriptedService

from fimlsp.completion.api import ServiceState, Status, Trigger
from fimlsp.document import Completion, NoCompletion, Reason, Snapshot, Timings
from fimlsp.lsp.server import build_server, run_stdio, run_tcp
from fimlsp.lsp.settings import SettingsSource

TIMINGS = Timings(prompt_tokens=3, reused_tokens=250, tokens=5, decode_ms=51.26, draft_source="")


class Behaviour:
    """Answers by language id; any that is not listed gets ``REPLY``."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def __call__(self, snapshot: Snapshot, trigger: Trigger) -> Answer:
        match snapshot.language_id:
            case "gate":
                await self.gate.wait()
            case "hang":
                await asyncio.Event().wait()
            case "stubborn":
                await self._unwind_slowly()
            case "raise":
                raise RuntimeError("a bug in the service")
            case "prints":
                self._print_everywhere()
            case "lines":
                return (Completion(text="é\nb)", replace_after=1, timings=TIMINGS),)
            case "many":
                return (Completion(text="one"), Completion(text="two"))
            case "greedy":
                return (Completion(text="x", replace_after=99),)
            case name if name in set(Reason):
                return NoCompletion(reason=Reason(name), detail="as the script says")
        return (Completion(text="REPLY", timings=TIMINGS),)

    async def _unwind_slowly(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self.gate.wait()

    def _print_everywhere(self) -> None:
        print("Python talks")  # noqa: T201 - it must not reach the client
        os.write(1, b"C talks\n")
        subprocess.run([sys.executable, "-c", "print('a child talks')"], check=True)


def main() -> int:
    behaviour = Behaviour()
    service = ScriptedService(behaviour)
    settings: list[list[Any]] = []
    started: list[bool] = []

    def on_settings(source: SettingsSource, options: Any) -> list[str]:
        settings.append([source.value, options])
        return list(options.get("complaints", [])) if isinstance(options, dict) else ["no object"]

    def on_started() -> None:
        started.append(asyncio.get_running_loop().is_running())

    server = build_server(service, on_settings, on_started)

    @server.feature("test/report")
    def report(params: Any) -> dict[str, Any]:
        return {
            "params": params,
            "asked": [[s.path, s.version, s.cursor, t.value] for s, t in service.asked],
            "cancelled": len(service.cancelled),
            "open": service.open_uris,
            "settings": settings,
            "started": started,
        }

    @server.feature("test/status")
    def set_status(params: dict[str, Any]) -> None:
        last = Timings(**params.pop("last", {}))
        service.status = Status(state=ServiceState(params.pop("state")), last=last, **params)

    @server.feature("test/open_gate")
    def open_gate(params: None) -> None:
        behaviour.gate.set()

    if "--loading" in sys.argv:
        service.status = Status(state=ServiceState.LOADING, model="scripted.gguf", progress=0.25)
    if "--tcp" in sys.argv:
        return run_tcp(server, on_listening=lambda host, port: announce(host, port))
    return run_stdio(server)


def announce(host: str, port: int) -> None:
    print(json.dumps({"host": host, "port": port}), flush=True)  # noqa: T201 - the test waits for it


if __name__ == "__main__":
    sys.exit(main())
