"""Consumer groups: what clients ask for, and what they change. Handlers run on threads."""

from typing import Any, Final

from topics.protocol.iggy.answers import GroupRecord, MemberRecord, encode_records
from topics.protocol.iggy.codes import Code
from topics.server.streams.catalog_commands import empty_if_unknown
from topics.server.streams.session import Handler, Session
from topics.stream_errors import StreamStatus
from topics.streams.metadata.permissions import Action
from topics.streams.running.running_topic import GroupState

_UNKNOWN: Final = (
    StreamStatus.STREAM_ID_NOT_FOUND,
    StreamStatus.TOPIC_ID_NOT_FOUND,
    StreamStatus.CONSUMER_GROUP_ID_NOT_FOUND,
)


def _record(state: GroupState) -> GroupRecord:
    return GroupRecord(state.info.id, state.partitions_count, len(state.members), state.info.name)


def _find(session: Session, request: Any) -> tuple[int, int, int]:
    """The ids of stream, topic and group, if they exist and the user may use the group."""
    metadata = session.system.metadata
    info = metadata.resolve_topic(request.stream_id, request.topic_id)
    group = info.groups.resolve(request.group_id)
    session.allow(Action.GET_TOPIC, info.stream_id, info.id)
    return info.stream_id, info.id, group.id


def _get_group(session: Session, request: Any) -> bytes:
    state = session.system.group_state(*_find(session, request))
    members = [MemberRecord(member.id, member.partitions) for member in state.members]
    return encode_records(_record(state), *members)


def _get_groups(session: Session, request: Any) -> bytes:
    info = session.find_topic(request.stream_id, request.topic_id, Action.GET_TOPIC)
    return encode_records(*map(_record, session.system.group_states(info.stream_id, info.id)))


def _create_group(session: Session, request: Any) -> bytes:
    info = session.find_topic(request.stream_id, request.topic_id, Action.GET_TOPIC)
    group = session.system.create_group(info.stream_id, info.id, request.name, user_id=session.user.id)
    return encode_records(GroupRecord(group.id, len(info.partitions), 0, group.name))


def _delete_group(session: Session, request: Any) -> bytes:
    session.system.delete_group(*_find(session, request), user_id=session.user.id)
    return b""


def _join_group(session: Session, request: Any) -> bytes:
    ids = _find(session, request)
    session.check_registered()
    session.has_joined = True
    session.system.join_group(*ids, session.client_id, is_connected=session.service.is_connected)
    return b""


def _leave_group(session: Session, request: Any) -> bytes:
    session.system.leave_group(*_find(session, request), session.client_id)
    return b""


GROUP_COMMANDS: Final[dict[int, Handler]] = {
    Code.GET_CONSUMER_GROUP: empty_if_unknown(_get_group, *_UNKNOWN),
    Code.GET_CONSUMER_GROUPS: empty_if_unknown(_get_groups, *_UNKNOWN),
    Code.CREATE_CONSUMER_GROUP: _create_group,
    Code.DELETE_CONSUMER_GROUP: _delete_group,
    Code.JOIN_CONSUMER_GROUP: _join_group,
    Code.LEAVE_CONSUMER_GROUP: _leave_group,
}
