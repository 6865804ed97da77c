"""Command group ``pipeline``: batch jobs, streams and projects on Spark."""

from yirangmq.cli.command import Command
from yirangmq.cli.commands.pipeline import batch_jobs, load, projects, streams

COMMANDS = {
    "pipeline": Command(
        about="Process messages and records in bulk with Spark: declarative pipelines, continuous streams, and "
        "ready-made jobs. Needs the extra: pip install 'yirangmq[spark]'.",
        examples=(
            ("a project, checked and run", "yirangmq pipeline init shop"),
            (
                "a stream from a topic to a queue",
                "yirangmq pipeline process --from topic:orders --to queue:work --start earliest",
            ),
            ("a page with charts", "yirangmq pipeline report --html report.html"),
        ),
        subcommands={
            **projects.SUBCOMMANDS,
            **streams.SUBCOMMANDS,
            **batch_jobs.SUBCOMMANDS,
            **batch_jobs.INSIGHT_SUBCOMMANDS,
            **load.SUBCOMMANDS,
        },
    )
}
