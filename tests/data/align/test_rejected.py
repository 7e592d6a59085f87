"""Rejected sides through a real HTTP server: what it gets, how often it is asked, and nothing lost by a failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from colosseum.cli.main import main
from colosseum.data.align.encode import Encoder
from colosseum.data.align.endpoint import Endpoint
from colosseum.data.align.jsonl import read_lines
from colosseum.errors import RefusedInput, RunFailed

from .conftest import spec, write_rows

KEY = "sk-a-key-that-nobody-may-see"
Reply = tuple[int, dict[str, str], bytes]


def chat(text: str, finish: str = "stop") -> Reply:
    body = {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]}
    return 200, {}, json.dumps(body).encode()


def completion(text: str) -> Reply:
    return 200, {}, json.dumps({"choices": [{"text": text, "finish_reason": "stop"}]}).encode()


class Server(ThreadingHTTPServer):
    """Keeps what it is asked; ``replies`` says what it answers to a request's path and body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.replies: Callable[[str, dict[str, Any]], Reply] = lambda path, body: chat("Maybe.")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, dict(self.headers), body))
        status, headers, content = self.server.replies(self.path, body)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # a client may stop reading: a reply that is too long
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def row(number: int, answer: str = "Four.") -> dict[str, Any]:
    turns = [{"from": "User", "value": f"Two and {number}?"}, {"from": "Assistant", "value": answer, "label": None}]
    return {"system": "Be brief.", "mask": "User", "type": None, "conversations": turns, "id": number}


