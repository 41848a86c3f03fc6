"""What the decoders read from.

They take a file that was read, a window of one, or a map of one (hand it over as a `memoryview`), and never
copy more of it than they give back. While a generator over a buffer is alive it pins that buffer: a map
cannot be closed and a bytearray cannot grow. The pin goes with the generator, also when it raises.
"""

Buffer = bytes | bytearray | memoryview
