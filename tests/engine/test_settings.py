import pytest

from topics.engine.settings import EngineSettings
from topics.errors import InvalidRequest


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("wal_shards", 0, "wal_shards is 0: it must be between 1 and 64"),
        ("wal_shards", 100, "wal_shards is 100: it must be between 1 and 64"),
        ("wal_file_bytes", 100, "wal_file_bytes is 100: it must be between 1024 and 4294967296"),
        ("segment_events_max", 0, "segment_events_max is 0: it must be between 1 and 134217728"),
        ("segment_bytes_max", 2**32, "segment_bytes_max is 4294967296: it must be between 1 and 4294967295"),
    ],
)
def test_a_value_that_cannot_work_is_named_before_anything_is_opened(name: str, value: int, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        EngineSettings(**{name: value})
    assert caught.value.message == message


def test_as_many_shards_as_fit_two_digits_are_fine() -> None:
    assert EngineSettings(wal_shards=64).wal_shards == 64
