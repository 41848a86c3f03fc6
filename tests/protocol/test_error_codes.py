"""The catalogue of error codes is the error tree."""

import topics.errors
from topics.errors import StartRefused, Throttled, TopicsError
from topics.protocol.error_codes import ERROR_CODES


def test_every_error_with_a_code_is_listed_once() -> None:
    defined = {
        value
        for value in vars(topics.errors).values()
        if isinstance(value, type) and issubclass(value, TopicsError) and "code" in vars(value)
    }
    assert {entry.error for entry in ERROR_CODES} == defined
    assert len({entry.code for entry in ERROR_CODES}) == len(ERROR_CODES)


def test_every_code_says_what_it_means() -> None:
    for entry in ERROR_CODES:
        assert entry.meaning.endswith("."), entry.code
        assert 400 <= entry.status <= 599, entry.code


def test_an_entry_carries_what_its_class_says() -> None:
    entry = next(entry for entry in ERROR_CODES if entry.code == "throttled")
    assert entry == ("throttled", 429, entry.meaning, True, Throttled)


def test_errors_of_a_start_never_go_over_the_wire() -> None:
    assert StartRefused not in {entry.error for entry in ERROR_CODES}
