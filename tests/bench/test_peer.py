import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from fimlsp.bench.peer import InfillClient, LlamaServer, PatientPeer
from fimlsp.bench.traces import Trace
from fimlsp.errors import PeerError

Fake = tuple[tuple[str, ...], Path]


def log_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_server_runs_on_loopback_with_the_model_and_threads(
    fake_llama_server: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, log = fake_llama_server
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "17")
    with LlamaServer(command, Path("dir/tiny.gguf"), 3) as server:
        started = log_of(log)[0]
    flags = started["argv"]
    pairs = dict(zip(flags[::2], flags[1::2], strict=False))
    assert pairs["-m"] == str(Path("dir/tiny.gguf"))
    assert (pairs["-t"], pairs["-tb"]) == ("3", "3")
    assert (pairs["--host"], pairs["--port"]) == ("127.0.0.1", str(server.port))
    assert "LLAMA_ARG_CTX_SIZE" not in started["env"]


def test_the_server_ends_with_the_block_also_after_an_error(fake_llama_server: Fake) -> None:
    command, log = fake_llama_server
    with (
        pytest.raises(ZeroDivisionError),
        LlamaServer(command, Path("tiny.gguf"), 1) as server,
    ):
        raise ZeroDivisionError
    assert server.process.returncode is not None
    assert not psutil.pid_exists(log_of(log)[0]["pid"])
    server.close()


def test_a_server_that_ends_while_loading_is_an_error_with_its_words(
    fake_llama_server: Fake,
) -> None:
    with pytest.raises(PeerError, match=r"ended with 1.*\n.*the file is no model"):
        LlamaServer(fake_llama_server[0], Path("broken.gguf"), 1)


def test_a_program_that_is_not_there_is_an_error_that_says_what_to_give() -> None:
    with pytest.raises(PeerError, match=r"no-such-program.*give the path"):
        LlamaServer(["./no-such-program"], Path("tiny.gguf"), 1)


def test_each_key_is_a_request_of_its_own_and_known_text_is_noted(
    fake_llama_server: Fake, trace: Trace
) -> None:
    command, log = fake_llama_server
    with LlamaServer(command, Path("tiny.gguf"), 1) as server:
        peer = PatientPeer(InfillClient(server.port))
        peer.start(trace)
        answers = [peer.key(trace, stroke, None) for stroke in range(3)]
        peer.finish()
    assert [answer.prompt_tokens for answer in answers] == [100, 7, 7]
    assert [answer.without_model for answer in answers] == [False, True, True]
    edits = [answer.edit for answer in answers]
    assert [edit and edit.text for edit in edits] == ["value + 1", "alue + 1", "lue + 1"]
    assert all(answer.ms > 0 for answer in answers)
    bodies = [line["body"] for line in log_of(log)[1:]]
    assert [body["prompt"] for body in bodies] == [
        "    return '😀', ",
        "    return '😀', v",
        "    return '😀', va",
    ]


def test_an_http_error_is_quoted(fake_llama_server: Fake, trace: Trace) -> None:
    with LlamaServer(fake_llama_server[0], Path("refused.gguf"), 1) as server:
        peer = PatientPeer(InfillClient(server.port))
        peer.start(trace)
        with pytest.raises(PeerError, match=r"501.*not supported by this model"):
            peer.key(trace, 0, None)
        peer.finish()


def test_a_server_that_went_away_is_an_error(fake_llama_server: Fake, trace: Trace) -> None:
    with LlamaServer(fake_llama_server[0], Path("tiny.gguf"), 1) as server:
        port = server.port
    with pytest.raises(PeerError, match=f"can't reach the peer on port {port}"):
        PatientPeer(InfillClient(port)).start(trace)
