# Everything a contributor types. `make` alone prints this list.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEV    := $(VENV)/.dev
# Tests that share something dear run in one process: tests/support/xdist_groups.py says which.
# Two more than there are cores: many tests wait for processes that they start.
WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 2) + 2)
PYTEST_FLAGS ?= -n $(WORKERS) --dist loadgroup
LOCK_FLAGS   ?=
BENCH_FLAGS  ?=
SOAK_FLAGS   ?=
SERVE_FLAGS  ?=
TRACE_FLAGS  ?=
PEERS  := .venv-bench/.ready
ACTIVEMQ := .bench-activemq/.ready

# Tests start hundreds of processes, and without .pyc files each would compile all of us again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup serve demo test test-all check fmt bench bench-store bench-topics bench-http bench-peers bench-spark soak-spark \
    spark-cluster-demo bench-gateway bench-gateways stomp-same soak-store soak-daemon soak-pair soak-topics fuzz \
    torture torture-faults lock clean browser pictures

help: ## print this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(DEV) ## make .venv with everything that work on the project needs

serve: $(READY) ## run the server on ./yirang-data (SQLite); Ctrl-C stops it (SERVE_FLAGS="--http 127.0.0.1:8081": another port)
	@echo "The server runs here until Ctrl-C. In another terminal, publish the first message and take it:"
	@echo "    $(BIN)/yirangmq publish --queue mail '{\"to\": \"ann\"}'"
	@echo "    $(BIN)/yirangmq consume --queue mail"
	@$(BIN)/yirangmq serve --data yirang-data --log-format text $(SERVE_FLAGS)

demo: $(READY) ## publish, lease, ack, retry and bury, step by step
	$(BIN)/yirangmq demo

# In these the decoder of frames is fed with nonsense for so many seconds (`make fuzz`: two minutes).
test test-all: export YIRANGMQ_FUZZ_SECONDS ?= 20

test: ready ## all tests but the slow ones, and check beside them
	@$(WITH_CHECK) tools/tests.sh $(BIN)/pytest $(PYTEST_FLAGS) -m "not slow"

test-all: ready ## all tests, and check beside them
	@$(WITH_CHECK) tools/tests.sh $(BIN)/pytest $(PYTEST_FLAGS) -m ""

.PHONY: ready fetched
ready: # what is installed and what is fetched, side by side
	@$(MAKE) --no-print-directory -j 2 setup fetched
	@tools/kubernetes.sh || echo "without the schema of Kubernetes: its test is skipped" >&2
fetched:
	@tools/browser.sh && tools/etcd.sh && tools/faketime.sh
	@tools/promtool.sh || echo "without promtool: the tests of alert rules are skipped" >&2

WITH_CHECK = tools/beside.sh $(MAKE) --no-print-directory check --

browser: ## chromium and its driver, for the tests of the dashboard; installed if they are not here
	@tools/browser.sh

.PHONY: cluster-demo
cluster-demo: setup etcd ## three members of etcd and two servers; leaders are killed while messages flow
	$(BIN)/python -m benchmarks.soak.cluster_demo

.PHONY: etcd
etcd: ## etcd and etcdctl, for the tests of the cluster; fetched into .tools if they are not here
	@tools/etcd.sh

.PHONY: faketime
faketime: ## libfaketime, for the tests of clocks; fetched into .tools if it is not here
	@tools/faketime.sh

.PHONY: promtool
promtool: ## promtool, for the tests of alert rules; fetched into .tools if it is not here
	@tools/promtool.sh

.PHONY: trace-modules
trace-modules: setup ## modules and Python calls of one publish, lease and ack, catch-up, and how many modules are loaded (TRACE_FLAGS=--list: which)
	$(BIN)/python tools/module_trace.py $(TRACE_FLAGS)

pictures: setup browser ## make the pictures of the dashboard in docs/pictures anew
	$(BIN)/python tools/screenshots.py

.PHONY: docs docs-serve
docs: setup ## build the documentation as a site in build/docs; warnings are errors
	$(BIN)/sphinx-build -q -W --keep-going -b html -d build/doctrees docs build/docs
	@echo "open build/docs/index.html, or run: make docs-serve"

