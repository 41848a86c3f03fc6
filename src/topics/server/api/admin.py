"""Endpoints for programs that maintain a store: seal the segments of a topic, replace the files of a segment, capture
the whole log for a backup, show the settings."""

from __future__ import annotations

from functools import partial

from topics.engine.checkpointing.log_capture import capture_log
from topics.engine.checkpointing.replacement import Offer, ReplacedSegment
from topics.errors import Forbidden, InvalidRequest
from topics.protocol import response_body
from topics.protocol.body_decoder import CAPTURE_DECODER, REPLACE_DECODER
from topics.protocol.request_body import CaptureBody, ReplaceBody
from topics.server.app import Application
from topics.server.auth import ADMIN
from topics.server.http.exchange import Exchange
from topics.server.http.routes import Body, Endpoint
from topics.server.settings_schema import SETTINGS, shown
from topics.version import VERSION


class AdminApi:
    def __init__(self, app: Application) -> None:
        self._app = app
        endpoint = Endpoint("replace_segment", self.replace_segment, ADMIN, Body.REQUIRED)
        app.routes.add("POST", "/v0/admin/segments/replace", endpoint)
        app.routes.add("POST", "/v0/admin/capture", Endpoint("capture", self.capture, ADMIN, Body.OPTIONAL))
        app.routes.add("GET", "/v0/admin/config", Endpoint("get_config", self.config, ADMIN, before_ready=True))
        app.routes.add("POST", "/v0/topics/{topic}/seal", Endpoint("seal_topic", self.seal, ADMIN))

    def config(self, exchange: Exchange) -> None:
        assert exchange.key is not None
        if exchange.key.prefixes:
            raise Forbidden("settings are about all topics, and the key is for some names only: use a key for any name")
        settings, origins = self._app.settings, self._app.origins_of_settings
        exchange.answer(
            response_body.ServerConfig(
                version=VERSION,
                settings=[
                    response_body.SettingState(
                        name=setting.name,
                        value=shown(getattr(settings, setting.name)),
                        origin=origins.get(setting.name, "default"),
                        default=setting.shown_default,
                        group=setting.group,
                        meaning=setting.meaning,
                        reloaded=setting.is_reloaded,
                    )
                    for setting in SETTINGS
                ],
                performance=exchange.performance(),
            )
        )

    def capture(self, exchange: Exchange) -> None:
        body: CaptureBody = CAPTURE_DECODER.decode(exchange.body) if exchange.body else CaptureBody()
        assert exchange.key is not None
        if exchange.key.prefixes:
            raise Forbidden("a capture has all topics, and the key is for some names only: use a key for any name")
        captured = capture_log(self._app.open_engine().engine, body.pin_ms)
        pin = captured.pin
        exchange.answer(
            response_body.LogCapture(
                store_id=captured.store_id,
                ts=captured.ts,
                data_uri=captured.data_uri,
                cold_uri=captured.cold_uri,
                snapshot=captured.snapshot,
                pin=None if pin is None else response_body.PinState(id=pin.id, until=pin.until_ms),
                performance=exchange.performance(),
            )
        )

    def seal(self, exchange: Exchange) -> None:
        opened = self._app.open_engine()
        opened.checkpointer.seal(opened.engine.topic(exchange.name), partial(self._sealed, exchange))

    def _sealed(self, exchange: Exchange, error: Exception | None) -> None:
        self._app.guarded(exchange, partial(self._answer_sealed, exchange, error))

    def _answer_sealed(self, exchange: Exchange, error: Exception | None) -> None:
        if error is not None:
            raise error
        # The topic may have been deleted meanwhile, and the name may belong to a new one.
        topic = self._app.open_engine().engine.topic(exchange.name)
        sealed = [state for state in topic.live.segments.segments if state.sealed]
        exchange.answer(
            response_body.TopicSealed(
                topic=topic.name,
                head_seq=topic.head_seq,
                sealed_seq=max((state.last_seq for state in sealed), default=0),
                segments=len(sealed),
                performance=exchange.performance(),
            )
        )

    def replace_segment(self, exchange: Exchange) -> None:
        body: ReplaceBody = REPLACE_DECODER.decode(exchange.body)
        offer = Offer(body.topic_id, body.epoch, body.first_seq, _digest(body.expect_digest), body.data, body.idx)
        replacer = self._app.open_engine().replacer
        topic = replacer.topic(offer.topic_id, offer.epoch).name
        assert exchange.key is not None
        if not exchange.key.may_name(topic):
            # The message leaves out the name: the key may not learn it.
            raise Forbidden("the key is not for this topic", {"topic_id": offer.topic_id})
        replacer.replace(offer, partial(self._replaced, exchange))

    def _replaced(self, exchange: Exchange, result: ReplacedSegment | Exception) -> None:
        self._app.guarded(exchange, partial(self._answer_replaced, exchange, result))

    def _answer_replaced(self, exchange: Exchange, result: ReplacedSegment | Exception) -> None:
        if isinstance(result, Exception):
            raise result
        exchange.answer(
            response_body.SegmentReplaced(
                topic=result.topic,
                first_seq=result.state.first_seq,
                last_seq=result.state.last_seq,
                removed=result.removed_count,
                data_len=result.state.data_bytes,
                digest=result.state.digest.hex(),
                performance=exchange.performance(),
            )
        )


def _digest(text: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != 16 or len(text) != 32:
        raise InvalidRequest('"expect_digest" has 32 hexadecimal digits, as in a manifest')
    return digest
