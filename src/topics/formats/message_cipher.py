"""Encryption at rest: AES-256-GCM with a fresh nonce for every field and no additional data.

    nonce, 12 bytes | ciphertext | tag, 16 bytes

Messages and the state log share one key. No error and no repr shows the key.
"""

import base64
import binascii
import secrets
from typing import Final

from topics.errors import StartRefused
from topics.formats.buffers import Buffer
from topics.stream_errors import StreamsError, StreamStatus

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = NONCE_BYTES + TAG_BYTES


class Cipher:
    """Thread-safe."""

    __slots__ = ("_aead", "_invalid_tag")

    def __init__(self, key_base64: str) -> None:
        try:
            key = base64.b64decode(key_base64, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise StreamsError(
                StreamStatus.INVALID_ENCRYPTION_KEY, f"an encryption key is {KEY_BYTES} bytes in standard base64"
            )
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise StartRefused(
                "encryption needs the package cryptography: pip install 'topics-log[streams]'"
            ) from error
        self._aead = AESGCM(key)
        self._invalid_tag = InvalidTag

    def encrypt(self, data: Buffer) -> bytes:
        """The stored form: 28 bytes longer than the data."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._aead.encrypt(nonce, data, None)

    def decrypt(self, data: Buffer) -> bytes:
        if len(data) < OVERHEAD_BYTES:
            raise StreamsError(StreamStatus.CANNOT_DECRYPT_DATA, "the data is too short to be encrypted")
        view = memoryview(data)
        try:
            return self._aead.decrypt(view[:NONCE_BYTES], view[NONCE_BYTES:], None)
        except self._invalid_tag:
            raise StreamsError(
                StreamStatus.CANNOT_DECRYPT_DATA, "the data is encrypted with another key, not encrypted, or damaged"
            ) from None
