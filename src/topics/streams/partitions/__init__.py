"""A partition: batches on their way in, the journal, segments, and messages on their way out."""
