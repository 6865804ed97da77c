from tests.support.fixtures import client, place, server

__all__ = ["client", "place", "server"]
