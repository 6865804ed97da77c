"""Runner of declarative pipeline projects: check or run, and the elements a project defines with their places.

Spark's own pipeline code does the work, with the settings of ``pipeline.session``. Spark runs a pipeline behind a
server in its own Java process; the session here is a client of it. Tables and their catalog are kept in the project's
folder, so that a second run continues where the first ended. A lock file allows a single run per project.

Tables, views, sinks and flows are recorded with file and line as Spark registers them. An error in a definition, or in
a flow that cannot be resolved, names that place."""

import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yirangmq.core.errors import BadInput, NotFound, StoreBusy
from yirangmq.fsio.lock import try_lock
from yirangmq.pipeline import spark_errors
from yirangmq.pipeline.declarative_events import Flow, FlowStates, UnresolvedFlow, short_name, unresolved_of
from yirangmq.pipeline.session import ON_THIS_MACHINE, SETTINGS, is_here, is_local, send_modules_of
from yirangmq.pipeline.spark_errors import SparkLog

# -- elements and their places -----------------------------------------------------------------------------------------

KINDS = {
    "MaterializedView": "materialized view",
    "StreamingTable": "streaming table",
    "TemporaryView": "temporary view",
    "Sink": "sink",
}


LINE = re.compile(r"\(line ([0-9]+), pos [0-9]+\)")


class SqlDefinitionError(Exception):
    """Error in an SQL definition file; ``location`` is its file and line."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(reason)
        self.location = location


@dataclass(frozen=True, slots=True)
class Element:
    """Element of a pipeline: a table, a view, a sink, or a flow into one of them; ``location`` is where it is
    defined."""

    kind: str
    name: str
    location: str


def recording_registry(base: Any, elements: list[Element], folder: Path) -> Any:
    """Return a subclass of Spark's registry that also records each registered element and its place."""

    def location(thing: Any) -> str:
        at = thing.source_code_location
        path = Path(at.filename)
        shown = path.relative_to(folder) if path.is_relative_to(folder) else path
        return f"{shown}:{at.line_number}" if at.line_number else str(shown)

    class Noting(base):  # type: ignore[misc]
        def register_output(self, output: Any) -> None:
            elements.append(Element(KINDS.get(type(output).__name__, "output"), output.name, location(output)))
            super().register_output(output)

        def register_flow(self, flow: Any) -> None:
            elements.append(Element("flow", f"{short_name(flow.name)} → {short_name(flow.target)}", location(flow)))
            send_modules_of(folder)  # Spark calls its function now, so its modules must be marked first
            super().register_flow(flow)

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            elements.append(Element("sql", file_path.stem, str(file_path)))
            try:
                super().register_sql(sql_text, file_path)
            except Exception as error:
                at = LINE.search(str(error))
                raise SqlDefinitionError(
                    f"{file_path}:{at[1]}" if at else str(file_path), spark_errors.one_line(str(error))
                ) from None

    return Noting


def location_of(flow: str, elements: list[Element], folder: Path) -> str | None:
    """Return the place of a flow, by its name. A flow in SQL is found by searching the SQL files for its name."""
    for one in elements:
        if one.kind == "flow" and one.name.partition(" → ")[0] == flow:
            return one.location
    word = re.compile(rf"\b(?:VIEW|TABLE|FLOW)\s+(?:IF\s+NOT\s+EXISTS\s+)?[`\w.]*{re.escape(flow)}\b", re.IGNORECASE)
    for one in elements:
        if one.kind == "sql" and (found := word.search(text := (folder / one.location).read_text())):
            return f"{one.location}:{text.count(chr(10), 0, found.start()) + 1}"
    return None


# -- runs --------------------------------------------------------------------------------------------------------------

SPECS = ("spark-pipeline.yml", "spark-pipeline.yaml")
STATE = ".yirangmq"
"""Folder beside the definitions: the tables, their catalog and Spark's log."""
POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a project run.

    ``refresh`` names the only tables to update. ``full_refresh`` names the tables to recompute from the beginning,
    ``*`` for all."""

    spec: Path
    master: str
    settings: Mapping[str, str]
    is_dry: bool = False
    refresh: Sequence[str] = ()
    full_refresh: Sequence[str] = ()
    ui: bool = False

    @property
    def folder(self) -> Path:
        return self.spec.parent


def find_spec(given: str) -> Path:
    """Return the path of the spec, given a project's folder or the spec itself."""
    path = Path(given).absolute()
    if path.is_file():
        return path
    found = [path / name for name in SPECS if (path / name).is_file()]
    if not found:
        raise NotFound(f"there is no {SPECS[0]} in {path}; 'yirangmq pipeline init NAME' makes a project", field="spec")
    return found[0]


