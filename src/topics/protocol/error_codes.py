"""The error codes of the contract, made from the error tree: the meaning of a code, and whether a retry is worth it.

The classes are the only list. The OpenAPI document and the table in `docs/http.md` are made from it, and the client
turns a code back into its class.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from topics.errors import TopicsError


class ErrorCode(NamedTuple):
    code: str
    status: int
    meaning: str
    retriable: bool
    error: type[TopicsError]


def _tree(error: type[TopicsError]) -> Iterator[type[TopicsError]]:
    yield error
    for child in error.__subclasses__():
        yield from _tree(child)


def _error_codes() -> Iterator[ErrorCode]:
    """Leaves out classes without a code: they refuse a start, or are special cases of a class with a code."""
    for error in _tree(TopicsError):
        if "code" not in vars(error) or error.__module__ != "topics.errors":
            continue
        if error is TopicsError:
            meaning = "A bug of the server. A write or delete answered so was not applied."
        else:
            meaning = (error.__doc__ or "").partition("\n")[0]
        yield ErrorCode(error.code, error.status, meaning, error.retriable, error)


# By status, then by code.
ERROR_CODES: Final = tuple(sorted(_error_codes(), key=lambda entry: (entry.status, entry.code)))
