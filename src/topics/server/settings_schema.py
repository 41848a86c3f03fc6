"""Every setting of the server, declared once: name, type, default, range, meaning.

The fields of `ServerSettings` are the schema. `SETTINGS` is made from them, and from it the environment variables
(`TOPICS_` and the name in capitals), the keys of `topics.toml` (the name), the flags of `topics serve` (the name with
dashes) and the tables of `docs/configuration.md`. To add a setting, add a field.

This module imports nothing heavy: the command line reads the schema before it knows its command.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import partial
from types import UnionType
from typing import Annotated, Any, Final, Literal, get_args

from topics.limits import (
    BATCH_RECORDS_MAX,
    HOT_RETAIN_SEGMENTS,
    META_BYTES_MAX,
    MIB,
    NODE_BYTES_MAX,
    READ_LIMIT_MAX,
    RECORD_BYTES_MAX,
    SEGMENT_AGE_MS_MAX,
    SEGMENT_BYTES_MAX,
    SEGMENT_EVENTS_MAX,
    TAG_BYTES_MAX,
    TOPICS_MAX,
    U64_MAX,
)

ENV_PREFIX: Final = "TOPICS_"

PORT_MAX: Final = 65_535
# Where clients of Apache Iggy look for a server.
STREAMS_PORT_USUAL: Final = 8090

Kind = Literal["text", "number", "switch", "choice", "keys"]
Group = Literal["Network", "Access", "Storage", "Request limits", "Caps", "Logs and tests"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "text", "json"]


class KeyList:
    """API keys as they were given, kept out of every repr, log line and message.

    `server/auth.py` parses them; here they are only counted. After that, `forget` drops the text. Asking for the text
    later is a bug, and must not look like a server without keys.
    """

    __slots__ = ("_text", "count")

    def __init__(self, text: str = "") -> None:
        self._text: str | None = text
        # Entries that are not empty: without any, authentication is off.
        self.count: Final = sum(1 for entry in text.split(",") if entry.strip())

    def reveal(self) -> str:
        assert self._text is not None, "the keys were forgotten"
        return self._text

    def secrets(self) -> tuple[str, ...]:
        """The secret of each entry, without scopes and prefixes. It must never be printed."""
        found = (entry.partition(":")[0].strip() for entry in self.reveal().split(","))
        return tuple(secret for secret in found if secret)

    def forget(self) -> None:
        self._text = None

    def __str__(self) -> str:
        return f"({self.count} {'key' if self.count == 1 else 'keys'})" if self.count else "(no keys)"

    def __repr__(self) -> str:
        return f"KeyList{self}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig:
    """Settings of the partitioned engine: the table `[streams]` of `topics.toml`, and variables `IGGY_…`.

    They are read when the engine is opened: a server without streams need not have the packages of the engine.
    """

    table: Mapping[str, Any] = field(default_factory=dict, repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class _About:
    """What the type and the default of a field do not say."""

    group: Group
    meaning: str
    smallest: int = 0
    largest: int = U64_MAX
    # Shown in help and docs instead of a default that depends on the machine.
    default_text: str | None = None


def _default_wal_shards() -> int:
    from topics.engine.settings import default_wal_shards

    return default_wal_shards()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of a server. `None` and 0 mean off or unlimited where the meaning says so."""

    host: Annotated[
        str, _About("Network", "Address to listen on: `host`, `host:port` or `[::1]:port`; empty = every address.")
    ] = "127.0.0.1"
    port: Annotated[int, _About("Network", "Port to listen on; 0 = any free port.", largest=PORT_MAX)] = 4000
    port_file: Annotated[
        str | None, _About("Network", "File that gets the real `host:port` when clients can connect.")
    ] = None
    tls_cert: Annotated[str | None, _About("Network", "PEM file with the certificate chain; needs `tls_key`.")] = None
    tls_key: Annotated[str | None, _About("Network", "PEM file with the private key; needs `tls_cert`.")] = None
    streams_port: Annotated[
        int | None,
        _About(
            "Network",
            f"Port for clients of Apache Iggy, on the same host; `--streams`: {STREAMS_PORT_USUAL}. 0 = any free port, "
            "`off` = no streams.",
            largest=PORT_MAX,
            default_text="off",
        ),
    ] = None
    streams_port_file: Annotated[
        str | None, _About("Network", "File that gets the real `host:port` for clients of Apache Iggy.")
    ] = None
    max_body_bytes: Annotated[int, _About("Network", "Bytes of one request body.", smallest=1, largest=2048 * MIB)] = (
        64 * MIB
    )

    api_keys: Annotated[
        KeyList, _About("Access", "Keys: `secret[:scopes[:prefixes]]`, separated by commas; none = no authentication.")
    ] = field(default_factory=KeyList)
    cors_origins: Annotated[
        str | None,
        _About(
            "Access",
            "Origins of web pages that may call the API, as `https://app.example`, separated by commas; "
            "`*` = every page, with keys only.",
        ),
    ] = None
    console: Annotated[bool, _About("Access", "Whether the web console is served at `/`.")] = True
    probe_auth: Annotated[bool, _About("Access", "Whether health and readiness need a key too.")] = False
    allow_insecure_no_auth: Annotated[
        bool, _About("Access", "Allow a start without keys on an address that other machines can reach.")
    ] = False

    data_dir: Annotated[str, _About("Storage", "Data directory; created if it is missing.")] = "./topics-data"
    streams_dir: Annotated[
        str | None, _About("Storage", "Data directory of the streams; unset = `streams` in the data directory.")
    ] = None
    cold_dir: Annotated[
        str | None, _About("Storage", "Second tier for old segments: a path or `s3://bucket/prefix`; unset = off.")
    ] = None
    wal_shards: Annotated[
        int,
        _About(
            "Storage",
            "Number of write-ahead logs; may change between restarts.",
            smallest=1,
            largest=64,
            default_text="CPUs, at most 8",
        ),
    ] = field(default_factory=_default_wal_shards)
    segment_max_events: Annotated[
        int, _About("Storage", "Records after which a segment is sealed.", smallest=1, largest=2**27)
    ] = SEGMENT_EVENTS_MAX
    segment_max_bytes: Annotated[
        int, _About("Storage", "Bytes after which a segment is sealed.", smallest=1, largest=2**32 - 1)
    ] = SEGMENT_BYTES_MAX
    segment_max_age_ms: Annotated[int, _About("Storage", "Age at which a segment is sealed; 0 = off.")] = (
        SEGMENT_AGE_MS_MAX
    )
    hot_retain_segments: Annotated[
        int, _About("Storage", "Newest sealed segments of a topic that stay out of the cold tier.")
    ] = HOT_RETAIN_SEGMENTS
    hot_retain_bytes: Annotated[
        int, _About("Storage", "Bytes of these segments; the stricter of the two limits counts; 0 = no limit by bytes.")
    ] = 0

    # The engine's limits are the largest values: a server can allow less to its clients, not more.
    max_batch_records: Annotated[
        int, _About("Request limits", "Records of one write.", smallest=1, largest=BATCH_RECORDS_MAX)
    ] = BATCH_RECORDS_MAX
    max_record_bytes: Annotated[
        int, _About("Request limits", "Bytes of one record, data and meta.", smallest=1, largest=RECORD_BYTES_MAX)
    ] = RECORD_BYTES_MAX
    max_meta_bytes: Annotated[
        int, _About("Request limits", "Bytes of one record's meta.", smallest=2, largest=META_BYTES_MAX)
    ] = META_BYTES_MAX
    max_tag_bytes: Annotated[int, _About("Request limits", "Bytes of a tag.", smallest=1, largest=TAG_BYTES_MAX)] = (
        TAG_BYTES_MAX
    )
    max_node_bytes: Annotated[
        int, _About("Request limits", "Bytes of a node name.", smallest=1, largest=NODE_BYTES_MAX)
    ] = NODE_BYTES_MAX
    max_limit: Annotated[int, _About("Request limits", "Records of one page.", smallest=1, largest=READ_LIMIT_MAX)] = (
        READ_LIMIT_MAX
    )
    max_watch_topics: Annotated[int, _About("Request limits", "Topics of one watch.", smallest=1, largest=10_000)] = 256
    max_claim: Annotated[
        int, _About("Request limits", "Jobs of one claim, seqs of one ack, nack or extend.", smallest=1, largest=10_000)
    ] = 1000

    max_topics: Annotated[int, _About("Caps", "Topics; 0 = unlimited.")] = TOPICS_MAX
    max_routers: Annotated[int, _About("Caps", "Routers; 0 = unlimited.")] = 10_000
    max_watch_sessions: Annotated[int, _About("Caps", "Watch sessions; 0 = unlimited.")] = 10_000
    max_sse_connections: Annotated[int, _About("Caps", "Watch, work and WebSocket connections; 0 = unlimited.")] = (
        10_000
    )
    max_sse_connections_per_key: Annotated[
        int, _About("Caps", "Watch, work and WebSocket connections of one key; 0 = unlimited.")
    ] = 1000
    max_inflight_per_key: Annotated[int, _About("Caps", "Requests of one key at a time; 0 = unlimited.")] = 1000
    max_total_bytes: Annotated[int, _About("Caps", "Live bytes over all topics; 0 = unlimited.")] = 0

    log_level: Annotated[LogLevel, _About("Logs and tests", "Log lines below this level are left out.")] = "info"
    log_format: Annotated[
        LogFormat, _About("Logs and tests", "Log lines as text or as JSON; auto = text on a terminal, JSON elsewhere.")
    ] = "auto"
    test_min_heartbeat_ms: Annotated[
        int | None,
        _About(
            "Logs and tests",
            "For tests: the lowest heartbeat interval, below the usual 1000 ms.",
            smallest=1,
            largest=1000,
        ),
    ] = None


