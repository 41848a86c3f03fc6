"""Errors that several rooms of `topics.spark` raise.

TopicsError
├── InvalidRequest
│   └── BadOption      an option is unknown or wrong: the caller can mend it
└── Conflict           another program changed the same thing: the exit code of a job is 4
"""

from topics.errors import InvalidRequest, TopicsError


class BadOption(InvalidRequest):
    """An option that is unknown, has no valid value, or does not go with another option."""


class Conflict(TopicsError):
    """Another program changed what this one works on, so that it cannot go on. Its changes were not undone."""

    code = "conflict"
    status = 409
