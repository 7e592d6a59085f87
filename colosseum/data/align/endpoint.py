"""Responses from an OpenAI-compatible HTTP endpoint (chat/completions, completions). Standard library only.

https://platform.openai.com/docs/api-reference; vLLM, SGLang, TensorRT-LLM and NIM serve the same API.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import urlsplit

from colosseum.data.align.prompts import Prompt
from colosseum.errors import EnvironmentFault, Fault, RefusedInput, RunFailed
from colosseum.terminal import is_text, one_line

MAX_BYTES = 1 << 24
"""Maximum size of a reply."""
RETRIED = (408, 409, 425, 429, 500, 502, 503, 504)
"""Status codes that are retried."""
MAX_WAIT_S = 60.0


class _Again(Exception):
    """This attempt failed; a retry may succeed."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a key is sent only to the given host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def key_in(variable: str) -> str:
    """The key that an environment variable holds.

    Raises:
        RefusedInput: it holds none.
    """
    key = os.environ.get(variable)
    if not key or not key.isascii() or not key.isprintable():
        rule = "is not set in the environment, or holds no key (printable ASCII)"
        raise RefusedInput([Fault(path="--key-from", value=variable, rule=rule, where="command line")])
    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """URL, model, key, timeout and retries of an endpoint."""

    url: str
    """Base URL including the version: http://host:8000/v1."""
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0
    """Timeout of one attempt."""
    attempts: int = 6
    wait_s: float = 1.0
    """Wait before the second attempt; doubled before each further one."""

    def __post_init__(self) -> None:
        """Raises RefusedInput: the URL is invalid, or contains a password."""
        parts = urlsplit(self.url)
        rule = ""
        if parts.scheme not in ("http", "https") or not parts.hostname:
            rule = "must be http://HOST… or https://HOST…"
        elif parts.username or parts.password:
            rule = "must not contain a password: give the environment variable with the key by --key-from"
        if rule:
            shown = self.url if not (parts.username or parts.password) else None
            example = ("http://localhost:8000/v1",)
            raise RefusedInput([Fault(path="--endpoint", value=shown, rule=rule, nearest=example)])

    @property
    def sends_key_in_clear(self) -> bool:
        """Whether others on the network could read the key."""
        parts = urlsplit(self.url)
        return self.key is not None and parts.scheme == "http" and not _is_here(str(parts.hostname))

    def answer(self, prompt: Prompt, stop: Sequence[str], settings: Mapping[str, Any]) -> tuple[str, str]:
        """The response text and its finish reason (stop or length).

        Args:
            settings: max_tokens, temperature, top_p and seed, with the endpoint's names.

        Raises:
            RefusedInput: the endpoint refuses the request.
            EnvironmentFault: the endpoint refuses the key.
            RunFailed: no attempt succeeded.
        """
        path, body = _request(prompt, stop)
        body |= {"model": self.model, **settings}
        for attempt in range(1, self.attempts + 1):
            try:
                return _answer(self._post(path, body))
            except _Again as again:
                if attempt == self.attempts:
                    reason = f"{self.url} did not respond in {attempt} attempts: {again}"
                    raise RunFailed(f"{reason}. Responses so far are kept: run the same command to continue") from again
                wait_s = self.wait_s * 2 ** (attempt - 1) if again.wait_s is None else again.wait_s
                time.sleep(min(wait_s, MAX_WAIT_S))
        raise AssertionError

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        headers = {"Content-Type": "application/json", "User-Agent": "colosseum"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url.rstrip('/')}/{path}", data, headers)  # noqa: S310
        opener = urllib.request.build_opener(_NoRedirect)
        try:
            with opener.open(request, timeout=self.timeout_s) as reply:
                content = reply.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error.code, error.headers.get("Retry-After"), error.read(1 << 16))
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise _Again(one_line(str(reason) or type(error).__name__, 200)) from error
        if len(content) > MAX_BYTES:
            raise _Again(f"the reply has more than {MAX_BYTES >> 20} MiB")
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _Again("the reply is not JSON") from error

    def _refused(self, status: int, retry_after: str | None, content: bytes) -> NoReturn:
        """Raises the error that corresponds to an HTTP status."""
        text = content.decode("utf-8", "replace")
        if self.key is not None:
            text = text.replace(self.key, "…")
        said = f"HTTP {status}: {one_line(text, 300)}"
        if status in RETRIED:
            wait_s = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
            raise _Again(said, wait_s)
        if status in (401, 403):
            raise EnvironmentFault(f"{self.url} refuses the key ({'none was sent' if self.key is None else said})")
        raise RefusedInput([Fault(path="--endpoint", value=self.url, rule=f"refuses the request: {said}")])


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _request(prompt: Prompt, stop: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Path and body: a text is continued as is, a conversation is rendered by the server's template."""
    if isinstance(prompt, str):
        return "completions", {"prompt": prompt, "stop": list(stop)}
    messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    messages += [{"role": turn.speaker.lower(), "content": turn.value} for turn in prompt.turns]
    return "chat/completions", {"messages": messages}


def _answer(reply: Any) -> tuple[str, str]:
    """Text and finish reason of a reply's first choice."""
    try:
        choice = reply["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        finish = choice.get("finish_reason")
    except (TypeError, LookupError, AttributeError) as error:
        raise _Again("the reply contains no choice with text") from error
    if not isinstance(text, str) or not is_text(text):
        raise _Again("the reply's text is not a string")
    return text, "length" if finish == "length" else "stop"
