"""API of the HTTP queue (``docs/http-mq.md``): draft and set, order and fetch, settle by id."""
