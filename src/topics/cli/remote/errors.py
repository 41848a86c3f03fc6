"""`topics errors`: what the error codes mean."""

from typing import Annotated, Final

import typer

from topics.cli.output import Output, fail
from topics.cli.remote.forms import Column, Form, print_one, print_rows
from topics.cli.remote.nearest import nearest
from topics.protocol.error_codes import ERROR_CODES

app: Final = typer.Typer(rich_markup_mode=None, add_completion=False)


def _complete_codes(incomplete: str) -> list[str]:
    return [entry.code for entry in ERROR_CODES if entry.code.startswith(incomplete)]


@app.command()
def errors(
    code: Annotated[
        str | None, typer.Argument(metavar="[CODE]", help="One code; all by default.", autocompletion=_complete_codes)
    ] = None,
    form: Annotated[Form, typer.Option("--output", "-o", help="The form of the data on stdout.")] = Form.TABLE,
) -> None:
    """Explain an error code: what it means, and whether a retry can help.

    \b
    Examples:
      topics errors topic_full
      topics errors -o json
    """
    rows = {
        entry.code: {
            "code": entry.code,
            "status": entry.status,
            "retry": entry.retriable,
            "meaning": entry.meaning,
        }
        for entry in ERROR_CODES
    }
    output = Output()
    if code is None:
        columns = [
            Column("code", "CODE"),
            Column("status", "STATUS"),
            Column("retry", "RETRY"),
            Column("meaning", "MEANING"),
        ]
        print_rows(output, form, columns, rows.values())
    elif code in rows:
        print_one(output, form, rows[code], {})
    else:
        fail(f'there is no error code "{code}"' + nearest(code, rows, "topics errors"))
    output.flush()
