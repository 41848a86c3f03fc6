"""The work that is done for every record, in the form that is installed.

`compiled_kernel` runs where the package was built with a C compiler, `plain_kernel` elsewhere. They have the same
functions and give the same results: `tests/formats/test_kernel.py` compares them.
"""

try:
    from topics.formats.compiled_kernel import (
        add_tags,
        append_bodies,
        append_runs,
        checksums,
        encode_writes,
        entry_span,
        filed_frames,
        frame_places,
        gather,
        has_text,
        have_ends,
        index_entries,
        read_slots,
        scan_frames,
        scan_segment,
        seal_bodies,
        seal_copies,
        segment_frames,
    )
except ModuleNotFoundError:
    from topics.formats.plain_kernel import (
        add_tags,
        append_bodies,
        append_runs,
        checksums,
        encode_writes,
        entry_span,
        filed_frames,
        frame_places,
        gather,
        has_text,
        have_ends,
        index_entries,
        read_slots,
        scan_frames,
        scan_segment,
        seal_bodies,
        seal_copies,
        segment_frames,
    )

__all__ = [
    "add_tags",
    "append_bodies",
    "append_runs",
    "checksums",
    "encode_writes",
    "entry_span",
    "filed_frames",
    "frame_places",
    "gather",
    "has_text",
    "have_ends",
    "index_entries",
    "read_slots",
    "scan_frames",
    "scan_segment",
    "seal_bodies",
    "seal_copies",
    "segment_frames",
]
