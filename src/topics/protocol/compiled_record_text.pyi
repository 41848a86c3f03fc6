from collections.abc import Sequence

def record_texts(
    raws: Sequence[bytes], flags_at: int, core_at: int, include_tags: bool, include_meta: bool, include_data: bool
) -> list[bytes]: ...
def joined_texts(
    raws: Sequence[bytes], flags_at: int, core_at: int, include_tags: bool, include_meta: bool, include_data: bool
) -> bytes: ...
