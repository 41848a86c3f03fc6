"""Manual pages in roff, made from the commands and the settings: what `--help` says, as pages.

One page for `topics`, one for each of its commands (a group of commands is one page), and topics.toml(5).
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from topics.cli.generate.roff import Roff
from topics.server.settings_schema import SETTINGS
from topics.version import VERSION

_SECTION_COMMANDS: Final = 1
_SECTION_FILES: Final = 5

_FILES_TEXT: Final = (
    "Settings of topics-serve(1). The file is read from the working directory; --config names another one. A flag wins "
    "over an environment variable, the variable wins over the file. A wrong value or an unknown key ends the start "
    "with a message. `topics generate config` prints a file with all settings."
)
_ENVIRONMENT: Final = (
    ("TOPICS_URL", "The server that a command asks, if neither --server nor --context is given."),
    ("TOPICS_KEY", "The API key for that server."),
    ("TOPICS_CONTEXT", "A context, made with `topics context add`."),
    ("TOPICS_CA_FILE", "Certificates to trust, in PEM."),
    ("NO_COLOR", "If set, there are no colours."),
)


def man_pages(root: Any) -> dict[tuple[str, int], str]:
    """By name and section. `root` is the command `topics`, as click has it."""
    context = _context(root, "topics", None)
    names = root.list_commands(context)
    commands = {name: root.get_command(context, name) for name in names}
    pages = {("topics", _SECTION_COMMANDS): _root_page(root, context, commands)}
    for name, command in commands.items():
        pages[f"topics-{name}", _SECTION_COMMANDS] = _command_page(name, command, context)
    pages["topics.toml", _SECTION_FILES] = _settings_page()
    return pages


def _context(command: Any, name: str, parent: Any) -> Any:
    return command.context_class(command, info_name=name, parent=parent)


def _root_page(root: Any, context: Any, commands: dict[str, Any]) -> str:
    page = Roff("topics", _SECTION_COMMANDS, VERSION)
    page.heading("NAME")
    page.text("topics - a durable event log")
    page.heading("SYNOPSIS")
    page.usage("topics COMMAND [OPTIONS] [ARGS]...")
    page.heading("DESCRIPTION")
    _put_help(page, root.help)
    page.heading("COMMANDS")
    for name, command in commands.items():
        page.item(f"topics-{name}(1)", _summary(root, name, command))
    page.heading("OPTIONS")
    _put_options(page, root, context)
    page.heading("ENVIRONMENT")
    for name, meaning in _ENVIRONMENT:
        page.item(name, meaning)
    page.heading("SEE ALSO")
    page.text(", ".join([*(f"topics-{name}(1)" for name in commands), "topics.toml(5)"]))
    return page.render()


def _command_page(name: str, command: Any, parent: Any) -> str:
    context = _context(command, name, parent)
    page = Roff(f"topics-{name}", _SECTION_COMMANDS, VERSION)
    page.heading("NAME")
    page.text(f"topics-{name} - {_summary(parent.command, name, command).rstrip('.')}")
    verbs = getattr(command, "commands", None)
    page.heading("SYNOPSIS")
    page.usage(_usage(command, context) if verbs is None else f"topics {name} COMMAND [OPTIONS] [ARGS]...")
    page.heading("DESCRIPTION")
    _put_help(page, command.help)
    if verbs is None:
        page.heading("OPTIONS")
        _put_options(page, command, context)
    else:
        page.heading("COMMANDS")
        for verb in command.list_commands(context):
            below = command.get_command(context, verb)
            inner = _context(below, verb, context)
            page.heading(f"topics {name} {verb}", level=2)
            page.usage(_usage(below, inner))
            _put_help(page, below.help)
            _put_options(page, below, inner)
    page.heading("SEE ALSO")
    page.text("topics(1), topics.toml(5)")
    return page.render()


def _settings_page() -> str:
    page = Roff("topics.toml", _SECTION_FILES, VERSION)
    page.heading("NAME")
    page.text("topics.toml - settings of a server")
    page.heading("DESCRIPTION")
    page.text(_FILES_TEXT)
    group = None
    for setting in SETTINGS:
        if setting.group != group:
            group = setting.group
            page.heading(group.upper())
        default = "not set" if setting.shown_default.startswith("(") else setting.shown_default
        reload = " A running server reads it again at SIGHUP." if setting.is_reloaded else ""
        names = f"Environment: {setting.env}. Flag: {setting.flag}."
        page.item(setting.name, f"{setting.meaning} Takes {setting.accepted()}. Default: {default}. {names}{reload}")
    page.heading("SEE ALSO")
    page.text("topics(1), topics-serve(1), topics-config(1)")
    return page.render()


def _summary(root: Any, name: str, command: Any) -> str:
    """As in the list of commands, or the first sentence of its help."""
    if name in root.late:
        return str(root.late[name].summary)
    return " ".join(_plain(command.help).split("\n\n")[0].split()).split(". ")[0].rstrip(".") + "."


def _plain(text: str | None) -> str:
    return (text or "").strip()


def _usage(command: Any, context: Any) -> str:
    return f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}"


def _put_help(page: Roff, text: str | None) -> None:
    """Paragraphs are filled. Those after a `\\b`, such as examples, keep their lines."""
    for paragraph in re.split(r"\n\s*\n", _plain(text)):
        if paragraph.lstrip().startswith("\b"):
            title, *lines = paragraph.strip().removeprefix("\b").strip("\n").split("\n")
            page.text(title.strip())
            page.verbatim(lines)
        else:
            page.text(" ".join(paragraph.split()))


def _put_options(page: Roff, command: Any, context: Any) -> None:
    for term, meaning in _option_records(command, context):
        page.item(term, meaning)


def _option_records(command: Any, context: Any) -> Iterator[tuple[str, str]]:
    """Arguments have a record in newer versions of click only."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield record