# Settings that a running server takes at SIGHUP, beside the groups of limits and caps.
_RELOADED: Final = frozenset({"max_body_bytes", "api_keys", "cors_origins", "probe_auth", "log_level"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of `ServerSettings`, with its name, type, range and meaning."""

    name: str
    kind: Kind
    group: Group
    meaning: str
    choices: tuple[str, ...]
    smallest: int
    largest: int
    is_optional: bool
    make_default: Callable[[], Any]
    shown_default: str

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def file_name(self) -> str | None:
        """The name of the setting that takes a path instead: a secret should be in a file."""
        return f"{self.name}_file" if self.kind == "keys" else None

    @property
    def is_reloaded(self) -> bool:
        """Whether a running server takes a new value at SIGHUP."""
        return self.group in ("Request limits", "Caps") or self.name in _RELOADED

    def accepted(self) -> str:
        """The accepted values, in words."""
        match self.kind:
            case "number" if self.largest == U64_MAX:
                return f"a whole number, {self.smallest} or more"
            case "number":
                return f"a whole number from {self.smallest} to {self.largest}" + ", or off" * self.is_optional
            case "switch":
                return "true or false"
            case "choice":
                return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
            case "keys":
                return "a text with keys, separated by commas"
            case "text":
                return "a text"


def shown(value: Any) -> str:
    """A value for people. Secrets are counted, not shown."""
    if value is None:
        return "(not set)"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) or "(empty)"


def _settings() -> Iterator[Setting]:
    kinds: dict[Any, Kind] = {
        int: "number",
        bool: "switch",
        KeyList: "keys",
        str: "text",
    }
    for entry in fields(ServerSettings):
        declared, about = get_args(entry.type)
        is_optional = isinstance(declared, UnionType)
        plain = get_args(declared)[0] if is_optional else declared
        kind = kinds.get(plain, "choice")
        yield Setting(
            name=entry.name,
            kind=kind,
            group=about.group,
            meaning=about.meaning,
            choices=get_args(plain) if kind == "choice" else (),
            smallest=about.smallest,
            largest=about.largest,
            is_optional=is_optional,
            make_default=partial(_default, entry),
            shown_default=about.default_text or shown(_default(entry)),
        )


def _default(entry: "Field[Any]") -> Any:
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


SETTINGS: Final = tuple(_settings())
