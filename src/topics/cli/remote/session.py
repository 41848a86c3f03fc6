"""How a command asks a server: its common options, its client, its output, and what becomes of an error.

`@asks_server` gives a command the options `--server`, `--key`, `--context`, `-o`, `--no-wait` and `--curl`, and a
`Session` as its first argument. The client is imported when a command runs: help and completion start without it.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, NoReturn, ParamSpec

import typer

from topics.cli.output import Output, fail, message
from topics.cli.remote.complete import complete_contexts
from topics.cli.remote.forms import Column, Form, Row, print_one, print_rows
from topics.cli.remote.nearest import explained
from topics.cli.remote.starting import wait_for_start
from topics.cli.remote.target import Target, find_target
from topics.errors import TopicsError

if TYPE_CHECKING:
    from topics.client.sync.client import Client

P = ParamSpec("P")

EXIT_INTERRUPTED: Final = 130
# A person waits: pauses of 0.7 seconds at most in all, where a program has the patience of 13 seconds.
RETRIES: Final = 3

ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="A context instead of the one in use.",
        autocompletion=complete_contexts,
        show_default=False,
    ),
]

_OPTIONS: Final[dict[str, Any]] = {
    "server": Annotated[
        str | None,
        typer.Option("--server", metavar="URL", help="The server. Also: TOPICS_URL, or a context.", show_default=False),
    ],
    "key": Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Its API key. Others can see arguments: better TOPICS_KEY, or a context.",
            show_default=False,
        ),
    ],
    "context": ContextName,
    "form": Annotated[
        Form | None,
        typer.Option("--output", "-o", help="The form of the data on stdout.", show_default=False),
    ],
    "no_wait": Annotated[
        bool, typer.Option("--no-wait", help="Fail at once if the server is not up; else wait up to 10 seconds.")
    ],
    "is_curl": Annotated[bool, typer.Option("--curl", help="Print the request as a curl command; send nothing.")],
}


class Session:
    """One call of a command."""

    def __init__(self, target: Target, form: Form | None, *, waits: bool, is_curl: bool) -> None:
        """`waits`: for a server that is starting."""
        self.target = target
        self.output = Output()
        self.is_curl = is_curl
        self._form = form
        self._waits = waits
        self._closing = ExitStack()

    @cached_property
    def client(self) -> "Client":
        """What the command asks. With `--curl` its first call ends the command."""
        if self.is_curl:
            from topics.cli.remote.curl import CurlClient

            return CurlClient(self.target.url, self.target.key)
        return self.reader

    @cached_property
    def reader(self) -> "Client":
        """For what a command must know before its request, also with `--curl`."""
        from topics.client.sync.client import Client

        client = self._closing.enter_context(
            Client(
                self.target.url,
                token=self.target.key,
                ca_file=self.target.ca_file,
                retries=RETRIES,
                on_warning=lambda text: message(f"topics: warning: {text}"),
            )
        )
        if self._waits:
            wait_for_start(client)
        return client

    def form(self, default: Form = Form.TABLE) -> Form:
        return self._form or default

    def record_form(self) -> Form:
        """Records are a table for eyes, and JSON lines for a pipe."""
        return self.form(Form.TABLE if sys.stdout.isatty() else Form.JSONL)

    def print_rows(self, columns: Sequence[Column], rows: Iterable[Row]) -> None:
        print_rows(self.output, self.form(), columns, rows)

    def print_one(self, row: Row, shows: Mapping[str, Callable[[Any], str]] | None = None) -> None:
        print_one(self.output, self.form(), row, shows or {})

    def explain(self, error: TopicsError) -> str:
        return explained(error, self.target, self.brief_client)

    def brief_client(self) -> "Client":
        """For names that help with an error: it does not wait long."""
        return self.reader.with_options(timeout_s=2, deadline_s=2, retries=0)

    def close(self) -> None:
        self.output.flush()
        self._closing.close()


def asks_server(function: Callable[Concatenate[Session, P], None], *, waits: bool = True) -> Callable[..., None]:
    """The function without its first argument, a `Session`, and with the options of every command of a server.

    `waits=False`: the command says how the server is now. It has no option `--no-wait`.
    """
    signature = inspect.signature(function)
    _, *own = signature.parameters.values()
    common = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name in {"no_wait", "is_curl"} else None,
            annotation=annotation,
        )
        for name, annotation in _OPTIONS.items()
        if waits or name != "no_wait"
    ]

    def command(**given: Any) -> None:
        from topics.cli.remote.curl import CurlShown

        server, key, context, form, no_wait, is_curl = (given.pop(name, None) for name in _OPTIONS)
        try:
            target = find_target(server, key, context)
        except TopicsError as error:
            fail(explained(error, Target("", None, None, ""), _no_client))
        session = Session(target, form, waits=waits and not no_wait, is_curl=is_curl)
        try:
            function(session, **given)  # type: ignore[call-arg]
        except CurlShown as shown:
            session.output.line(shown.line)
        except TopicsError as error:
            session.output.flush()
            fail(session.explain(error))
        except KeyboardInterrupt:
            raise SystemExit(EXIT_INTERRUPTED) from None
        finally:
            session.close()

    command.__name__ = function.__name__
    command.__doc__ = function.__doc__
    command.__signature__ = signature.replace(parameters=[*own, *common])  # type: ignore[attr-defined]
    return command


def _no_client() -> NoReturn:
    raise TopicsError("no server is known")


def confirm_name(kind: str, name: str, *, is_confirmed: bool) -> None:
    """Asks for the name of what will be removed. Without a terminal `--yes` is needed."""
    if is_confirmed:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        fail(f"this removes {kind} {name} for good; there is no terminal to ask, so give --yes")
    typed = typer.prompt(f"This removes {kind} {name} for good. Type its name to go on", err=True, default="")
    if typed != name:
        fail("that is not the name; nothing is removed")
