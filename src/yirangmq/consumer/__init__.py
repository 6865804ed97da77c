"""Consumer runtime: leases messages, runs handlers, extends leases, settles, and obeys the operator.

It uses a queue interface that it is given, embedded or over a connection (``consumer.lease_table``). Nothing here
depends on stores, sockets or the broker."""
