"""What the option `schema` may be: DDL, a file with a JSON Schema, `variant`, or `infer`.

An inferred schema can be kept: the first one is written to a folder or a bucket, and every later read takes it from
there. So a stream that is started again has the schema that it began with.
"""

import os
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from topics.errors import FutureVersion, StartRefused
from topics.spark.errors import BadOption
from topics.spark.shaping.ddl import type_of
from topics.spark.shaping.infer import infer
from topics.spark.shaping.json_schema import ddl_of
from topics.storage.fs import RealFs
from topics.storage.tiers.addresses import open_shared_store

INFER: Final = "infer"
VARIANT: Final = "variant"
KEPT_NAME: Final = "topics-schema.json"
KEPT_VERSION: Final = 1
# Of each topic, half of them the oldest and half of them the newest.
SAMPLE_RECORDS: Final = 1000


class _Kept(msgspec.Struct, kw_only=True):
    v: int
    # The type of `data`, as DDL.
    schema: str
    # How many records it was inferred from.
    sampled: int


def given_type(schema: str) -> str | None:
    """The type of `data` as DDL; None when it is to be inferred. Raises `BadOption` for a file that has no schema."""
    text = schema.strip()
    if not text:
        raise BadOption(f"option `schema` is empty; give DDL, a file with a JSON Schema, {VARIANT} or {INFER}")
    if text.lower() == INFER:
        return None
    if text.endswith(".json"):
        return ddl_of(_read_json(text), text)
    return type_of(text)


def _read_json(address: str) -> object:
    folder, slash, name = address.rpartition("/")
    try:
        store = open_shared_store(folder + slash if slash else ".", RealFs())
        return msgspec.json.decode(store.read_range(name, 0, store.size(name)))
    except (OSError, StartRefused, msgspec.DecodeError) as error:
        raise BadOption(f"option `schema`: {address} is no file with a JSON Schema: {error}") from error


def inferred_type(location: str | None, sample: Callable[[], Iterable[str | None]]) -> str:
    """The type that is kept at the location. Without one it is inferred from the sample, and kept there."""
    if location is None:
        return infer(sample())
    try:
        store = open_shared_store(location, RealFs())
    except StartRefused as error:
        raise BadOption(f"option `schemaLocation`: {error}") from error
    where = f"{store.address}{os.sep}{KEPT_NAME}"

    def read() -> _Kept | None:
        try:
            found = store.read_range(KEPT_NAME, 0, store.size(KEPT_NAME))
        except FileNotFoundError:
            return None
        try:
            kept = msgspec.json.decode(found, type=_Kept)
        except msgspec.DecodeError as error:
            raise BadOption(f"{where} is not readable: {error}; remove it to infer a new schema") from error
        if kept.v > KEPT_VERSION:
            raise FutureVersion(f"{where}: version {kept.v}, this one knows {KEPT_VERSION}; use a newer topics")
        return kept

    kept = read()
    if kept is None:
        texts = list(sample())
        made = _Kept(v=KEPT_VERSION, schema=infer(texts), sampled=len(texts))
        store.put_if_absent(KEPT_NAME, msgspec.json.encode(made))
        # Another read may have been first.
        kept = read()
        assert kept is not None, "this read or another one has put it"
    return kept.schema
