"""Command ``publish``: one JSON document, JSON lines in batches, or any bytes.

A file of lines is checked to its last line before anything is stored; lines of stdin are stored as they arrive
(``cli.lines``). A batch is one commit."""

import argparse
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from yirangmq.broker.queues import Queues
from yirangmq.cli import arguments, connection, output
from yirangmq.cli.arguments import attribute
from yirangmq.cli.command import Command
from yirangmq.cli.lines import InputLine, line_batches
from yirangmq.cli.output import Screen
from yirangmq.cli.progress import ProgressBar
from yirangmq.core.errors import BadInput, TooLarge
from yirangmq.core.policy import MAX_BODY
from yirangmq.core.ports import AddResult
from yirangmq.format.envelope import ENVELOPE, MAX_HEADER, PAYLOAD, NewMessage, is_envelope, read
from yirangmq.format.json_codec import dumps, loads, members
from yirangmq.fsio.input_file import open_input, read_input

FORCED = object()
"""Value of ``--payload`` and ``--envelope`` without JSON text."""
MAX_LINE_BYTES = MAX_BODY * 4 // 3 + MAX_HEADER + 1024
"""Maximum length of a document or a line, in bytes: the largest payload as Base64 with its envelope."""


def add_options(parser: argparse.ArgumentParser) -> None:
    arguments.queue(parser, what="the queue; it is created if it does not exist")
    parser.add_argument("payload", nargs="?", metavar="JSON", help="the payload or the whole envelope, as JSON text")
    parser.add_argument(
        "--payload", dest="as_payload", nargs="?", const=FORCED, metavar="JSON",
        help="each document is a payload, whatever its members; with JSON text: this document",
    )  # fmt: skip
    parser.add_argument(
        "--envelope", dest="as_envelope", nargs="?", const=FORCED, metavar="JSON",
        help="each document is an envelope, also without messageId; with JSON text: this document",
    )  # fmt: skip
    parser.add_argument("--file", metavar="FILE", help="read it from a file, or from stdin with -")
    parser.add_argument("--lines", action="store_true", help="the file has one JSON document per line")
    parser.add_argument(
        "--raw", action="store_true", help="the input is any bytes, stored unchanged; it is not an envelope"
    )
    message = parser.add_argument_group("message")
    message.add_argument("--id", metavar="ID", help="message id (default: a new one)")
    message.add_argument("--type", metavar="NAME", help="message type; a policy may have a schema for it")
    message.add_argument("--type-version", type=int, metavar="N", help="version of that type")
    message.add_argument(
        "--priority", type=int, metavar="N", help="0 is first, larger numbers are later, no priority is last"
    )
    message.add_argument("--delay", type=float, default=0, metavar="SECONDS", help="time until the message is ready")
    message.add_argument("--ttl", type=float, metavar="SECONDS", help="time after which the message expires")
    message.add_argument(
        "--dedup-key", metavar="KEY", help="a message with the same key within the window is not stored"
    )
    message.add_argument("--group", metavar="NAME", help="messages of one group are delivered one at a time, in order")
    message.add_argument("--target", metavar="CONSUMER", help="only this consumer may lease the message")
    message.add_argument("--trace-id", metavar="ID", help="trace id, delivered with the message")
    message.add_argument(
        "--attribute",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="attribute, as JSON or text; may be repeated",
    )
    message.add_argument("--content-type", metavar="TYPE", help="with --raw: media type of the bytes")
    arguments.store(parser)


def run(args: argparse.Namespace, screen: Screen) -> int:
    _check(args)
    with connection.open_or_create(args) as queues:
        if args.lines:
            return _publish_lines(args, queues, screen)
        return _publish_one(args, queues, screen)


def _check(args: argparse.Namespace) -> None:
    texts = [args.payload, *(text for text in (args.as_payload, args.as_envelope) if text is not FORCED)]
    given = [source for source in (*texts, args.file) if source is not None]
    if args.as_payload is not None and args.as_envelope is not None:
        raise BadInput("says the opposite of --payload; give one of them", field="--envelope")
    if len(given) != 1:
        raise BadInput("give one of: JSON text, --payload JSON, --file FILE (or --file -)", field="payload")
    if args.raw and args.as_envelope is not None:
        raise BadInput("reads JSON, --raw any bytes; give one of them", field="--envelope")
    if args.lines and args.file is None:
        raise BadInput("needs --file FILE (or --file -)", field="--lines")
    if args.lines and (args.id is not None or args.dedup_key is not None):
        field = "--id" if args.id is not None else "--dedup-key"
        raise BadInput("names one message, and --lines brings many; put it into each line", field=field)
    if args.content_type is not None and not args.raw:
        raise BadInput("goes with --raw; everything else is JSON", field="--content-type")


