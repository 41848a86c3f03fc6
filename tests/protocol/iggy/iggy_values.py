"""Random requests and answers of the Iggy protocol."""

from typing import Any

import msgspec
from hypothesis import strategies as st

from topics.formats.stream_command import Identifier, UserStatus
from topics.formats.stream_permissions import Permissions, StreamPermissions, TopicPermissions, ascending
from topics.protocol.iggy import answers, requests
from topics.protocol.iggy.codes import Code

U8 = st.integers(0, 2**8 - 1)
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
STR8 = TEXT.filter(lambda text: len(text.encode()) <= 255)
NAME = STR8.filter(bool)
IDENTIFIER: st.SearchStrategy[Identifier] = U32 | NAME

_TOPICS = st.dictionaries(U32, st.builds(TopicPermissions, *[st.booleans()] * 4), max_size=3)
_STREAMS = st.dictionaries(U32, st.builds(StreamPermissions, *[st.booleans()] * 6, _TOPICS), max_size=3)
PERMISSIONS = st.none() | st.builds(Permissions, *[st.booleans()] * 10, _STREAMS).map(ascending)
STATUS = st.sampled_from(UserStatus)

_CONSUMER = (st.sampled_from([1, 2]), IDENTIFIER)
_SLOT = (*_CONSUMER, IDENTIFIER, IDENTIFIER, st.none() | U32)
_TOPIC_OPTIONS = (st.integers(1, 4), U64, U64, U8)
_TOPIC = (IDENTIFIER, IDENTIFIER)
_GROUP = (*_TOPIC, IDENTIFIER)

# The members of each request with members, by its code.
_MEMBERS: dict[int, tuple[st.SearchStrategy[Any], ...]] = {
    Code.GET_SNAPSHOT: (U8, st.lists(U8, max_size=8).map(tuple)),
    Code.GET_CLIENT: (U32,),
    Code.GET_USER: (IDENTIFIER,),
    Code.CREATE_USER: (STR8, STR8, STATUS, PERMISSIONS),
    Code.DELETE_USER: (IDENTIFIER,),
    Code.UPDATE_USER: (IDENTIFIER, st.none() | STR8, st.none() | STATUS),
    Code.UPDATE_PERMISSIONS: (IDENTIFIER, PERMISSIONS),
    Code.CHANGE_PASSWORD: (IDENTIFIER, STR8, STR8),
    Code.LOGIN_USER: (STR8, STR8, TEXT, TEXT),
    Code.CREATE_PERSONAL_ACCESS_TOKEN: (STR8, U64),
    Code.DELETE_PERSONAL_ACCESS_TOKEN: (STR8,),
    Code.LOGIN_WITH_PERSONAL_ACCESS_TOKEN: (STR8,),
    Code.POLL_MESSAGES: (*_SLOT, st.integers(1, 5), U64, U32, st.booleans()),
    Code.FLUSH_UNSAVED_BUFFER: (*_TOPIC, U32, st.booleans()),
    Code.GET_CONSUMER_OFFSET: _SLOT,
    Code.STORE_CONSUMER_OFFSET: (*_SLOT, U64),
    Code.DELETE_CONSUMER_OFFSET: _SLOT,
    Code.GET_STREAM: (IDENTIFIER,),
    Code.CREATE_STREAM: (NAME,),
    Code.DELETE_STREAM: (IDENTIFIER,),
    Code.UPDATE_STREAM: (IDENTIFIER, NAME),
    Code.PURGE_STREAM: (IDENTIFIER,),
    Code.GET_TOPIC: _TOPIC,
    Code.GET_TOPICS: (IDENTIFIER,),
    Code.CREATE_TOPIC: (IDENTIFIER, U32, *_TOPIC_OPTIONS, NAME),
    Code.DELETE_TOPIC: _TOPIC,
    Code.UPDATE_TOPIC: (*_TOPIC, *_TOPIC_OPTIONS, NAME),
    Code.PURGE_TOPIC: _TOPIC,
    Code.CREATE_PARTITIONS: (*_TOPIC, U32),
    Code.DELETE_PARTITIONS: (*_TOPIC, U32),
    Code.DELETE_SEGMENTS: (*_TOPIC, U32, U32),
    Code.GET_CONSUMER_GROUP: _GROUP,
    Code.GET_CONSUMER_GROUPS: _TOPIC,
    Code.CREATE_CONSUMER_GROUP: (*_TOPIC, NAME),
    Code.DELETE_CONSUMER_GROUP: _GROUP,
    Code.JOIN_CONSUMER_GROUP: _GROUP,
    Code.LEAVE_CONSUMER_GROUP: _GROUP,
}


def requests_of(code: int) -> st.SearchStrategy[requests.Request]:
    kind = next(kind for kind, other in requests.CODES_BY_REQUEST.items() if other == code)
    return st.builds(kind, *_MEMBERS[code])


CODES_WITH_MEMBERS = sorted(_MEMBERS)
REQUESTS = st.sampled_from(CODES_WITH_MEMBERS).flatmap(requests_of)
PARTITIONING = st.none() | U32 | st.binary(min_size=1, max_size=255)

_F32 = st.floats(width=32, allow_nan=False)
_NODE = st.builds(answers.NodeRecord, TEXT, TEXT, U16, U16, U16, U16, U8, U8)
_CACHE = st.builds(answers.CacheRecord, U32, U32, U32, U64, U64, _F32)

ANSWERS: dict[type[msgspec.Struct], st.SearchStrategy[Any]] = {
    answers.StreamRecord: st.builds(answers.StreamRecord, U32, U64, U32, U64, U64, NAME),
    answers.TopicRecord: st.builds(answers.TopicRecord, U32, U64, U32, U64, U8, U64, U8, U64, U64, NAME),
    answers.PartitionRecord: st.builds(answers.PartitionRecord, U32, U64, U32, U64, U64, U64),
    answers.GroupRecord: st.builds(answers.GroupRecord, U32, U32, U32, NAME),
    answers.MemberRecord: st.builds(answers.MemberRecord, U32, st.lists(U32, max_size=5).map(tuple)),
    answers.ClientRecord: st.builds(answers.ClientRecord, U32, U32, U8, TEXT, U32),
    answers.ClientGroupRecord: st.builds(answers.ClientGroupRecord, U32, U32, U32),
    answers.UserRecord: st.builds(answers.UserRecord, U32, U64, U8, STR8),
    answers.UserDetails: st.builds(answers.UserDetails, U32, U64, U8, STR8, PERMISSIONS),
    answers.TokenRecord: st.builds(answers.TokenRecord, STR8, U64),
    answers.TokenAnswer: st.builds(answers.TokenAnswer, STR8),
    answers.LoginAnswer: st.builds(answers.LoginAnswer, U32),
    answers.OffsetAnswer: st.builds(answers.OffsetAnswer, U32, U64, U64),
    answers.Cluster: st.builds(answers.Cluster, TEXT, st.lists(_NODE, max_size=3).map(tuple)),
    answers.Stats: st.builds(
        answers.Stats,
        *(U32, _F32, _F32, *[U64] * 8, *[U32] * 4, U64, U32, U32, *[TEXT] * 5, U32),
        st.lists(_CACHE, max_size=2).map(tuple),
        *(U32, U64, U64),
    ),
}
