"""`topics serve`: from flags, environment and topics.toml to a running server. Without typer: see `entry`."""

import logging
import os
import stat
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from topics.cli.form import running_form
from topics.cli.loading import load
from topics.cli.output import Output
from topics.interpreter import require_asserts
from topics.version import VERSION

if TYPE_CHECKING:
    from topics.server.serve import Address
    from topics.server.settings_schema import ServerSettings

logger = logging.getLogger(__name__)

_TRY: Final = """-d '{"records":[{"data":"hello, world"}]}'"""


def serve(config: str | None = None, **flags: Any) -> None:
    """Start the server. It stops at SIGTERM and Ctrl+C, after a checkpoint. At SIGHUP it reads its settings again.

    A flag wins over its environment variable (--port over TOPICS_PORT), that over topics.toml (port = 4000), that over
    the default. `topics config show` takes the same flags and says what they come to.

    \b
    Examples:
      topics serve
      topics serve --data-dir /var/lib/topics --port 4000
      topics serve --host 0.0.0.0 --api-keys-file /run/secrets/topics --tls-cert cert.pem --tls-key key.pem
    """
    # Before the start, which would take the ports first.
    require_asserts()
    from topics.server.logs import configure_logging
    from topics.server.settings import check_safe
    from topics.server.streams.config import iggy_secrets, streams_directory
    from topics.storage.directory import refuse_streams
    from topics.storage.fs import RealFs

    loaded = load(config, flags)
    settings = loaded.settings
    check_safe(settings)
    secrets = (*settings.api_keys.secrets(), *iggy_secrets(loaded.streams))
    configure_logging(settings.log_level, settings.log_format, secrets=secrets)
    # Before the start: it would also open streams inside of that directory.
    refuse_streams(RealFs(), os.path.abspath(settings.data_dir))
    _warn_of_open_directory(settings.data_dir)
    if settings.streams_port is None and os.path.isdir(directory := streams_directory(settings, loaded.streams)):
        logger.warning(
            "there are streams, and no port for their clients: see --streams", extra={"fields": {"path": directory}}
        )
    for warning in loaded.warnings:
        logger.warning("a setting was ignored", extra={"fields": {"reason": warning}})
    from topics.server.serve import run

    exit_code = run(
        loaded,
        on_accepting=partial(_write_port_files, settings),
        on_ready=partial(_announce, settings),
        load_again=partial(load, config, flags),
    )
    sys.exit(exit_code)


def _warn_of_open_directory(data_dir: str) -> None:
    try:
        mode = stat.S_IMODE(os.stat(data_dir).st_mode)
    except OSError:
        # A new directory is made for its owner only. The start reports any other problem.
        return
    if mode & 0o077:
        logger.warning(
            "others can reach into the data directory: chmod 700",
            extra={"fields": {"path": os.path.abspath(data_dir), "mode": f"{mode:03o}"}},
        )


def _write_port_files(settings: "ServerSettings", http: "Address", streams: "Address | None") -> None:
    """For programs that wait for the server."""
    if settings.streams_port_file is not None and streams is not None:
        _write_port_file(settings.streams_port_file, _address(*streams))
    if settings.port_file is not None:
        _write_port_file(settings.port_file, _address(*http))


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _announce(settings: "ServerSettings", http: "Address", streams: "Address | None") -> None:
    """Prints where the server is."""
    address = _address(*http)
    scheme = "http" if settings.tls_cert is None else "https"
    url = f"{scheme}://{_reachable(address)}"
    key = "" if settings.api_keys.count == 0 else " -H 'Authorization: Bearer KEY'"
    out = Output()
    out.line(f"topics {VERSION} ({running_form()}) listens on {url}")
    if settings.console:
        out.line(f"console          {url}/")
    if streams is not None:
        out.line(f"streams          {_reachable(_address(*streams))}, for clients of Apache Iggy 0.8")
    out.line(f"data directory   {os.path.abspath(settings.data_dir)}")
    out.line(
        "durability       disk by default: acknowledged writes survive kill -9; topics with fsync survive power loss"
    )
    out.line(f"access           {settings.api_keys if settings.api_keys.count else 'open: no API keys are set'}")
    out.line("try              " + f"curl {url}/v0/topics/hello{key} -H 'Content-Type: application/json' " + _TRY)
    out.flush()


def _reachable(address: str) -> str:
    """An address to connect to: a client cannot connect to the address that means all addresses."""
    return address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")


def _write_port_file(path: str, address: str) -> None:
    """Written under another name first, so that a reader never sees half of the file."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(address + "\n")
    os.replace(temporary, path)
