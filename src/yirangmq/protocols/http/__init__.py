"""HTTP/1.1 server: a sans-IO protocol, routing, authentication, and the APIs behind it."""
