"""Passwords, tokens, and logins with them."""

from typing import Final

import pytest
from argon2 import PasswordHasher, Type

from topics.formats.stream_command import ChangePassword, CreatePersonalAccessToken, CreateUser, UpdateUser, UserStatus
from topics.formats.stream_permissions import (
    ALL_PERMISSIONS,
)
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.metadata.logins import (
    Credentials,
    check_password,
    create_root_user,
    hash_password,
    login,
    login_with_token,
    make_token,
    token_hash,
    verify_password,
)
from topics.streams.metadata.metadata import Metadata
from topics.streams.settings import StreamsSettings

NOW: Final = 1_700_000_000_000_000


def cheap_hash(password: str) -> str:
    """A hash with parameters that are fast."""
    return PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(password)


@pytest.fixture(scope="module")
def iggy_hash() -> str:
    return hash_password("iggy")


def status_of(call: object) -> StreamStatus:
    assert callable(call)
    with pytest.raises(StreamsError) as caught:
        call()
    return caught.value.number


# Passwords.


def test_a_password_is_kept_as_the_phc_string_of_the_reference(iggy_hash: str) -> None:
    assert iggy_hash.startswith("$argon2id$v=19$m=19456,t=2,p=1$")
    salt, digest = iggy_hash.split("$")[4:]
    # 16 and 32 bytes in base64 without padding.
    assert (len(salt), len(digest)) == (22, 43)
    assert verify_password(iggy_hash, "iggy")
    assert not verify_password(iggy_hash, "Iggy")


def test_a_password_hashed_twice_looks_different() -> None:
    assert hash_password("iggy") != hash_password("iggy")


def test_strings_with_other_parameters_and_kinds_verify() -> None:
    for kind in Type:
        for time_cost, memory_cost, parallelism in ((1, 8, 1), (3, 64, 2)):
            hasher = PasswordHasher(time_cost, memory_cost, parallelism, hash_len=24, salt_len=12, type=kind)
            stored = hasher.hash("pässword")
            assert verify_password(stored, "pässword")
            assert not verify_password(stored, "password")


@pytest.mark.parametrize("stored", ["", "plain", "$argon2id$v=19$m=8,t=1,p=1$x", "$2b$12$abc", "$argon2id$ä"])
def test_a_string_that_is_no_hash_verifies_nothing(stored: str) -> None:
    assert not verify_password(stored, "iggy")


def test_passwords_have_3_to_100_bytes() -> None:
    for password in ("", "ab", "x" * 101, "ä" * 51, "\ud800" * 10):
        assert status_of(lambda password=password: hash_password(password)) is StreamStatus.INVALID_PASSWORD
    assert verify_password(hash_password("ä" * 50), "ä" * 50)


# Tokens.


def test_a_token_is_68_characters_and_never_the_same() -> None:
    tokens = {make_token() for _ in range(50)}
    assert len(tokens) == 50
    assert {len(token) for token in tokens} == {68}


def test_a_token_is_kept_as_its_blake3() -> None:
    assert token_hash("") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    assert len(token_hash(make_token())) == 64


# Logins.


def world_with_bob(status: UserStatus = UserStatus.ACTIVE) -> Metadata:
    metadata = Metadata(StreamsSettings())
    metadata.apply(NOW, 0, CreateUser(0, "iggy", cheap_hash("iggy"), UserStatus.ACTIVE, ALL_PERMISSIONS))
    metadata.apply(NOW, 0, CreateUser(1, "bob", cheap_hash("secret"), status, None))
    return metadata


def test_a_user_logs_in_by_name_and_password() -> None:
    metadata = world_with_bob()
    assert login(metadata, "bob", "secret").id == 1
    assert login(metadata, "iggy", "iggy").id == 0


@pytest.mark.parametrize(
    ("name", "password", "status"),
    [
        ("bob", "wrong", StreamStatus.INVALID_CREDENTIALS),
        ("eve", "secret", StreamStatus.INVALID_CREDENTIALS),
        ("bo", "secret", StreamStatus.INVALID_USERNAME),
        ("x" * 51, "secret", StreamStatus.INVALID_USERNAME),
        ("bob", "ab", StreamStatus.INVALID_PASSWORD),
        ("bob", "x" * 101, StreamStatus.INVALID_PASSWORD),
    ],
)
def test_a_login_that_fails_says_why_and_not_more(name: str, password: str, status: StreamStatus) -> None:
    assert status_of(lambda: login(world_with_bob(), name, password)) is status


def test_an_unknown_name_and_a_wrong_password_are_told_alike() -> None:
    messages = []
    for name in ("bob", "eve"):
        with pytest.raises(StreamsError) as caught:
            login(world_with_bob(), name, "wrong")
        messages.append(caught.value.message)
    assert messages[0] == messages[1]


def test_a_user_that_is_inactive_learns_it_with_the_right_password_only() -> None:
    metadata = world_with_bob(UserStatus.INACTIVE)
    assert status_of(lambda: login(metadata, "bob", "secret")) is StreamStatus.USER_INACTIVE
    assert status_of(lambda: login(metadata, "bob", "wrong")) is StreamStatus.INVALID_CREDENTIALS
    metadata.apply(NOW, 0, UpdateUser("bob", None, UserStatus.ACTIVE))
    assert login(metadata, "bob", "secret").id == 1


def test_a_name_of_digits_is_a_name() -> None:
    metadata = world_with_bob()
    metadata.apply(NOW, 0, CreateUser(2, "001", cheap_hash("secret"), UserStatus.ACTIVE, None))
    assert login(metadata, "001", "secret").id == 2


def test_a_changed_password_counts_at_once() -> None:
    metadata = world_with_bob()
    bob = metadata.resolve_user("bob")
    check_password(bob, "secret")
    metadata.apply(NOW, 1, ChangePassword("bob", cheap_hash("newer")))
    assert status_of(lambda: check_password(bob, "secret")) is StreamStatus.INVALID_CREDENTIALS
    assert login(metadata, "bob", "newer") is bob


def test_a_token_logs_its_user_in_until_it_expires() -> None:
    metadata = world_with_bob()
    token = make_token()
    metadata.apply(NOW, 1, CreatePersonalAccessToken("deploy", token_hash(token), 10))
    assert login_with_token(metadata, token, NOW + 9).name == "bob"
    assert status_of(lambda: login_with_token(metadata, token, NOW + 10)) is StreamStatus.PERSONAL_ACCESS_TOKEN_EXPIRED
    assert status_of(lambda: login_with_token(metadata, make_token(), NOW)) is StreamStatus.RESOURCE_NOT_FOUND
    # The stored hash does not log in.
    assert status_of(lambda: login_with_token(metadata, token_hash(token), NOW)) is StreamStatus.RESOURCE_NOT_FOUND


def test_a_token_of_an_inactive_user_does_not_log_in() -> None:
    metadata = world_with_bob(UserStatus.INACTIVE)
    metadata.apply(NOW, 1, CreatePersonalAccessToken("deploy", token_hash("text"), 0))
    assert status_of(lambda: login_with_token(metadata, "text", NOW)) is StreamStatus.USER_INACTIVE


def test_the_root_user_has_id_0_and_every_permission() -> None:
    command = create_root_user(Credentials("iggy", "iggy"))
    assert (command.user_id, command.username, command.permissions) == (0, "iggy", ALL_PERMISSIONS)
    assert verify_password(command.password, "iggy")
    assert status_of(lambda: create_root_user(Credentials("ab", "iggy"))) is StreamStatus.INVALID_USERNAME
    assert status_of(lambda: create_root_user(Credentials("iggy", "x"))) is StreamStatus.INVALID_PASSWORD
