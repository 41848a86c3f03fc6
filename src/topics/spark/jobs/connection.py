"""Which server a job talks to. The key itself is looked up where it is used, and is in no plan and no report.

The command line imports this module with the options of all jobs, so that the client is imported in the methods.
"""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from topics.spark.errors import BadOption
from topics.spark.option_values import ENDPOINT_VARIABLE, EXAMPLE_ENDPOINT

if TYPE_CHECKING:
    from topics.client.sync.client import Client
    from topics.spark.options import ReadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A server, and where its key is: on the driver and on every executor."""

    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    token_env: str | None = None
    token_file: str | None = None

    def address(self) -> str:
        """Raises `BadOption` when there is none."""
        endpoint = self.endpoint or os.environ.get(ENDPOINT_VARIABLE)
        if not endpoint:
            raise BadOption(f"no server: give --endpoint, or set {ENDPOINT_VARIABLE}, such as {EXAMPLE_ENDPOINT}")
        return endpoint

    def resolved(self) -> "Connection":
        """The same for another machine, whose environment names no server."""
        return Connection(
            endpoint=self.address(), token=self.token, token_env=self.token_env, token_file=self.token_file
        )

    def format_options(self) -> dict[str, str]:
        """For the formats `topics` and `topics_streams`."""
        given = {
            "endpoint": self.address(),
            "token": self.token,
            "tokenEnv": self.token_env,
            "tokenFile": self.token_file,
        }
        return {name: value for name, value in given.items() if value is not None}

    def read_options(self, topics: tuple[str, ...], *, pattern: str | None = None, **others: Any) -> "ReadOptions":
        """A read of these topics, or of all whose names match, or of all."""
        from topics.spark.options import ReadOptions

        return ReadOptions(
            endpoint=self.address(),
            token=self.token,
            token_env=self.token_env,
            token_file=self.token_file,
            subscribe=topics,
            subscribe_pattern=None if topics else pattern or ".*",
            **others,
        )

    def client(self) -> "Client":
        from topics.client.sync.client import Client
        from topics.spark.access import token_of

        return Client(self.address(), token=token_of(self.token, self.token_env, self.token_file), deadline_s=None)
