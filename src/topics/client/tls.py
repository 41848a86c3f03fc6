"""How a client trusts the server of an https address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.client.endpoint import Endpoint
from topics.errors import InvalidRequest

if TYPE_CHECKING:
    import ssl


def tls_context(endpoint: Endpoint, given: ssl.SSLContext | None, ca_file: str | None) -> ssl.SSLContext | None:
    """The caller's context, or one that trusts `ca_file`, or the authorities of the system. None for plain HTTP."""
    if not endpoint.is_tls:
        return None
    if given is not None:
        return given
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise InvalidRequest(f"ca_file cannot be read: {error}") from error
