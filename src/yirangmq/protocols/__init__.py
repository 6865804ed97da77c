"""Network protocols of a server: native, HTTP, STOMP, feed, and the inbox of etcd clients.

A protocol translates a request, calls the broker or the publisher once, and translates the answer. Rules live in
``core`` and ``broker``, never here, and no protocol imports a store."""