# -- one message -------------------------------------------------------------------------------------------------------


def _publish_one(args: argparse.Namespace, queues: Queues, screen: Screen) -> int:
    text = read_input(args.file, MAX_LINE_BYTES) if args.file is not None else _given_text(args).encode()
    try:
        receipt = _publish(args, queues, [text])[0]
    except BadInput as error:
        if error.field != "document":
            raise
        problem = str(error).removeprefix("document: ")
        hint = "" if args.as_envelope is not None else "; what is not JSON goes with --raw"
        raise BadInput(f"{problem}{hint}", field="payload") from None
    value = {
        "queue": args.queue,
        "messageId": receipt.id,
        "duplicate": receipt.duplicate,
        "refused": receipt.refused or None,
    }
    screen.answer(value, _receipt_text(args.queue, receipt))
    return output.REFUSED if receipt.refused else output.OK


def _given_text(args: argparse.Namespace) -> str:
    """Return the JSON text on the command line; ``_check`` has made sure that there is one."""
    texts = (args.payload, args.as_payload, args.as_envelope)
    return next(text for text in texts if isinstance(text, str))


def _read_as(args: argparse.Namespace) -> str | None:
    """Return what the options say that each document is; None: the rule of ``is_envelope`` decides."""
    if args.as_envelope is not None:
        return ENVELOPE
    return None if args.as_payload is None else PAYLOAD


def _receipt_text(queue: str, receipt: AddResult) -> str:
    if receipt.refused:
        return f"refused: {receipt.refused} ({receipt.id} lies among the dead letters of {queue})"
    if receipt.duplicate:
        return f"known already: {receipt.id} in {queue}; nothing was stored"
    return f"published {receipt.id} to {queue}"


def _publish(args: argparse.Namespace, queues: Queues, texts: list[bytes]) -> list[AddResult]:
    if args.raw:
        return queues.publish_many(args.queue, [_raw(args, text) for text in texts])
    extra, read_as = _extra(args), _read_as(args)
    if any(extra):
        texts, read_as = [merge_options(text, *extra, read_as) for text in texts], ENVELOPE
    return queues.publish_text(args.queue, texts, delay=args.delay, ttl=args.ttl, read_as=read_as)


def _raw(args: argparse.Namespace, payload: bytes) -> NewMessage:
    return NewMessage(
        payload=payload,
        id=args.id,
        type=args.type,
        version=args.type_version,
        attributes=dict(attribute(text) for text in args.attribute),
        trace_id=args.trace_id,
        deduplication_key=args.dedup_key,
        priority=args.priority,
        delay=args.delay,
        ttl=args.ttl,
        content_type=args.content_type,
        group=args.group,
        target=args.target,
    )


