"""From bytes to requests and back: HTTP/1.1, HTTP/2, WebSocket."""
