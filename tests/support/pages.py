"""Pages of the documentation."""

import re


def code_blocks(page: str, language: str) -> list[str]:
    """The text of each fenced block of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
