"""Who may do what: passwords, tokens, logins, and the permissions that an action needs.

Passwords are kept as Argon2id PHC strings with the parameters of the 0.8.0 server; strings with any others verify, too.
Tokens are 50 random bytes in base64, shown once, and kept as the BLAKE3 of that text: they are too long to be guessed,
so nothing slower is needed.

An action is allowed by any one of its flags, given for everything, for the stream or for the topic. Root is user 0 and
may do everything, whatever its entry says. Flags are looked at in each request, so that changes act at once.

Choices: a wrong password is told before an inactive user is, so that only the owner learns it; a login with an unknown
name takes as long as one with a wrong password. A token of an inactive user does not log in either.
"""

import os
from base64 import b64encode
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Final, NamedTuple

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from blake3 import blake3

from topics.formats.stream_command import CreateUser, UserStatus
from topics.formats.stream_permissions import ALL_PERMISSIONS, Permissions
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.metadata import ROOT_USER_ID, Metadata, UserInfo, check_username

PASSWORD_BYTES: Final = range(3, 101)
TOKEN_RANDOM_BYTES: Final = 50

_hasher: Final = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1, hash_len=32, salt_len=16)

# Of no password. A login with a name that nobody has is compared with it.
_NOBODY: Final = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"


def hash_password(password: str) -> str:
    """The PHC string of a new password; raises when it is too short or too long."""
    _check_password(password)
    return _hasher.hash(password)


def verify_password(password_hash: str, password: str) -> bool:
    """Argon2 of any kind and with any parameters."""
    try:
        return _hasher.verify(password_hash, password)
    except (VerificationError, InvalidHashError, UnicodeEncodeError):
        return False


def _check_password(password: str) -> None:
    try:
        size = len(password.encode())
    except UnicodeEncodeError:
        # No client can send it.
        size = 0
    if size not in PASSWORD_BYTES:
        raise StreamsError(
            StreamStatus.INVALID_PASSWORD,
            f"a password has {PASSWORD_BYTES.start} to {PASSWORD_BYTES.stop - 1} bytes",
        )


def make_token() -> str:
    """The text of a new token, 68 characters; its user is shown it once."""
    return b64encode(os.urandom(TOKEN_RANDOM_BYTES)).decode()


def token_hash(token: str) -> str:
    """What is kept of it."""
    return str(blake3(token.encode(errors="surrogatepass")).hexdigest())


@dataclass(frozen=True, slots=True)
class Credentials:
    """Name and password of the root user, for a directory that has no root user yet."""

    username: str
    password: str = field(repr=False)


# For a directory that only programs on this machine reach; a server that listens elsewhere asks for others.
DEFAULT_ROOT_USER: Final = Credentials("iggy", "iggy")


def create_root_user(root_user: Credentials) -> CreateUser:
    """The first entry in the state log of a new directory."""
    check_username(root_user.username)
    password_hash = hash_password(root_user.password)
    return CreateUser(ROOT_USER_ID, root_user.username, password_hash, UserStatus.ACTIVE, ALL_PERMISSIONS)


# Logins.


def login(metadata: Metadata, username: str, password: str) -> UserInfo:
    """Slow on purpose, so it takes no lock: the user is looked up once, as it is at that moment."""
    check_username(username)
    _check_password(password)
    user = metadata.users.by_name(username)
    is_right = verify_password(_NOBODY if user is None else user.password_hash, password)
    if user is None or not is_right:
        raise StreamsError(StreamStatus.INVALID_CREDENTIALS, "unknown user or wrong password")
    _check_active(user)
    return user


def login_with_token(metadata: Metadata, token: str, now_us: int) -> UserInfo:
    owner = metadata.token_owner(token_hash(token))
    if owner is None:
        raise StreamsError(StreamStatus.RESOURCE_NOT_FOUND, "no such token")
    user, found = owner
    if found.is_expired(now_us):
        raise StreamsError(StreamStatus.PERSONAL_ACCESS_TOKEN_EXPIRED, f"token {found.name!r} has expired")
    _check_active(user)
    return user


