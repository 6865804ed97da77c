"""From options to a way to the data."""

from yirangmq.pipeline.source.access import LogAccess
from yirangmq.pipeline.source.broker import BrokerLog, HttpBroker
from yirangmq.pipeline.source.errors import SourceError
from yirangmq.pipeline.source.options import Options
from yirangmq.pipeline.source.segments import SegmentFiles


def log_of(options: Options) -> LogAccess:
    """Files where there is a path, the broker else."""
    if "path" in options:
        return SegmentFiles(options.needed("path"))
    return BrokerLog(broker_of(options))


def broker_of(options: Options) -> HttpBroker:
    if "broker" not in options:
        more = "only topics can be read by path" if "path" in options else "for topics also path, the data folder"
        raise SourceError(f"say where the data is: the option broker, such as http://127.0.0.1:8080 ({more})")
    return HttpBroker(
        options.needed("broker"), options.text("token"), options.whole("timeoutSec"), options.text("caFile")
    )
