"""A webhook: the server POSTs each message to a URL, and this program checks the signature before it believes it.

    yirangmq serve &
    mkdir -p yirang-data/secrets && yirangmq token new --file yirang-data/secrets/shop
    python examples/webhook_receiver.py 9000 yirang-data/secrets/shop &
    yirangmq policy set --queue hooks '{"webhook": {"url": "http://127.0.0.1:9000/", "secret": "shop"}}'
    yirangmq publish --queue hooks --id order-17 '{"order": 17}'

An answer of 2xx acks the message, 4xx makes it a dead letter, anything else is retried."""

import hashlib
import hmac
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SECRET = Path(sys.argv[2]).read_text().split("\n")[0].encode()


def is_genuine(timestamp: str, signature: str, body: bytes) -> bool:
    if not timestamp.isdigit() or abs(time.time() - int(timestamp)) > 300:
        return False  # too old: it may be a copy
    wanted = hmac.new(SECRET, timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(f"sha256={wanted}", signature)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        genuine = is_genuine(self.headers.get("X-MQ-Timestamp", ""), self.headers.get("X-MQ-Signature", ""), body)
        # A message may come twice: a real receiver remembers its id.
        print("genuine:" if genuine else "forged:", self.headers.get("X-MQ-Message-Id"), body.decode(), flush=True)
        self.send_response(204 if genuine else 403)
        self.end_headers()

    def log_message(self, *values):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver)
    print(f"listening at port {server.server_port}", flush=True)
    server.serve_forever()
