from tests.support.fixtures import client, server

__all__ = ["client", "server"]
