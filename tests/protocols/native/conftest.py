from tests.support.session_fixtures import client, server

__all__ = ["client", "server"]
