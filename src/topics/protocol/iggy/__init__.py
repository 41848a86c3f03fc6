"""The binary protocol of Apache Iggy 0.8: frames, requests, answers. Pure: bytes in, values out, and back."""
