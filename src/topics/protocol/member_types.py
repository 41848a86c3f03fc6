"""Types that many members of request and response bodies share, each with the description that OpenAPI shows."""

from typing import Annotated, Final

from msgspec import Meta

from topics.limits import U64_MAX

U32_MAX: Final = 2**32 - 1

U64 = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": U64_MAX, "format": "uint64"})]
U32 = Annotated[int, Meta(ge=0, le=U32_MAX)]
I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]

TopicName = Annotated[str, Meta(description="Name of the topic.")]
HeadSeq = Annotated[U64, Meta(description="Highest seq that was given out; 0 if nothing was ever written.")]
EarliestSeq = Annotated[U64, Meta(description="First live seq; `head_seq + 1` if there is none.")]
LiveCount = Annotated[U64, Meta(description="Live records.")]
LiveBytes = Annotated[U64, Meta(description="Bytes of JSON in the live records, `data` and `meta`.")]
RouterName = Annotated[str, Meta(description="Name of the router.")]
RouterSource = Annotated[
    str, Meta(description="Topic that the router copies from, or `stream:STREAM/TOPIC` for a topic of a stream.")
]
RouterDest = Annotated[
    str,
    Meta(
        description="Topic that the router copies to, or `stream:STREAM/TOPIC` for a topic of a stream. All routers "
        "between topics into one dest have the same source."
    ),
]
GroupName = Annotated[str, Meta(description="Name of the consumer group.")]
GroupSeq = Annotated[U64, Meta(description="Last seq that the group has finished.")]
GroupLag = Annotated[
    U64, Meta(description="`head_seq - seq`: seqs that the group has not finished. Some of their records may be gone.")
]
WriterName = Annotated[str, Meta(description="Name of the writer: 1 to 128 letters, digits and `. _ : -`.")]
EpochNumber = Annotated[U64, Meta(description="Number of the epoch.")]
PartNumber = Annotated[U64, Meta(description="Number of the part in the epoch. A commit appends parts in this order.")]
