"""The API of the HTTP document: queues as namespaces, messages that are drafted, set, ordered, fetched and settled."""
