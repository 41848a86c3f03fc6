"""Messages for property tests: few or many, alike or of all sizes, with and without ids and user headers."""

import base64
from typing import Final

from hypothesis import strategies as st

from topics.formats.message_cipher import Cipher
from topics.streams.partitions.batch import NewMessage

KEY_BASE64: Final = base64.b64encode(bytes(range(32))).decode()
OTHER_KEY_BASE64: Final = base64.b64encode(bytes(32)).decode()
CIPHER: Final = Cipher(KEY_BASE64)

payloads: Final = st.binary(max_size=40) | st.sampled_from((b"", b"\0" * 5000, bytes(range(256)) * 8))
user_headers: Final = st.none() | st.sampled_from((b"", b"opaque", b"h" * 300))
new_messages: Final = st.builds(
    NewMessage,
    payload=payloads,
    id=st.sampled_from((0, 1, 2**64, 2**128 - 1)) | st.integers(0, 2**128 - 1),
    user_headers=user_headers,
    origin_timestamp=st.integers(0, 2**64 - 1),
)
sends: Final = st.one_of(
    st.lists(new_messages, min_size=1, max_size=6),
    st.builds(lambda message, count: [message] * count, new_messages, st.integers(1, 70)),
)