def asked_of(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THE_KEY", KEY)
    monkeypatch.setattr(Endpoint, "__post_init__", _quick(Endpoint.__post_init__))
    return write_rows(tmp_path / "sft.jsonl", [row(n) for n in range(6)])


def _quick(check: Callable[[Endpoint], None]) -> Callable[[Endpoint], None]:
    """An endpoint that is asked again at once: the waits of a night are not a test's."""

    def post_init(self: Endpoint) -> None:
        object.__setattr__(self, "wait_s", 0.01)
        check(self)

    return post_init


def command(server: Server, out: str = "pairs.jsonl", *more: str) -> list[str]:
    words = ["align", "generate-rejected", "sft.jsonl", out, "--endpoint", server.url, "--model", "m"]
    return [*words, "--key-from", "THE_KEY", "--batch-size", "3", *more]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_pairs_that_training_takes(
    data: Path, server: Server, special_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {"Two and 1?": "Four.", "Two and 2?": "", "Two and 3?": "Perhaps\n<b>é"}
    server.replies = lambda _, body: chat(answers.get(asked_of(body), "Five."), finish="length")
    assert main(command(server)) == 0
    shown = capsys.readouterr()
    assert "pairs.jsonl: 4 pairs" in shown.out
    assert "left out: 2 rows" in shown.out
    assert KEY not in shown.out + shown.err
    pairs = read(data.parent / "pairs.jsonl")
    assert [pair["id"] for pair in pairs] == [0, 3, 4, 5]
    assert pairs[1] == {
        "system": "Be brief.",
        "id": 3,
        "prompt": [{"from": "User", "value": "Two and 3?"}],
        "chosen": [{"from": "Assistant", "value": "Four."}],
        "rejected": [{"from": "Assistant", "value": "Perhaps\n<b>é"}],
    }
    encoder = Encoder(spec(special_file, "preference"))
    assert all(len(encoder.rendered(line.content)) == 2 for line in read_lines(data.parent / "pairs.jsonl"))
    path, headers, body = server.asked[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["messages"][1]["role"] == "user"
    assert (body["model"], body["max_tokens"], body["temperature"], body["top_p"]) == ("m", 512, 0.7, 0.95)
    assert len({body["seed"] for _, _, body in server.asked}) == 6
    assert not (data.parent / "pairs.jsonl.partial").exists()
    assert not any(KEY.encode() in path.read_bytes() for path in data.parent.iterdir())


def test_texts_and_other_spellings(data: Path, server: Server) -> None:
    end = "\n<extra_id_1>"
    rows: list[dict[str, Any]] = [
        {"prompt": "<extra_id_1>User\nTwo?\n<extra_id_1>Assistant\n", "chosen_response": f"Yes.{end}"},
        {"prompt": [{"role": "user", "content": "Two?"}], "chosen": {"role": "assistant", "content": "Yes."}},
        {"messages": [{"role": "user", "content": "Two?"}, {"role": "assistant", "content": "Yes."}]},
    ]
    write_rows(data, rows)
    server.replies = lambda path, _: completion("No.\n") if path == "/v1/completions" else chat("No.")
    assert main(command(server)) == 0
    pairs = read(data.parent / "pairs.jsonl")
    assert (pairs[0]["chosen"], pairs[0]["rejected"]) == (f"Yes.{end}", f"No.{end}")
    for pair in pairs[1:]:
        assert pair["prompt"] == [{"role": "user", "content": "Two?"}]
        assert pair["chosen"] == [{"role": "assistant", "content": "Yes."}]
        assert pair["rejected"] == [{"role": "assistant", "content": "No."}]
    (text,) = [body for path, _, body in server.asked if path == "/v1/completions"]
    assert (text["prompt"], text["stop"]) == (rows[0]["prompt"], ["<extra_id_1>"])


def test_an_interrupted_call_goes_on(data: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The fourth question is refused for good; later it is not. No answered one is asked again."""
    broken = True

    def replies(_: str, body: dict[str, Any]) -> Reply:
        if broken and asked_of(body) == "Two and 3?":
            return 400, {}, b'{"error": {"message": "no \x1b[2J, and not with ' + KEY.encode() + b'"}}'
        return chat(f"About {asked_of(body)}")

    server.replies = replies
    assert main([*command(server), "--batch-size", "1"]) == 2
    shown = capsys.readouterr()
    assert "refuses the request: HTTP 400" in " ".join(shown.err.split())
    assert KEY not in shown.err
    assert "\x1b[2J" not in shown.err
    partial = data.parent / "pairs.jsonl.partial"
    answered = len(read(partial)) - 1
    assert answered >= 3
    assert not (data.parent / "pairs.jsonl").exists()
    assert KEY not in partial.read_text()
    with partial.open("a") as file:
        file.write('{"row": 5, "text": "a torn li')
    assert main([*command(server), "--batch-size", "1", "--temperature", "0.1"]) == 2, "other settings, other answers"
    broken, before = False, len(server.asked)
    assert main(command(server)) == 0
    assert len(server.asked) - before == 6 - answered
    pairs = read(data.parent / "pairs.jsonl")
    assert [pair["rejected"][0]["value"] for pair in pairs] == [f"About Two and {n}?" for n in range(6)]


@pytest.mark.parametrize(
    "first",
    [
        (503, {}, b"busy"),
        (429, {"Retry-After": "0"}, b"{}"),
        (200, {}, b"<html>"),
        (200, {}, b'{"choices": []}'),
        (200, {}, b'{"choices": [{"message": {"content": null}}]}'),
        (200, {}, b'{"choices": [{"message": {"content": "\\ud800"}}]}'),
    ],
)
def test_what_may_pass_is_asked_again(first: Reply, data: Path, server: Server) -> None:
    write_rows(data, [row(0)])
    server.replies = lambda *_: first if len(server.asked) < 3 else chat("No.")
    assert main(command(server)) == 0
    assert len(server.asked) == 3


def test_failures_are_sentences(data: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def said() -> str:
        shown = capsys.readouterr()
        assert KEY not in shown.out + shown.err
        return " ".join(shown.err.split())

    write_rows(data, [row(0)])
    server.replies = lambda *_: (500, {}, b"down")
    assert main(command(server)) == 4
    assert "did not respond in 6 attempts: HTTP 500: down" in said()
    assert len(server.asked) == 6
    server.replies = lambda *_: (401, {}, f"bad key {KEY}".encode())
    assert main(command(server, "b.jsonl")) == 3
    assert "refuses the key" in said()
    # A redirect would carry the key to another host.
    server.replies = lambda *_: (307, {"Location": "http://localhost:1/v1/chat/completions"}, b"")
    assert main(command(server, "c.jsonl")) == 2
    assert "HTTP 307" in said()


def test_a_server_that_hangs_or_is_not_there(server: Server) -> None:
    ended = threading.Event()
    server.replies = lambda *_: (ended.wait(5), chat("late"))[1]
    hanging = Endpoint(url=server.url, model="m", timeout_s=0.1, attempts=2, wait_s=0.01)
    with pytest.raises(RunFailed, match="did not respond in 2 attempts: timed out"):
        hanging.answer("x", [], {})
    ended.set()
    with pytest.raises(RunFailed, match="Connection refused"):
        Endpoint(url="http://127.0.0.1:1/v1", model="m", attempts=1).answer("x", [], {})


def test_words_that_are_refused(data: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    url = ["--endpoint", server.url]
    for words, text in (
        ([], "give --from RUN|CHECKPOINT, or --endpoint URL with --model NAME"),
        (url, "with --model NAME"),
        ([*url, "--model", "m", "--from", "x"], "give --from"),
        (["--from", "x", "--model", "m"], "give --from"),
        (["--from", "x", "--key-from", "THE_KEY"], "--key-from needs --endpoint"),
        ([*url, "--model", "m", "--key-from", "NOT_SET"], "is not set in the environment"),
        (["--endpoint", "ftp://x", "--model", "m"], "must be http://HOST"),
        (["--endpoint", f"http://me:{KEY}@x/v1", "--model", "m"], "must not contain a password"),
    ):
        assert main(["align", "generate-rejected", "sft.jsonl", "pairs.jsonl", *words]) == 2
        shown = capsys.readouterr().err
        assert text in " ".join(shown.split())
        assert KEY not in shown
    for bad, text in (
        ({**row(0), "rejected": "x"}, "row 1: the row already has a rejected side"),
        ({"system": "", "conversations": row(0)["conversations"][:1]}, "does not end with a response"),
        ({"prompt": "x", "response": "y"}, "needs a chat that ends with a response"),
        ({**row(0), "type": "TEXT_TO_VALUE"}, "trains labels"),
        ({"prompt": "x", "chosen": 3}, "row 1: "),
    ):
        write_rows(data, [bad])
        assert main(command(server)) == 2
        assert text in " ".join(capsys.readouterr().err.split())
    assert server.asked == []
    assert [path.name for path in data.parent.iterdir()] == ["sft.jsonl"]
    assert Endpoint(url="http://10.0.0.1/v1", model="m", key=KEY).sends_key_in_clear
    assert KEY not in repr(Endpoint(url=server.url, model="m", key=KEY))
    with pytest.raises(RefusedInput):
        Endpoint(url="localhost:8000", model="m")
