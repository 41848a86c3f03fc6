"""Passwords, tokens, and logins with them.

A password is kept as an Argon2id PHC string with the parameters of the Apache Iggy 0.8.0 server; strings with other
parameters verify, too. A token is 50 random bytes in base64. Its user sees the text once; the metadata keep its BLAKE3.
A token is too long to be guessed, so it needs no slower hash.

Choices: a wrong password is reported before an inactive user is, so that only the owner of the account learns that it
is inactive. A login with an unknown name takes as long as one with a wrong password. A token of an inactive user does
not log in either.
"""

import os
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Final

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from blake3 import blake3

from topics.formats.stream_command import CreateUser, UserStatus
from topics.formats.stream_permissions import ALL_PERMISSIONS
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.metadata import Metadata
from topics.streams.metadata.users_metadata import ROOT_USER_ID, UserInfo
from topics.streams.metadata.values import check_username

PASSWORD_BYTES: Final = range(3, 101)
TOKEN_RANDOM_BYTES: Final = 50

_hasher: Final = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1, hash_len=32, salt_len=16)

# The hash of no password. A login with an unknown name is compared with it.
_HASH_OF_NOTHING: Final = (
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)


def hash_password(password: str) -> str:
    """The PHC string of a new password. Raises if the password is too short or too long."""
    _check_password(password)
    return _hasher.hash(password)


def verify_password(password_hash: str, password: str) -> bool:
    """The hash may be Argon2 of any kind with any parameters."""
    try:
        return _hasher.verify(password_hash, password)
    except (VerificationError, InvalidHashError, UnicodeEncodeError):
        return False


def _check_password(password: str) -> None:
    try:
        size = len(password.encode())
    except UnicodeEncodeError:
        # Text that UTF-8 cannot hold, which no client can send.
        size = 0
    if size not in PASSWORD_BYTES:
        raise StreamsError(
            StreamStatus.INVALID_PASSWORD,
            f"a password has {PASSWORD_BYTES.start} to {PASSWORD_BYTES.stop - 1} bytes",
        )


def make_token() -> str:
    """The text of a new token: 68 characters."""
    return b64encode(os.urandom(TOKEN_RANDOM_BYTES)).decode()


def token_hash(token: str) -> str:
    """What the metadata keep of a token."""
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
    """Slow on purpose, so it takes no lock. It looks the user up once and uses what it finds then."""
    check_username(username)
    _check_password(password)
    user = metadata.users.by_name(username)
    is_right = verify_password(_HASH_OF_NOTHING if user is None else user.password_hash, password)
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
    """Raises if this is not the current password of the user."""
    if not verify_password(user.password_hash, password):
        raise StreamsError(StreamStatus.INVALID_CREDENTIALS, "wrong password")


def _check_active(user: UserInfo) -> None:
    if user.status is not UserStatus.ACTIVE:
        raise StreamsError(StreamStatus.USER_INACTIVE, f"user {user.name!r} is inactive")
