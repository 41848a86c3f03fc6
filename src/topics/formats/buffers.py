"""The buffers that the decoders read from.

A decoder takes the content of a file, a window of it, or a map of it (as a `memoryview`), and copies no more than it
returns. While a generator over a buffer is alive it pins that buffer: a map
cannot be closed and a bytearray cannot grow. The pin goes with the generator, also when it raises.
"""

Buffer = bytes | bytearray | memoryview
