"""The API of the HTTP queue (docs/http-mq.md): messages are drafted and set, ordered and fetched, and settled by id."""
