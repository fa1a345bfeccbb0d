"""A language server without a model: it suggests what the trace of conftest.py goes on with.

Arguments: ``--stall=2,3`` never answers these requests (counted from 1) until they are cancelled;
``--state=error`` never becomes ready; ``--model=NAME`` is what the status says; ``--die=N`` ends at
request N. Statuses of background work are mixed in everywhere, and the status that belongs to an
answer comes before it and after it in turn.
"""

from __future__ import annotations

import sys

from fimlsp.bench.jsonrpc import Json, frame, read_message

FUTURE = "def smile():\n    return '😀', value + 1\n\n\nsmile()\n"


class Server:
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.stalled = {int(n) for n in options.get("stall", "").split(",") if n}
        self.texts: dict[str, str] = {}
        self.asked = 0
        self.answered = 0
        self.last = {"promptTokens": 0, "tokens": 0}
        self.pending: object = None

    def send(self, message: Json) -> None:
        sys.stdout.buffer.write(frame(message))
        sys.stdout.buffer.flush()

    def status(self, state: str, reason: str = "") -> None:
        params = {
            "state": state,
            "message": "as the test wants it",
            "model": self.options.get("model", "tiny.gguf"),
            "backend": "scripted",
            "reason": reason,
            "requests": self.answered,
            "last": self.last,
        }
        self.send({"method": "fimlsp/status", "params": params})

    def handle(self, message: Json) -> None:
        params = message.get("params", {})
        match message["method"]:
            case "initialize":
                self.send({"id": message["id"], "result": {"capabilities": {}}})
                self.status("loading")
                self.status(self.options.get("state", "ready"))
            case "textDocument/didOpen":
                self.texts[params["textDocument"]["uri"]] = params["textDocument"]["text"]
                self.status("busy")
            case "textDocument/didChange":
                self.change(params["textDocument"]["uri"], params["contentChanges"])
            case "textDocument/didClose":
                del self.texts[params["textDocument"]["uri"]]
            case "textDocument/inlineCompletion":
                self.complete(message["id"], params)
            case "$/cancelRequest" if params["id"] == self.pending:
                self.pending = None
                error = {"code": -32800, "message": "cancelled"}
                self.answered += 1
                self.send({"id": params["id"], "error": error})
                self.status("ready", "cancelled")
            case "shutdown":
                assert not self.texts, f"still open: {list(self.texts)}"
                self.send({"id": message["id"], "result": None})
            case "exit":
                sys.exit(0)

    def change(self, uri: str, changes: list[Json]) -> None:
        for change in changes:
            text, where = self.texts[uri], change["range"]
            start, end = offset(text, where["start"]), offset(text, where["end"])
            self.texts[uri] = text[:start] + change["text"] + text[end:]

    def complete(self, message_id: object, params: Json) -> None:
        self.asked += 1
        if self.asked == int(self.options.get("die", "0")):
            sys.exit(3)
        if self.asked in self.stalled:
            self.pending = message_id
            return
        text, place = self.texts[params["textDocument"]["uri"]], params["position"]
        cursor = offset(text, place)
        assert FUTURE.startswith(text[:cursor]), text
        first = text[:cursor].endswith("', ")
        self.last = {"promptTokens": 40, "tokens": 5} if first else {"promptTokens": 2, "tokens": 3}
        if text[:cursor].endswith("va"):
            self.last = {"promptTokens": 0, "tokens": 0}
        suggestion = FUTURE[cursor:].split("\n")[0]
        item = {"insertText": suggestion, "range": {"start": place, "end": place}}
        answer = {"id": message_id, "result": {"items": [item] if suggestion else []}}
        self.status("busy")
        self.answered += 1
        if self.answered % 2:
            self.send(answer)
            self.status("ready")
        else:
            self.status("ready")
            self.send(answer)


def offset(text: str, place: Json) -> int:
    lines = text.split("\n")
    units = lines[place["line"]].encode("utf-16-le")[: 2 * place["character"]]
    return sum(len(line) + 1 for line in lines[: place["line"]]) + len(units.decode("utf-16-le"))


def main() -> None:
    options = dict(argument.removeprefix("--").split("=") for argument in sys.argv[1:])
    server = Server(options)
    while (message := read_message(sys.stdin.buffer)) is not None:
        server.handle(message)


if __name__ == "__main__":
    main()
