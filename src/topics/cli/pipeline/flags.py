"""Flags and arguments of a pipeline command: made from the declared options of its job, and read back into them."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from inspect import Parameter
from typing import Annotated, Any

import typer

from topics.spark.jobs.option_schema import DeclaredOption, declared_options, plain_type


def parameters_of(kind: type[Any]) -> Iterator[Parameter]:
    """One parameter for each declared option of a dataclass, as typer reads them from a signature."""
    for option in declared_options(kind):
        yield Parameter(
            option.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if option.is_required else _default(option),
            annotation=_annotation(option),
        )


def parsed(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The members that were given, checked. Raises `typer.BadParameter` for a text that is no value of its option."""
    members: dict[str, Any] = {}
    for option in declared_options(kind):
        value = given[option.name]
        # An option that was not given has the default of its member.
        if value is not None:
            try:
                members[option.name] = option.parse(value)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from error
    return members


def members_of(kind: type[Any], value: Any) -> dict[str, Any]:
    """The members of `value` that a dataclass has, too."""
    names = {member.name for member in fields(value)}
    return {member.name: getattr(value, member.name) for member in fields(kind) if member.name in names}


def _default(option: DeclaredOption) -> Any:
    """The default as the command line has it; None when the help shows no default."""
    form = option.about.form
    if form is None:
        return option.default
    return None if form.collect is not None or option.default in (None, {}) else form.show(option.default)


def _annotation(option: DeclaredOption) -> Any:
    about = option.about
    kind: Any = plain_type(option.kind)
    if about.form is not None:
        kind = list[str] if about.form.collect is not None else str
    if option.is_required:
        has_default = False
    else:
        has_default = _default(option) is not None
        kind = kind if has_default else kind | None
    if about.is_argument:
        return Annotated[kind, typer.Argument(metavar=about.metavar, help=about.help)]
    return Annotated[
        kind,
        typer.Option(
            option.flag,
            metavar=about.metavar,
            help=about.help,
            show_default=has_default,
            min=about.smallest,
            max=about.largest,
        ),
    ]
