"""Consumer runtime: leases messages, runs handlers, extends leases, settles, and obeys the operator.

It uses the queue interface that the caller passes in, embedded or over a connection (``consumer.lease_table``). The
package does not depend on stores, sockets or the broker."""
