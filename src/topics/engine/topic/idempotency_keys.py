"""The idempotency keys of one topic: which write each key made, for as long as the topic's window runs. Owner only."""

from collections.abc import Iterable, Iterator

from topics.formats.snapshot import KeyState


class IdempotencyKeys:
    """Keys in the order in which they were used first. After a replay a key that was used twice is at its first
    place."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[str, KeyState] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[KeyState]:
        return iter(self._keys.values())

    def restore(self, keys: Iterable[KeyState]) -> None:
        self._keys = {key.key: key for key in keys}

    def note(self, key: str, ts: int, first_seq: int, count: int, head_seq: int) -> None:
        """A write with this key is published."""
        self._keys[key] = KeyState(key, ts, first_seq, count, head_seq)

    def get(self, key: str) -> KeyState | None:
        return self._keys.get(key)

    def find(self, key: str, now_ms: int, window_ms: int) -> KeyState | None:
        """The write that this key made within the window. Drops the oldest keys whose window has ended."""
        keys = self._keys
        while keys:
            oldest = next(iter(keys.values()))
            if now_ms - oldest.ts < window_ms:
                break
            del keys[oldest.key]
        known = keys.get(key)
        # Asked again: a key that was used twice may be younger than its place says.
        return known if known is not None and now_ms - known.ts < window_ms else None

    def forget_ended(self, now_ms: int, window_ms: int) -> None:
        """Drops every key whose window has ended."""
        self._keys = {name: key for name, key in self._keys.items() if now_ms - key.ts < window_ms}

    def up_to(self, upto_seq: int) -> list[KeyState]:
        """Keys whose records have seqs up to `upto_seq`."""
        return [key for key in self._keys.values() if key.first_seq + key.count - 1 <= upto_seq]

    def after(self, seq: int) -> list[KeyState]:
        """Keys whose records have seqs above `seq`."""
        return [key for key in self._keys.values() if key.first_seq > seq]
