"""Encryption at rest: round trips, refusals, and no nonce is used twice."""

import base64
import sys
from typing import Final

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.partitions.message_strategies import CIPHER, KEY_BASE64, OTHER_KEY_BASE64
from topics.errors import StartRefused
from topics.formats.message_cipher import NONCE_BYTES, OVERHEAD_BYTES, Cipher
from topics.stream_errors import StreamsError, StreamStatus

KEY: Final = base64.b64decode(KEY_BASE64)


def refusal(cipher: Cipher, data: bytes) -> StreamsError:
    with pytest.raises(StreamsError) as refused:
        cipher.decrypt(data)
    assert refused.value.number is StreamStatus.CANNOT_DECRYPT_DATA
    return refused.value


@given(data=st.binary(max_size=200))
def test_data_comes_back_28_bytes_longer_in_between(data: bytes) -> None:
    encrypted = CIPHER.encrypt(memoryview(data))
    assert len(encrypted) == len(data) + OVERHEAD_BYTES
    assert CIPHER.decrypt(memoryview(encrypted)) == data


def test_the_form_is_nonce_ciphertext_tag_of_aes_256_gcm() -> None:
    nonce = bytes(range(NONCE_BYTES))
    assert CIPHER.decrypt(nonce + AESGCM(KEY).encrypt(nonce, b"payload", None)) == b"payload"
    encrypted = CIPHER.encrypt(b"payload")
    assert AESGCM(KEY).decrypt(encrypted[:NONCE_BYTES], encrypted[NONCE_BYTES:], None) == b"payload"


def test_no_nonce_is_used_twice_also_by_a_second_process_with_the_key() -> None:
    nonces = {cipher.encrypt(b"")[:NONCE_BYTES] for cipher in (CIPHER, Cipher(KEY_BASE64)) for _ in range(5000)}
    assert len(nonces) == 10_000


def test_every_flipped_bit_is_found() -> None:
    encrypted = CIPHER.encrypt(b"payload")
    for bit in range(8 * len(encrypted)):
        damaged = bytearray(encrypted)
        damaged[bit // 8] ^= 1 << bit % 8
        refusal(CIPHER, bytes(damaged))


def test_every_cut_is_found() -> None:
    encrypted = CIPHER.encrypt(b"payload")
    for length in range(len(encrypted)):
        refusal(CIPHER, encrypted[:length])


def test_another_key_is_refused() -> None:
    refusal(Cipher(OTHER_KEY_BASE64), CIPHER.encrypt(b"payload"))


@pytest.mark.parametrize(
    "key",
    [
        "",
        "not base64!",
        base64.b64encode(bytes(31)).decode(),
        base64.b64encode(bytes(33)).decode(),
        base64.b64encode(bytes(32)).decode().rstrip("="),
        base64.urlsafe_b64encode(b"\xff" * 32).decode(),
        KEY_BASE64 + "\n",
        "clé",
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(StreamsError) as refused:
        Cipher(key)
    assert refused.value.number is StreamStatus.INVALID_ENCRYPTION_KEY
    assert str(refused.value) == "an encryption key is 32 bytes in standard base64"


def test_a_cipher_does_not_show_its_key() -> None:
    assert KEY_BASE64 not in repr(CIPHER)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(StartRefused) as refused:
        Cipher(KEY_BASE64)
    assert str(refused.value) == "encryption needs the package cryptography: pip install 'topics-log[streams]'"
