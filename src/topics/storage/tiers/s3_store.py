"""A tier in an S3-compatible bucket, by way of obstore. Imported only when an address asks for it.

What obstore leaves to its caller, found by tests against a server that gives wrong answers:

- It retries 5xx, 408, 429 and lost connections with backoff and jitter, and continues a body that broke off, all up
  to a number of times. The time is bounded by that number and the client's timeouts together.
- A body whose Content-Length agrees with nothing else is passed on as it is. `read_range` counts.
- An `<Error>` document with status 200 is refused where a range was asked for and after a put, but as an answer
  to a listing it counts as an empty page, and as an answer to a delete it counts as done. So `list` asks again after
  the last name, and `delete` asks whether the object is gone.
- HEAD takes any 200 for an object, such as the page of a proxy. S3 sends an ETag; `_head` insists on it.
- 404 is FileNotFoundError whether the object or the whole bucket is missing: rule 3 of `store`.
- 416 (a range beyond the end) looks like any other failure. The object's size tells.
- A malformed endpoint, bucket or credential is not an error there but a panic. They are checked here.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store as Client

from topics.errors import ColdUnavailable, StartRefused
from topics.limits import KIB
from topics.storage.fs import Buffer
from topics.storage.layout import STORE
from topics.storage.tiers.store import (
    ListedObject,
    ListedObjects,
    Names,
    check_name,
    check_range,
    missing_object,
    missing_tier,
)

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, S3Config, S3Credential

# Up to here a put must answer as fast as a read; beyond, the time to send the bytes counts for more.
QUICK_PUT_BYTES_MAX: Final = 256 * KIB
REASON_CHARS_MAX: Final = 600

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_ENDPOINT: Final = re.compile(
    r"(https?)://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(?:/[A-Za-z0-9._~/-]*)?"
)
_VISIBLE: Final = re.compile(r"[!-~]+")
_QUERY: Final = re.compile(r"(https?://[^\s?]*)\?\S*")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Bounds:
    """How long a call may take.

    An outage answers after at most `retries_max` + 2 times `connect_ms` or `idle_ms` (a failed read is followed by a
    second question) and fractions of a second between retries. Only the put of a large object may take
    `transfer_ms` each time.
    """

    connect_ms: int = 2000
    # Without a byte from the server. While a body is being sent there is none, hence `transfer_ms`.
    idle_ms: int = 3000
    # For one whole request. A segment of 64 MiB needs 1 MiB/s.
    transfer_ms: int = 64_000
    retries_max: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """Endpoint, region and credentials by value; for what is empty the environment is asked."""

    key_id: str = ""
    key_secret: str = field(default="", repr=False)
    endpoint: str = ""
    region: str = ""


class S3Store:
    """A tier below a prefix of a bucket.

    Endpoint, region and credentials come from `access` or else from the usual AWS variables (AWS_ENDPOINT_URL_S3 or
    AWS_ENDPOINT_URL, AWS_REGION or AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, and
    the variables of roles). With an endpoint the bucket is addressed by path, and plain http is allowed if the endpoint
    begins with http.
    """

    def __init__(self, address: str, *, bounds: S3Bounds | None = None, access: S3Access | None = None) -> None:
        bucket, prefix = _parse_address(address)
        bounds = bounds or S3Bounds()
        self._access = access
        self.address = f"s3://{bucket}/{prefix}".rstrip("/")
        idle = f"{bounds.idle_ms}ms"
        # Three clients: for calls that should answer at once, for large puts, and for the second question after a
        # failed read, which must not delay the answer for long.
        self._quick = self._client(bucket, prefix, bounds, idle=idle, retries_max=bounds.retries_max)
        self._patient = self._client(bucket, prefix, bounds, idle=None, retries_max=bounds.retries_max)
        self._probe = self._client(bucket, prefix, bounds, idle=idle, retries_max=0)
        # Set once STORE was read or written, and never unset: rule 3 of `store`.
        self._is_marked = False

    def _client(self, bucket: str, prefix: str, bounds: S3Bounds, *, idle: str | None, retries_max: int) -> Client:
        config, options = _settings(self._access)
        options["connect_timeout"] = f"{bounds.connect_ms}ms"
        options["timeout"] = f"{bounds.transfer_ms}ms"
        if idle is not None:
            options["read_timeout"] = idle
        try:
            return Client(
                bucket,
                prefix=prefix or None,
                config=config,
                client_options=options,
                retry_config={"max_retries": retries_max},
                credential_provider=_provider(self._access),
            )
        except (BaseError, ValueError) as error:
            raise StartRefused(f"{self.address}: cannot use the AWS settings: {_reason(error)}") from error

    def put(self, name: str, data: Buffer) -> None:
        """One PUT, which S3 makes visible as a whole; its signature covers the SHA-256 of the body.

        Then HEAD must show the same object: its size, and the ETag of the answer to the put. The relocator compares the
        bytes: before it deletes the hot copy it reads the object back and compares all of it.
        """
        self._put(name, data, "overwrite")

    def put_if_absent(self, name: str, data: Buffer) -> bool:
        """As `put`, on the condition that there is no such object. The server decides that."""
        return self._put(name, data, "create")

    def _put(self, name: str, data: Buffer, mode: Literal["overwrite", "create"]) -> bool:
        check_name(name)
        view = memoryview(data)
        assert view.contiguous, "a body is sent as it lies in memory"
        client = self._quick if view.nbytes <= QUICK_PUT_BYTES_MAX else self._patient
        with self._translated("put", name):
            try:
                # Never in parts: an upload that breaks off leaves its parts in the bucket, unseen and paid for.
                e_tag = client.put(name, data, mode=mode, use_multipart=False)["e_tag"]
                meta = self._head(name)
            except AlreadyExistsError:
                return False
            except FileNotFoundError as error:
                raise ColdUnavailable(
                    f"{self.address}: cannot put {name}: the bucket does not exist, or lost it at once"
                ) from error
        if (meta["size"], meta["e_tag"]) != (view.nbytes, e_tag):
            raise ColdUnavailable(
                f"{self.address}: {name} is not what was put: {view.nbytes} bytes with ETag {e_tag} went there, "
                f"{meta['size']} bytes with ETag {meta['e_tag']} are there"
            )
        self._is_marked |= name == STORE
        return True

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        check_name(name)
        check_range(offset, size)
        if size == 0:
            self.size(name)
            return b""
        with self._translated("read", name):
            try:
                answer = self._quick.get(name, options={"range": (offset, offset + size)})
                data = answer.bytes().to_bytes()
            except BaseError:
                if not self._ends_before(name, offset):
                    raise
                return b""
        expected = min(offset + size, answer.meta["size"]) - offset
        if len(data) != expected:
            raise ColdUnavailable(
                f"{self.address}: cannot read {name}: {len(data)} bytes at {offset} came, {expected} were announced"
            )
        self._is_marked |= name == STORE
        return data

    def delete(self, name: str) -> None:
        check_name(name)
        with self._translated("delete", name):
            try:
                self._quick.delete(name)
            except FileNotFoundError:
                # Some servers answer 404 where S3 does not. The check below decides.
                pass
        if self.exists(name):
            raise ColdUnavailable(f"{self.address}: cannot delete {name}: it is still there")

    def list(self, prefix: str) -> Names:
        return [entry.name for entry in self.entries(prefix)]

    def entries(self, prefix: str) -> ListedObjects:
        # obstore's prefixes are whole folders.
        folder = prefix.rpartition("/")[0]
        with self._translated("list", prefix):
            found = self._entries_after(None, folder)
            self._require_listing()
            # An answer that is not a listing looks like the last page. So ask again after the last name.
            while fresh := self._entries_after(found[-1].name if found else None, folder):
                found += fresh
        return [entry for entry in found if entry.name.startswith(prefix)]

    def modified_ms(self, name: str) -> int:
        check_name(name)
        with self._translated("measure", name):
            return _modified_ms(self._head(name))

    def settle(self, names: Iterable[str]) -> None:
        """An object that can be seen in a bucket is durable."""

    def remove_unfinished(self, before_ms: int) -> int:
        """There are none: an object appears only when it is whole."""
        return 0

    def exists(self, name: str) -> bool:
        check_name(name)
        with self._translated("look for", name):
            try:
                self._head(name)
            except FileNotFoundError:
                self._require_mark()
                return False
            return True

    def size(self, name: str) -> int:
        check_name(name)
        with self._translated("measure", name):
            return self._head(name)["size"]

    def close(self) -> None:
        # The connections belong to obstore, which closes them when they idle.
        pass

    def _head(self, name: str) -> "ObjectMeta":
        return self._checked(name, self._quick.head(name))

    def _checked(self, name: str, meta: "ObjectMeta") -> "ObjectMeta":
        if meta["e_tag"] is None:
            raise ColdUnavailable(f"{self.address}: the answer about {name} has no ETag: this is not an S3 server")
        return meta

    def _ends_before(self, name: str, offset: int) -> bool:
        """Whether a read at `offset` failed because the object ends before it."""
        try:
            return self._checked(name, self._probe.head(name))["size"] <= offset
        except BaseError:
            return False

    def _entries_after(self, last: str | None, folder: str) -> ListedObjects:
        """Objects after the name `last`, sorted. A server that ignores `last` repeats earlier names: they are
        dropped."""
        found = self._quick.list(folder or None, offset=last).collect()
        return sorted(
            ListedObject(meta["path"], meta["size"], _modified_ms(meta))
            for meta in found
            if last is None or meta["path"] > last
        )

    def _require_listing(self) -> None:
        """Raises when the listing lacks STORE, which is known to exist."""
        if self._is_marked:
            first = next(self._quick.list(offset=STORE[:-1], chunk_size=1000), [])
            if all(meta["path"] != STORE for meta in first):
                self._require_mark()
                raise ColdUnavailable(f"{self.address}: its listing leaves out {STORE}, which is there")

    def _require_mark(self) -> None:
        if self._is_marked:
            try:
                self._checked(STORE, self._probe.head(STORE))
            except FileNotFoundError as error:
                raise missing_tier(self.address) from error
            except (BaseError, OSError) as error:
                raise self._unavailable("look for", STORE, error) from error

    @contextmanager
    def _translated(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            self._require_mark()
            raise missing_object(self.address, name) from error
        except (BaseError, OSError) as error:
            raise self._unavailable(action, name, error) from error

    def _unavailable(self, action: str, name: str, error: Exception) -> ColdUnavailable:
        hint = ""
        if self._access is not None and _has_keys(self._access):
            if isinstance(error, PermissionDeniedError | UnauthenticatedError):
                hint = "; check its key id and secret, the bucket's policy and the clock of this machine"
        elif isinstance(error, PermissionDeniedError | UnauthenticatedError):
            hint = (
                "; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, the bucket's policy and "
                "the clock of this machine"
            )
        elif "AWS_ACCESS_KEY_ID" not in os.environ:
            hint = "; AWS_ACCESS_KEY_ID is not set"
        return ColdUnavailable(f"{self.address}: cannot {action} {name or 'the tier'}{hint}: {_reason(error)}")


def _modified_ms(meta: "ObjectMeta") -> int:
    return int(meta["last_modified"].timestamp() * 1000)


def _parse_address(address: str) -> tuple[str, str]:
    """(bucket, prefix). A wrong address is not repeated in the message: it may contain a key."""
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket):
        raise StartRefused(
            "the cold tier's address has no valid bucket: write s3://bucket/prefix, and give credentials in "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if prefix and any(part in {"", ".", ".."} for part in prefix.split("/")):
        raise StartRefused('the prefix of the cold tier\'s address has an empty part, "." or "..": s3://bucket/prefix')
    return bucket, prefix


def _settings(access: S3Access | None) -> "tuple[S3Config, ClientConfig]":
    """obstore reads the variables itself. Here are the checks and the choices that it leaves open."""
    if access is None or not _has_keys(access):
        for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            _check_visible(variable, os.environ.get(variable, "-"))
    else:
        _check_visible("the key id for S3", access.key_id)
        _check_visible("the secret key for S3", access.key_secret)
    config: S3Config = {
        # Every server has the DELETE of one object. Not every server has the bulk delete.
        "disable_bulk_delete": True,
        "unsigned_payload": False,
    }
    options: ClientConfig = {}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if access is not None and access.region:
        region = access.region
    if region:
        config["region"] = region
    source = "AWS_ENDPOINT_URL_S3" if os.environ.get("AWS_ENDPOINT_URL_S3") else "AWS_ENDPOINT_URL"
    endpoint = os.environ.get(source)
    if access is not None and access.endpoint:
        source, endpoint = "the endpoint for S3", access.endpoint
    if endpoint:
        match = _ENDPOINT.fullmatch(endpoint)
        if match is None or int(match[2] or 0) > 65535:
            raise StartRefused(f"{source} is not of the form http://host:port or https://host:port")
        config["endpoint"] = endpoint
        config["virtual_hosted_style_request"] = False
        options["allow_http"] = match[1] == "http"
    return config, options


def _has_keys(access: S3Access) -> bool:
    return bool(access.key_id or access.key_secret)


def _check_visible(what: str, value: str) -> None:
    if not _VISIBLE.fullmatch(value):
        raise StartRefused(f"{what} is empty or has blanks, line ends or other odd characters in it")


def _provider(access: S3Access | None) -> "Callable[[], S3Credential] | None":
    """The credentials as a provider, not as settings: obstore would add a session token of the environment to
    settings."""
    if access is None or not _has_keys(access):
        return None
    credential: S3Credential = {
        "access_key_id": access.key_id,
        "secret_access_key": access.key_secret,
        "token": None,
        "expires_at": None,
    }
    return lambda: credential


def _reason(error: Exception) -> str:
    """The message of obstore without the dump of structures after it, and without queries, which may hold a token."""
    text = str(error).partition("\n\nDebug source:")[0]
    return _QUERY.sub(r"\1?…", " ".join(text.split()))[:REASON_CHARS_MAX]
