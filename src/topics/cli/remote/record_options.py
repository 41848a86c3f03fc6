"""The options that `topics read` and `topics tail` share."""

from typing import Annotated

import typer

from topics.cli.remote.complete import complete_topics

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The name of the topic.", autocompletion=complete_topics)]
FromSeq = Annotated[
    int | None, typer.Option("--from-seq", metavar="SEQ", min=0, help="Begin after this seq.", show_default=False)
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", help="Begin at a time: 10m (ago), 2026-01-31T10:00:00Z.", show_default=False
    ),
]
Match = Annotated[
    list[str] | None,
    typer.Option(
        "--match",
        metavar="WHAT",
        help="Only these: tag=user-*, node=…, a member of the payload (customer.id=7), or text in it. Repeatable.",
        show_default=False,
    ),
]
Template = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="TEXT",
        help="A line per record: %s seq, %T time, %m time in ms, %g tag, %n node, %d payload (strings as text), "
        "%j payload as JSON, %M meta, %t topic; \\n, \\t.",
        show_default=False,
    ),
]