def settings_of(options: RunOptions, events: Path) -> dict[str, str]:
    """Return the Spark settings of a run.

    Tables must persist until the next run, so their catalog is on disk, in the project's folder."""
    state = options.folder / STATE
    spark_settings = {
        **SETTINGS,
        **(ON_THIS_MACHINE if is_here(options.master) else {}),
        "spark.sql.connect.serverStacktrace.enabled": "false",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": (state / "tables").as_uri(),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={state / 'list'};create=true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        **options.settings,
    }
    java = spark_settings.get("spark.driver.extraJavaOptions", "")
    spark_settings["spark.driver.extraJavaOptions"] = f"{java} -Dderby.system.home={state}".strip()
    if options.ui:
        spark_settings["spark.ui.enabled"] = "true"
    return spark_settings


class ProjectRunner:
    """Runner of a project. ``run`` may be called once, with the project locked (``project_lock``).

    ``on_flow`` is called with each changed flow, and ``page`` with the address of Spark's web page if that is enabled.
    ``elements`` is complete after the definitions are read."""

    def __init__(
        self,
        options: RunOptions,
        on_flow: Callable[[Flow], None],
        log: SparkLog,
        page: Callable[[str], None] | None = None,
    ) -> None:
        self._options = options
        self._on_flow = on_flow
        self._log = log
        self._on_page = page
        self._lock = threading.Lock()
        self._on_poll: Callable[[], None] | None = None
        self._unresolved: list[UnresolvedFlow] = []
        self.elements: list[Element] = []
        self.flows: FlowStates | None = None

    def run(self, on_poll: Callable[[], None] | None = None) -> None:
        """Run the project. An error names the file; no data has moved if the error is in a definition.

        ``on_poll`` is called about once per second during the run, on another thread."""
        self._on_poll = on_poll
        from pyspark.pipelines import cli

        with spark_errors.translated_errors("spec"):
            spec = cli.load_pipeline_spec(self._options.spec)
        with tempfile.TemporaryDirectory(prefix="yirangmq-") as folder:
            self._run(spec, Path(folder))

    def _run(self, spec: Any, events: Path) -> None:
        with self._session(events) as spark:
            self.flows = FlowStates(events)
            with _with_location(self._options.folder):
                graph = self._define(spark, spec)
            self._start(spark, graph, spec)

    @contextmanager
    def _session(self, events: Path) -> Iterator[Any]:
        from yirangmq.pipeline.session import prepare, register

        prepare(self._options.master)
        settings = settings_of(self._options, events)
        with warnings.catch_warnings(), self._log.capture():
            warnings.simplefilter("ignore")  # Spark and pandas emit warnings about each other during import
            settings["spark.app.name"] = f"pipeline {self._options.folder.name}"
            spark, page = _connected(self._options.master, settings)
            if not is_local(self._options.master):
                register(spark, ship=True)
        if page and self._on_page is not None:
            self._on_page(page)
        try:
            yield spark
        finally:
            with self._log.capture():
                spark.stop()

    def _define(self, spark: Any, spec: Any) -> str:
        from pyspark.pipelines import cli
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

        graph = create_dataflow_graph(
            spark, default_catalog=spec.catalog, default_database=spec.database, sql_conf=spec.configuration
        )
        registry = recording_registry(SparkConnectGraphElementRegistry, self.elements, self._options.folder)(
            spark, graph
        )
        with _discard_stdout(), _importing(self._options.folder):
            cli.register_definitions(self._options.spec, registry, spec, spark, graph)
        return graph

    def _start(self, spark: Any, graph: str, spec: Any) -> None:
        from pyspark.pipelines.spark_connect_pipeline import start_run

        options = self._options
        _drop_metrics(spark.client)
        events = start_run(
            spark,
            graph,
            full_refresh=[] if "*" in options.full_refresh else [*options.full_refresh],
            full_refresh_all="*" in options.full_refresh,
            refresh=[*options.refresh],
            dry=options.is_dry,
            storage=_storage(spec.storage, options.folder),
        )
        is_over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(is_over,), daemon=True)
        watcher.start()
        try:
            with spark_errors.translated_errors("definitions"), self._locating_errors():
                for event in events:
                    if "pipeline_event_result" in event:
                        self._on_event(event["pipeline_event_result"].event.message)
        finally:
            is_over.set()
            watcher.join()

    @contextmanager
    def _locating_errors(self) -> Iterator[None]:
        """Raise the first unresolved flow with its place.

        Spark's final error says only that there are unresolved flows; it reports each of them in an event before."""
        try:
            yield
        except Exception:
            if not self._unresolved:
                raise
            found = self._unresolved[0]
            location = location_of(found.flow, self.elements, self._options.folder)
            raise BadInput(f"{found.flow}: {found.reason}", field=location or "definitions") from None

    def _watch(self, is_over: threading.Event) -> None:
        """Poll the event log for progress. Spark's events report only the begin and the end of a flow."""
        while not is_over.wait(POLL_SECONDS):
            self._read()
            if self._on_poll is not None:
                self._on_poll()

    def _on_event(self, text: str) -> None:
        assert self.flows is not None
        unresolved = unresolved_of(text)
        if unresolved is not None:
            self._unresolved.append(unresolved)
        self._read()
        with self._lock:
            updated = self.flows.on_event(text)
        if updated is not None:
            self._on_flow(updated)

    def _read(self) -> None:
        assert self.flows is not None
        with self._lock:
            changed = self.flows.read()
        for flow in changed:
            if not flow.is_over:
                self._on_flow(flow)