docs-serve: docs ## build the documentation and serve it at http://127.0.0.1:8001
	@echo "http://127.0.0.1:8001 until Ctrl-C"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs 8001

check: setup ## lint, format, types, layers; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: setup ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench-store bench-topics bench-http bench-cluster bench-peers ## all benchmarks

bench-store: setup ## how fast the stores are on this machine
	$(BIN)/python benchmarks/store.py

bench-topics: setup $(PEERS) ## how fast topics are: beside the bare disk, plain sendfile and Redis Streams, about ten minutes (BENCH_FLAGS=--quick: one)
	$(BIN)/python benchmarks/topics_log.py $(BENCH_FLAGS)
	$(BIN)/python benchmarks/topics_feed.py $(BENCH_FLAGS)

bench-http: setup ## how fast the HTTP door is, about ten minutes (BENCH_FLAGS=--quick: one)
	$(BIN)/python benchmarks/http_door.py $(BENCH_FLAGS)

.PHONY: bench-queues
bench-queues: setup ## what 100,000 queues cost: publishing, health, lists, memory, about five minutes (BENCH_FLAGS=--quick: one)
	$(BIN)/python benchmarks/queues.py $(BENCH_FLAGS)

.PHONY: bench-cluster
bench-cluster: setup etcd ## how fast queues on etcd are, about eight minutes (BENCH_FLAGS=--quick: two)
	$(BIN)/python benchmarks/cluster.py $(BENCH_FLAGS)
	$(BIN)/python benchmarks/served.py $(BENCH_FLAGS)

bench-peers: setup $(PEERS) ## our server beside Redis and RabbitMQ, about half an hour (BENCH_FLAGS=--quick: two minutes)
	$(BIN)/python benchmarks/peers.py $(BENCH_FLAGS)

.PHONY: bench-turns
bench-turns: setup ## this tree beside an earlier revision, in turns (BENCH_FLAGS="--before REV --rounds 6")
	$(BIN)/python benchmarks/turns.py $(BENCH_FLAGS)

bench-gateway: setup $(ACTIVEMQ) ## our STOMP beside ActiveMQ's: rates, memory, delay (BENCH_FLAGS=--quick: a tenth)
	$(BIN)/python benchmarks/gateway.py $(BENCH_FLAGS)

bench-gateways: setup $(DEV) etcd ## the pair and the gateway on etcd: rate, delay, and what a failover costs
	$(BIN)/python -m benchmarks.gateway_failover $(BENCH_FLAGS)

stomp-same: setup $(ACTIVEMQ) ## one STOMP script against ActiveMQ and our server: the answers must be equal
	$(BIN)/python benchmarks/stomp_same.py

soak-store: setup ## eight producers and eight consumers on one store for a minute, for each store
	YIRANGMQ_SOAK_SECONDS=60 $(BIN)/pytest -m process tests/scenarios/test_crowd.py

spark-cluster-demo: setup ## a pipeline on a real Spark cluster (master, two workers), and kill -9 of an executor
	$(BIN)/python tools/spark_cluster_demo.py

bench-spark: setup ## reading and writing by Spark beside Spark's own sources (BENCH_FLAGS=--quick: a fiftieth)
	$(BIN)/python benchmarks/spark.py $(BENCH_FLAGS)

soak-spark: setup ## kill the driver of a stream twenty times, and the server ten times, under a live producer; long runs
	YIRANGMQ_SPARK_KILLS=20 $(BIN)/pytest -s -m process tests/pipeline/test_driver_kill.py
	$(BIN)/pytest -m 'spark and slow' tests/pipeline/test_under_way.py tests/pipeline/test_projects.py

soak-daemon: setup ## kill the server a hundred times under load from eight producers and eight consumers
	YIRANGMQ_DAEMON_KILLS=100 YIRANGMQ_DAEMON_CLIENTS=8 $(BIN)/pytest -s -m process tests/scenarios/test_daemon_kill.py