def _extra(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the envelope members and the attributes that are given as options."""
    given = {
        "messageId": args.id,
        "type": args.type,
        "version": args.type_version,
        "traceId": args.trace_id,
        "deduplicationKey": args.dedup_key,
        "groupId": args.group,
        "targetConsumerId": args.target,
    }
    attributes = dict(attribute(text) for text in args.attribute)
    if args.priority is not None:
        attributes["priority"] = args.priority
    return {name: value for name, value in given.items() if value is not None}, attributes


def merge_options(text: bytes, extra: dict[str, Any], attributes: dict[str, Any], read_as: str | None) -> bytes:
    """Merge options into the envelope of a document. A bare payload gets an envelope; its text is not changed."""
    parts = members(text)
    if not is_envelope(parts, read_as) or parts is None:
        parts = {"payload": text.strip()}
    if attributes:
        there = loads(parts.get("attributes", b"{}"))
        if not isinstance(there, dict):
            raise BadInput("must be an object", field="attributes")
        extra = {**extra, "attributes": {**there, **attributes}}
    parts.update({name: dumps(value) for name, value in extra.items()})
    return b"{%s}" % b",".join(b"%s:%s" % (dumps(name), raw) for name, raw in parts.items())


# -- lines -------------------------------------------------------------------------------------------------------------


def _publish_lines(args: argparse.Namespace, queues: Queues, screen: Screen) -> int:
    """Publish lines in batches. A file is checked to its last line first; a stream is stored as it arrives."""
    total = {"published": 0, "duplicates": 0, "refused": 0}
    with open_input(args.file) as stream:
        size = None
        if args.file != "-" and Path(args.file).is_file():
            size = Path(args.file).stat().st_size
            _check_lines(args, queues, stream)
            stream.seek(0)
        with ProgressBar("publishing", size, shown=screen.shows_progress, unit="lines") as show:
            read = 0
            for batch in line_batches(stream, MAX_LINE_BYTES):
                for stored in _publish_batch(args, queues, batch, total["published"]):
                    total["duplicates" if stored.duplicate else "refused" if stored.refused else "published"] += 1
                read += sum(len(line.text) + 1 for line in batch)
                show(read if size else batch[-1].number, batch[-1].number)
    text = f"published {total['published']:,} to {args.queue}"
    if total["duplicates"]:
        text += f", {total['duplicates']:,} known already"
    if total["refused"]:
        text += f", {total['refused']:,} refused by their schema (see 'yirangmq dlq list --queue {args.queue}')"
    screen.answer({"queue": args.queue, **total}, text)
    return output.REFUSED if total["refused"] else output.OK


def _check_lines(args: argparse.Namespace, queues: Queues, stream: BinaryIO) -> None:
    max_bytes: int = queues.policy(args.queue)["maxBytes"]
    for line in chain.from_iterable(line_batches(stream, MAX_LINE_BYTES)):
        try:
            _check_line(args, line.text, max_bytes)
        except BadInput as error:
            raise type(error)(f"line {line.number}: {error}; nothing was stored", field="file") from None


def _check_line(args: argparse.Namespace, text: bytes, max_bytes: int) -> None:
    size = len(text)
    if not args.raw:
        extra, read_as = _extra(args), _read_as(args)
        if any(extra):
            text, read_as = merge_options(text, *extra, read_as), ENVELOPE
        size = len(read(args.queue, text, "checked", 0, delay=args.delay, ttl=args.ttl, read_as=read_as).payload)
    if size > max_bytes:
        raise TooLarge(f"{size} bytes, this queue takes {max_bytes}", field="payload")


def _publish_batch(args: argparse.Namespace, queues: Queues, batch: list[InputLine], before: int) -> list[AddResult]:
    """Publish a batch in one commit. If it is refused, check each line to report the one at fault."""
    try:
        return _publish(args, queues, [line.text for line in batch])
    except BadInput as error:
        max_bytes: int = queues.policy(args.queue)["maxBytes"]
        for line in batch:
            try:
                _check_line(args, line.text, max_bytes)
            except BadInput as found:
                raise type(found)(f"line {line.number}: {found}; {before} before it are stored", field="file") from None
        raise type(error)(f"{error}; {before} are stored", field="file") from None


COMMANDS = {
    "publish": Command(
        about="Publish messages to a queue. The command returns when they are on disk.\n\n"
        "With --lines a file is checked to its last line before any message is stored. Lines from a pipe "
        "are stored as they arrive: a line waits at most 50 ms for others that share its commit. Exit code "
        "0 means that all are stored.\n\n"
        "Each call starts Python, which takes 0.1 to 0.3 s of processor time. For many messages use "
        "--lines, or HTTP from a shell script or C (docs/http.md).\n\n"
        "A JSON object with messageId and payload is an envelope. Any other JSON document is the payload, "
        "also one with members such as type and payload. --envelope and --payload override this rule.",
        examples=(
            ("one document from a file", "yirangmq publish --queue telemetry --file message.json"),
            ("JSON text, before all other messages", 'yirangmq publish --queue mail \'{"to": "ann"}\' --priority 0'),
            ("a file of JSON lines, in batches", "yirangmq publish --queue telemetry --file readings.jsonl --lines"),
            ("each line of a pipe, as it arrives", "yirangmq publish --queue telemetry --lines --file -"),
            (
                "in order with the other messages of its group",
                "yirangmq publish --queue orders --file one.json --group ann-7",
            ),
            ("an envelope, with a new id", "yirangmq publish --queue mail --envelope --file one.json"),
            ("any bytes, in ten minutes", "yirangmq publish --queue images --raw --file photo.jpg --delay 600"),
        ),
        options=add_options,
        run=run,
    )
}
