"""What the partitioned engine of a server is started with, and whether it can be started at all.

The settings of the engine come from `[streams]` in `topics.toml` and from variables `IGGY_…`, which win.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from topics.errors import SettingsError
from topics.server.settings import is_loopback
from topics.server.settings_schema import ServerSettings, StreamsConfig

if TYPE_CHECKING:
    from topics.streams.metadata.logins import Credentials
    from topics.streams.settings import StreamsSettings

ROOT_USERNAME: Final = "IGGY_ROOT_USERNAME"
ROOT_PASSWORD: Final = "IGGY_ROOT_PASSWORD"  # noqa: S105 - the name of a variable.

STREAMS_FOLDER: Final = "streams"

# The packages that the engine cannot do without.
_PACKAGES: Final = ("argon2", "blake3", "cryptography", "numpy")


def missing_packages() -> list[str]:
    return [name for name in _PACKAGES if find_spec(name) is None]


def check_streams(settings: ServerSettings, config: StreamsConfig) -> None:
    """Raises `SettingsError` if a start would be refused because of the streams. It does not read the settings of the
    engine (`read_settings`): that takes the imports of the engine, which a start makes on another thread."""
    if settings.streams_port is None:
        return
    missing = missing_packages()
    if missing:
        raise SettingsError(
            f"the packages for streams are not installed ({', '.join(missing)}): "
            "pip install 'topics-log[streams]', or start without --streams and TOPICS_STREAMS_PORT"
        )
    _check_root_user(settings.host, config)


def _check_root_user(host: str, config: StreamsConfig) -> None:
    username, password = config.environ.get(ROOT_USERNAME), config.environ.get(ROOT_PASSWORD)
    if (username is None) != (password is None):
        raise SettingsError(f"{ROOT_USERNAME} and {ROOT_PASSWORD} belong together: set both, or none")
    if not is_loopback(host) and (username is None or (username, password) == ("iggy", "iggy")):
        raise SettingsError(
            f'host "{host}" can be reached by other machines, and the root user of the streams would be iggy with the '
            f"password iggy: set {ROOT_USERNAME} and {ROOT_PASSWORD}"
        )


def iggy_secrets(config: StreamsConfig) -> tuple[str, ...]:
    """Values that no log line may have."""
    names = (ROOT_PASSWORD, "IGGY_SYSTEM_ENCRYPTION_KEY", "IGGY_DATA_MAINTENANCE_ARCHIVER_S3_KEY_SECRET")
    found = (config.environ.get(name, "") for name in names)
    # The default password is also a word of every path and message.
    return tuple(secret for secret in found if secret and secret != "iggy")  # noqa: S105 - no secret.


def root_user(config: StreamsConfig) -> Credentials:
    """Name and password of the root user of a directory that has none yet."""
    from topics.streams.metadata.logins import DEFAULT_ROOT_USER, Credentials

    username, password = config.environ.get(ROOT_USERNAME), config.environ.get(ROOT_PASSWORD)
    return DEFAULT_ROOT_USER if username is None or password is None else Credentials(username, password)


def read_settings(config: StreamsConfig) -> StreamsSettings:
    """The settings of the engine. Raises `SettingsError` with all problems."""
    from topics.streams.settings import check_settings, environment_mapping, from_mapping

    settings = from_mapping(_merged(config.table, environment_mapping(config.environ)))
    check_settings(settings)
    return settings


def streams_directory(settings: ServerSettings, config: StreamsConfig) -> str:
    """`streams_dir`, else `system.path` of the settings of the engine, else a folder of the data directory."""
    if settings.streams_dir is not None:
        return settings.streams_dir
    system = config.table.get("system")
    in_table = system.get("path") if isinstance(system, dict) else None
    named = config.environ.get("IGGY_SYSTEM_PATH", in_table)
    return str(named) if named else os.path.join(settings.data_dir, STREAMS_FOLDER)


def _merged(below: Any, above: Any) -> Any:
    """Nested sections, in which `above` wins."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return below | {name: _merged(below.get(name), value) for name, value in above.items()}