soak-pair: setup ## every fault of a pair of nodes, at the true interval of 5 seconds (half an hour)
	YIRANGMQ_PAIR_INTERVAL=5 $(BIN)/pytest -m process tests/failover

.PHONY: soak-week
soak-week: setup ## a week of a gateway in compressed time: three million messages, a failover, a switch (SOAK_FLAGS="--messages 30000": less)
	$(BIN)/python -m benchmarks.soak.week $(SOAK_FLAGS)

soak-topics: setup ## a thousand runs of topics by seed, with kills, slow readers, filters and trimming (SOAK_FLAGS="--seed 7": one)
	$(BIN)/python -m benchmarks.soak.topics $(SOAK_FLAGS)

fuzz: setup ## two minutes of frames that are nearly right
	YIRANGMQ_FUZZ_SECONDS=120 $(BIN)/pytest tests/protocols/native/test_fuzz.py

torture: setup ## pull the plug on each store, at length (docs/power-cuts.md)
	$(BIN)/yirangmq torture --backend sqlite --steps 150
	$(BIN)/yirangmq torture --backend served --steps 100
	$(BIN)/yirangmq torture --backend fs --steps 150
	$(BIN)/yirangmq torture --backend log --steps 400

torture-faults: setup ## let every I/O call of each store fail in turn, alone and below a server (docs/guarantees.md)
	$(BIN)/yirangmq torture --faults --backend sqlite
	$(BIN)/yirangmq torture --faults --backend served
	$(BIN)/yirangmq torture --faults --backend fs
	$(BIN)/yirangmq torture --faults --backend log

.PHONY: wheel deb
wheel: setup ## the wheel and the sdist, in dist
	$(BIN)/python -m hatchling build

deb: setup ## the Debian package of the server, in dist (docs/guides/packages.md)
	tools/deb.sh dist

lock: ## pin anew what pyproject.toml asks for (LOCK_FLAGS=--upgrade takes newer versions)
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	$(PYTHON) -m venv "$$dir" && "$$dir/bin/pip" install --quiet uv && \
	"$$dir/bin/uv" pip compile pyproject.toml --extra fast --extra schema $(COMPILE) \
	    --output-file requirements.lock $(LOCK_FLAGS) && \
	"$$dir/bin/uv" pip compile --group build $(COMPILE) \
	    --constraint requirements.lock --output-file requirements-build.lock $(LOCK_FLAGS) && \
	"$$dir/bin/uv" pip compile pyproject.toml --all-extras --group test --group lint --group docs --group build --group package \
	    $(COMPILE) --constraint requirements.lock --constraint requirements-build.lock \
	    --output-file requirements-dev.lock $(LOCK_FLAGS)

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) .venv-bench .bench-peers .bench-activemq build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

COMPILE = --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
    --custom-compile-command "make lock"
PIP = tools/again.sh $(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 5 --timeout 60

# A stamp is older than its lock or pyproject.toml exactly when there is something to install.
$(READY): requirements.lock requirements-build.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Python 3.11 or later is needed, as $(PYTHON). If it has another name: make setup PYTHON=python3.12" >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(INSTALL_VENV) || { \
	    echo "$(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
	    exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) --require-hashes -r requirements.lock -r requirements-build.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# Most of it is never run: what is, is compiled then.
$(DEV): $(READY) requirements-dev.lock
	$(PIP) --no-compile --require-hashes -r requirements-dev.lock
	@touch $@

# A bare Debian has Python without venv; root may as well add it.
INSTALL_VENV = { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
    echo "adding the package python3-venv" && tools/apt.sh update && tools/apt.sh install -y python3-venv && \
    $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; }

# The peers' clients and the peers themselves, apart from everything else; nothing is installed and no service set up.
$(PEERS): benchmarks/requirements.txt benchmarks/peers_fetch.py
	$(PYTHON) -m venv --clear .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements.txt
	.venv-bench/bin/python benchmarks/peers_fetch.py
	@touch $@

$(ACTIVEMQ): benchmarks/activemq.py
	$(BIN)/python benchmarks/activemq.py
	@touch $@
