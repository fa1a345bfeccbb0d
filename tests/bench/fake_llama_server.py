"""A stand-in for llama-server: fails /health once, then answers /infill with ``value + 1``.

The first argument is a file that gets its command line and each request body as JSON lines; the
rest are llama-server's own flags. ``prompt_n`` counts 100 for a first request and 7 afterwards. A
model named ``broken`` ends it at once; one named ``refused`` is answered with an HTTP error.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

LOG = Path(sys.argv[1])
FLAGS = sys.argv[2:]
MODEL = Path(FLAGS[FLAGS.index("-m") + 1]).stem


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    healths = 0
    infills = 0

    def do_GET(self) -> None:
        Handler.healths += 1
        self.answer(503 if Handler.healths == 1 else 200, {"path": self.path})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        write({"path": self.path, "body": body})
        if MODEL == "refused":
            self.answer(501, {"error": "Infill is not supported by this model"})
            return
        Handler.infills += 1
        rest = "value + 1\n\n"
        rest = rest.removeprefix(body["prompt"].partition(", ")[2])
        self.answer(200, {"content": rest, "timings/prompt_n": 100 if Handler.infills == 1 else 7})

    def answer(self, status: int, data: object) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def write(data: object) -> None:
    with LOG.open("a", encoding="utf-8") as file:
        file.write(json.dumps(data) + "\n")


def main() -> None:
    if MODEL == "broken":
        sys.exit("error: the file is no model")
    write({"argv": FLAGS, "pid": os.getpid(), "env": sorted(os.environ)})
    port = int(FLAGS[FLAGS.index("--port") + 1])
    HTTPServer((FLAGS[FLAGS.index("--host") + 1], port), Handler).serve_forever()


if __name__ == "__main__":
    main()
