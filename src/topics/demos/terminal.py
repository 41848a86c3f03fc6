"""What a demo prints, and the port of its server: with the usual one, the printed commands work as they are."""

import socket
import sys
from typing import Final

PORT: Final = 4000


def choose_port(wanted: int | None) -> int:
    """The port that was asked for; without one 4000 if that is free, or 0 for any other."""
    if wanted is not None:
        return wanted
    try:
        socket.create_server(("127.0.0.1", PORT)).close()
    except OSError:
        return 0
    return PORT


def tell_step(text: str) -> None:
    print(_styled(f"* {text}", "1"), flush=True)


def tell_command(command: str, url: str) -> None:
    """A command to run in another terminal, for the server of the demo."""
    prefix = "" if url.endswith(f":{PORT}") else f"TOPICS_URL={url} "
    tell_detail(_styled(f"$ {prefix}{command}", "2"))


def tell_detail(text: str) -> None:
    print(f"    {text}", flush=True)


def _styled(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if sys.stdout.isatty() else text
