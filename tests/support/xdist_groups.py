"""Which tests run in one process, because they share something that is dear to start: a Spark session, a browser, an
etcd, a built package. By where they stand: the groups that pytest-xdist knows by marker hang on the node id, which
pytest 9.2 no longer lets it change."""

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling


def group_of(nodeid: str) -> str:
    """Tests with the same word stay together."""
    path = PurePosixPath(nodeid.partition("::")[0])
    folder = path.parts[1]
    if folder == "pipeline" or path.stem == "test_pipelines_page":
        return "spark"
    if folder == "dashboard":
        return "browser"
    if folder in ("cluster", "deploy", "examples"):
        return str(path)
    return nodeid


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """The largest groups first, then the tests that stand alone, in their order."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
