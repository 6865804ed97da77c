"""A web application that publishes jobs: it answers when the job is on disk, and a worker does the work.

    python examples/web_app.py sqlite:demo.db 8000 &
    curl -s -d to=ann@example.org -d text=hello -d order=17 http://127.0.0.1:8000/
    curl -s -d to=ann@example.org -d text=hello -d order=17 http://127.0.0.1:8000/
    python examples/worker.py sqlite:demo.db --until-empty

Needs curl. The application is a WSGI function, for Python's own server and any other, and needs no web framework."""

import sys
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, make_server

import yirangmq
from yirangmq import NewMessage


class Quiet(WSGIRequestHandler):
    def log_message(self, *values):
        pass


def application(queues):
    """Return the WSGI application. Threads may share ``queues``; after a fork each process connects by itself."""

    def respond(environ, start_response):
        form = parse_qs(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)).decode())
        mail = {name: values[0] for name, values in form.items()}
        if not {"to", "text", "order"} <= mail.keys():
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            return [b"to, text and order are required\n"]
        key = f"mail-for-order-{mail['order']}"  # a request that the browser repeats sends one mail
        receipt = queues.publish("mail", NewMessage(mail, deduplication_key=key))
        start_response("202 Accepted", [("Content-Type", "text/plain")])
        return [b"already accepted\n" if receipt.duplicate else b"accepted\n"]

    return respond


if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as queues:
        server = make_server("127.0.0.1", int(sys.argv[2]), application(queues), handler_class=Quiet)
        print(f"listening at http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
