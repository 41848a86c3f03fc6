"""Contexts: names for servers and their keys, in a file of the user that others cannot read.

`$XDG_CONFIG_HOME/topics/contexts.toml`, by default `~/.config/topics/contexts.toml`, with mode 0600. No message shows a
key.
"""

import json
import os
import re
import tomllib
from dataclasses import dataclass, field
from typing import Final

from topics.errors import InvalidRequest, TopicsError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Context:
    """A server. `key` and `ca_file` are empty if there is none."""

    server: str
    key: str = field(default="", repr=False)
    ca_file: str = ""


@dataclass(slots=True)
class Contexts:
    """All contexts, and the name of the one in use (empty: none)."""

    current: str = ""
    by_name: dict[str, Context] = field(default_factory=dict)

    def find(self, name: str) -> Context:
        try:
            return self.by_name[name]
        except KeyError:
            raise ContextNotFound(name, list(self.by_name)) from None


class ContextNotFound(TopicsError):
    """There is no context of this name. `known` are the names that there are."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f'context "{name}" does not exist')
        self.name = name
        self.known = known


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidRequest("the name of a context has 1 to 64 letters, digits and . _ -, the first a letter or digit")


def contexts_path() -> str:
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "topics", "contexts.toml")


def load_contexts() -> Contexts:
    """The contexts of the user; none if there is no file."""
    path = contexts_path()
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError:
        return Contexts()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        # Its message could show a part of the line, and so of a key.
        raise InvalidRequest(f"{path} is not TOML: mend or remove it, then add the contexts again") from None
    found = content.get("contexts", {})
    members = [found, *found.values()] if isinstance(found, dict) else [None]
    if not all(isinstance(one, dict) for one in members):
        raise InvalidRequest(f"{path} has no table [contexts.NAME]: mend or remove it, then add the contexts again")
    by_name = {
        name: Context(*(str(table.get(member, "")) for member in ("server", "key", "ca_file")))
        for name, table in found.items()
    }
    current = str(content.get("current", ""))
    return Contexts(current if current in by_name else "", by_name)


def save_contexts(contexts: Contexts) -> None:
    """Replaces the file. Written under another name first, so that a crash leaves the old file or the new one."""
    path = contexts_path()
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    lines = [f"current = {_text(contexts.current)}"]
    for name, context in sorted(contexts.by_name.items()):
        lines += ["", f"[contexts.{_text(name)}]", f"server = {_text(context.server)}"]
        lines += [f"key = {_text(context.key)}"] if context.key else []
        lines += [f"ca_file = {_text(context.ca_file)}"] if context.ca_file else []
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _text(value: str) -> str:
    """As a string of TOML; the escapes of JSON are escapes there, too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
