"""Old segments: deletion, copies in an archive, and the way back from it."""
