"""Formats are files in the repository, written once and reviewed by eye."""

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def golden(name: str) -> bytes:
    return (FOLDER / name).read_bytes()
