"""Commands ``spark doctor | warmup``: whether Spark works here, and a class archive that makes it start sooner."""

import argparse

from yirangmq.cli import output
from yirangmq.cli.command import Command
from yirangmq.cli.commands.pipeline import common
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.cli.table import TableColumn


def doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="check the packages only; start no session")
    common.access_options(parser, path=False)
    common.spark_options(parser)


def run_doctor(args: argparse.Namespace, screen: Screen) -> int:
    from yirangmq.pipeline import environment

    found = environment.run_checks(args.broker)
    if not args.quick and all(one.is_well for one in found if one.is_needed):
        with common.session_of(args, "doctor") as spark:
            found += environment.check_round_trip(spark)
    is_well = all(one.is_well for one in found if one.is_needed)
    if screen.json:
        screen.document({"ok": is_well, "checks": [one._asdict() for one in found]})
    else:
        rows = [["ok" if one.is_well else "NO" if one.is_needed else "-", one.what, one.found] for one in found]
        screen.table([TableColumn("", marks=True), TableColumn("what"), TableColumn("found", shrinks=True)], rows)
        screen.report("Spark is ready" if is_well else "Spark is not ready")
    return output.OK if is_well else output.UNHEALTHY


def warmup_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--remove", action="store_true", help="remove the archive")


def run_warmup(args: argparse.Namespace, screen: Screen) -> int:
    common.require_packages()
    from yirangmq.pipeline import environment

    if args.remove:
        gone = environment.remove()
        screen.answer({"removed": gone}, f"removed {gone} files" if gone else "there was nothing to remove")
        return output.OK
    with ProgressBar("loading the classes of Spark", shown=screen.shows_progress):
        made = environment.make_archive()
    screen.answer(
        {"file": str(made.path), "bytes": made.size},
        f"made {made.path} ({made.size >> 20} MB); every session of yirangmq's own starts with it from now on",
    )
    return output.OK


SUBCOMMANDS = {
    "doctor": (
        "check what Spark needs",
        Command(
            about="Check Java, the packages and the data source, then start a session and send ten rows through "
            "it. The exit code is 11 if something is missing.",
            examples=(
                ("all checks", "yirangmq spark doctor"),
                ("only the packages, and a server", "yirangmq spark doctor --quick --broker http://127.0.0.1:8080"),
            ),
            options=doctor_options,
            run=run_doctor,
        ),
    ),
    "warmup": (
        "create a class-data archive, so that Spark starts sooner",
        Command(
            about="Run Spark once and save its loaded classes as a file in the cache (about 160 MB), for this "
            "version of Java and of Spark. A session starts sooner with it.",
            examples=(("make it", "yirangmq spark warmup"), ("remove it", "yirangmq spark warmup --remove")),
            options=warmup_options,
            run=run_warmup,
        ),
    ),
}
COMMANDS = {
    "spark": Command(
        about="Check Spark on this machine, and make it start sooner.",
        examples=(("check", "yirangmq spark doctor"), ("a quicker start", "yirangmq spark warmup")),
        subcommands=SUBCOMMANDS,
    )
}