def _connected(master: str, settings: dict[str, Any]) -> tuple[Any, str | None]:
    """Return a client session and the address of Spark's web page.

    The server of the session runs in this process's Java, on a free port, so that two runs do not collide."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as Client

    os.environ["SPARK_LOCAL_REMOTE"] = os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    Client._start_connect_server(master, settings)  # removes all settings but those a client may have
    session: Any = SparkSession._instantiatedSession
    service = getattr(session._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    client = Client.builder.config(map=settings).remote(f"sc://localhost:{port}").getOrCreate()
    return client, session._sc.uiWebUrl


def _drop_metrics(client: Any) -> None:
    """Remove metrics from the server's stream of responses.

    If tasks run Python, Spark's server also sends their metrics. Spark's client treats these as an error at the end of
    the run."""
    from pyspark.sql.metrics import ObservedMetrics, PlanMetrics

    whole = client._execute_and_fetch_as_iterator

    def events(*given: Any, **more: Any) -> Iterator[Any]:
        return (one for one in whole(*given, **more) if not isinstance(one, ObservedMetrics | PlanMetrics))

    client._execute_and_fetch_as_iterator = events


def _storage(text: str, folder: Path) -> str:
    """Return the storage as a URL, which Spark requires. A path is relative to the project."""
    return text if re.match(r"[a-z][a-z0-9+.-]+:", text) else (folder / text).resolve().as_uri()


@contextmanager
def project_lock(folder: Path) -> Iterator[None]:
    """Lock the project: its catalog admits a single process. ``StoreBusy`` for the second."""
    state = folder / STATE
    state.mkdir(exist_ok=True)
    with (state / "lock").open("w") as lock:
        if not try_lock(lock.fileno()):
            raise StoreBusy(f"another run of {folder.name} is in progress", field="project")
        yield


@contextmanager
def _with_location(folder: Path) -> Iterator[None]:
    """Raise an error in a definition with its file and line."""
    try:
        yield
    except SqlDefinitionError as error:
        raise BadInput(str(error), field=error.location) from None
    except Exception as error:
        location = _location_of(error, folder)
        made = spark_errors.as_queue_error(error)
        reason = str(made) if made is not None else f"{type(error).__name__}: {error}"
        raise BadInput(reason, field=location or "definitions") from None


def _location_of(error: BaseException, folder: Path) -> str | None:
    """Return the innermost line of the project in the traceback."""
    found = None
    if isinstance(error, SyntaxError) and error.filename:
        found = f"{error.filename}:{error.lineno}"
    step = error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if Path(name).is_relative_to(folder) and STATE not in name:
            found = f"{name}:{step.tb_lineno}"
        step = step.tb_next
    return found.removeprefix(f"{folder}{os.sep}") if found else None


@contextmanager
def _discard_stdout() -> Iterator[None]:
    """Discard standard output: Spark prints its input, and the command prints its own lines."""
    kept, sys.stdout = sys.stdout, Path(os.devnull).open("w")  # noqa: SIM115
    try:
        yield
    finally:
        sys.stdout.close()
        sys.stdout = kept


@contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Allow definitions to import modules of their project."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
