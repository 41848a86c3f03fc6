"""Predicates over tags: `"v"`, `"p*"`, `["tag","Eq","v"]`, `["tag","Glob","p*"]`."""

from typing import Final, NamedTuple, Self

import msgspec

from topics.errors import InvalidRequest

_decode_text: Final = msgspec.json.Decoder(str).decode


class TagMatch(NamedTuple):
    """A whole tag, or a prefix of tags."""

    text: str
    is_prefix: bool

    @classmethod
    def parse(cls, form: str | list[msgspec.Raw]) -> Self:
        """Parses both forms. Only a final `*` is special."""
        if isinstance(form, str):
            return cls(form[:-1], True) if form.endswith("*") else cls(form, False)
        try:
            texts = [_decode_text(part) for part in form]
        except msgspec.DecodeError as error:
            raise InvalidRequest('a match is ["tag", "Eq" or "Glob", text]: all of them strings') from error
        if len(texts) != 3 or texts[0] != "tag" or texts[1] not in ("Eq", "Glob"):
            raise InvalidRequest('a match is ["tag","Eq",text], ["tag","Glob",prefix*], or the text alone')
        if texts[1] == "Eq":
            return cls(texts[2], False)
        if not texts[2].endswith("*"):
            raise InvalidRequest("a Glob ends in *")
        return cls(texts[2][:-1], True)