def check_password(user: UserInfo, password: str) -> None:
    """The current one, before it is changed."""
    if not verify_password(user.password_hash, password):
        raise StreamsError(StreamStatus.INVALID_CREDENTIALS, "wrong password")


def _check_active(user: UserInfo) -> None:
    if user.status is not UserStatus.ACTIVE:
        raise StreamsError(StreamStatus.USER_INACTIVE, f"user {user.name!r} is inactive")


# Permissions.


class _Flags(NamedTuple):
    """Any of them allows an action."""

    everywhere: tuple[str, ...]
    stream: tuple[str, ...] = ()
    topic: tuple[str, ...] = ()


@unique
class Action(Enum):
    """What a request does, by the flags that allow it."""

    GET_STREAMS = _Flags(("manage_streams", "read_streams"))
    GET_STREAM = _Flags(("manage_streams", "read_streams"), ("manage_stream", "read_stream"))
    CREATE_STREAM = _Flags(("manage_streams",))
    # Update, delete, purge.
    CHANGE_STREAM = _Flags(("manage_streams",), ("manage_stream",))
    GET_TOPICS = _Flags(
        ("manage_streams", "read_streams", "manage_topics", "read_topics"),
        ("manage_stream", "read_stream", "manage_topics", "read_topics"),
    )
    # Also all commands on consumer groups.
    GET_TOPIC = _Flags(
        ("manage_streams", "read_streams", "manage_topics", "read_topics"),
        ("manage_stream", "read_stream", "manage_topics", "read_topics"),
        ("manage_topic", "read_topic"),
    )
    CREATE_TOPIC = _Flags(("manage_streams", "manage_topics"), ("manage_stream", "manage_topics"))
    # Update, delete, purge; partitions; deleting segments.
    CHANGE_TOPIC = _Flags(("manage_streams", "manage_topics"), ("manage_stream", "manage_topics"), ("manage_topic",))
    # Also stored offsets.
    POLL = _Flags(
        ("poll_messages", "manage_streams", "read_streams", "manage_topics", "read_topics"),
        ("poll_messages", "manage_stream", "read_stream", "manage_topics", "read_topics"),
        ("poll_messages", "manage_topic", "read_topic"),
    )
    # Also flushing.
    SEND = _Flags(
        ("send_messages", "manage_streams", "manage_topics"),
        ("send_messages", "manage_stream", "manage_topics"),
        ("send_messages", "manage_topic"),
    )
    READ_USERS = _Flags(("manage_users", "read_users"))
    MANAGE_USERS = _Flags(("manage_users",))
    # Statistics and clients.
    READ_SERVERS = _Flags(("manage_servers", "read_servers"))


def is_allowed(
    permissions: Permissions | None, action: Action, stream_id: int | None = None, topic_id: int | None = None
) -> bool:
    """Ids are resolved ones. Actions on everything have none."""
    if permissions is None:
        return False
    flags = action.value
    if any(getattr(permissions, flag) for flag in flags.everywhere):
        return True
    if stream_id is None or permissions.streams is None:
        return False
    stream = permissions.streams.get(stream_id)
    if stream is None:
        return False
    if any(getattr(stream, flag) for flag in flags.stream):
        return True
    if topic_id is None or stream.topics is None:
        return False
    topic = stream.topics.get(topic_id)
    return topic is not None and any(getattr(topic, flag) for flag in flags.topic)


def authorize(user: UserInfo, action: Action, stream_id: int | None = None, topic_id: int | None = None) -> None:
    """Raises `UNAUTHORIZED`."""
    if user.id != ROOT_USER_ID and not is_allowed(user.permissions, action, stream_id, topic_id):
        raise StreamsError(
            StreamStatus.UNAUTHORIZED, f"user {user.name!r} lacks the permission to {action.name.lower()}"
        )
