"""How a driver or a task reaches the server: by the endpoint, with the token that the options lead to."""

import os
from typing import Protocol

from topics.client.sync.client import Client
from topics.spark.errors import BadOption
from topics.storage.fs import RealFs, read_file


class ServerOptions(Protocol):
    """Options that reads and writes have in common."""

    @property
    def endpoint(self) -> str | None: ...
    @property
    def token(self) -> str | None: ...
    @property
    def token_env(self) -> str | None: ...
    @property
    def token_file(self) -> str | None: ...
    @property
    def request_timeout_ms(self) -> int: ...
    @property
    def retries(self) -> int: ...


def open_client(options: ServerOptions, *, throttle_wait_s: float = 0.0) -> Client:
    """A client on this machine: `tokenEnv` and `tokenFile` are looked up here, on a driver or an executor."""
    assert options.endpoint is not None
    return Client(
        options.endpoint,
        token=token_of(options.token, options.token_env, options.token_file),
        timeout_s=options.request_timeout_ms / 1000,
        retries=options.retries,
        deadline_s=None,
        throttle_wait_s=throttle_wait_s,
    )


def token_of(token: str | None, token_env: str | None, token_file: str | None) -> str | None:
    """The token itself. Raises `BadOption` when the variable or the file does not have it."""
    if token_env is not None:
        token = os.environ.get(token_env)
        if not token:
            raise BadOption(f"option `tokenEnv`: there is no variable {token_env} on this machine")
    if token_file is not None:
        try:
            token = read_file(RealFs(), os.path.realpath(token_file)).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadOption(f"option `tokenFile`: {error}") from error
    return token
