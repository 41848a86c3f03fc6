"""Where the command `topics` begins.

`topics serve` with plain flags starts without typer, which takes half as long to import as the whole server. Typer
reads every other command line, also a wrong one, so that messages and help come from one place.
"""

import gc
import sys
from collections.abc import Sequence
from typing import Any


def main() -> None:
    flags = plain_flags(sys.argv[1:])
    if flags is None:
        from topics.cli.main import app

        # Also for `python -m`, so that help names what a user types.
        app(prog_name="topics")
        return
    # The server switches the collector on again when it is ready: until then there is hardly anything to collect.
    gc.disable()
    from topics.cli.output import errors_as_messages
    from topics.cli.serve import serve

    with errors_as_messages():
        serve(**flags)


def plain_flags(arguments: Sequence[str]) -> dict[str, Any] | None:
    """The flags of `topics serve`, by parameter. None: another command, or something that typer must explain."""
    if arguments[:1] != ["serve"]:
        return None
    # Other commands do not need the settings of a server.
    from topics.server.settings_schema import SETTINGS

    takes_value = {"--config": "config"}
    switches: dict[str, tuple[str, bool]] = {"--streams": ("streams", True)}
    for setting in SETTINGS:
        if setting.kind == "switch":
            switches[setting.flag] = setting.name, True
            switches[setting.flag.replace("--", "--no-", 1)] = setting.name, False
        else:
            takes_value[setting.flag] = setting.name
        if setting.file_name is not None:
            takes_value["--" + setting.file_name.replace("_", "-")] = setting.file_name
    found: dict[str, Any] = {}
    left = list(reversed(arguments[1:]))
    while left:
        flag, equals, value = left.pop().partition("=")
        if flag in switches and not equals:
            name, is_on = switches[flag]
            found[name] = is_on
        elif flag in takes_value and (equals or (left and not left[-1].startswith("-"))):
            found[takes_value[flag]] = value if equals else left.pop()
        else:
            return None
    return found


if __name__ == "__main__":
    main()
