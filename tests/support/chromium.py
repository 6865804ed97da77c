"""A real browser, driven through chromedriver by W3C WebDriver: JSON over HTTP, so a page of code is client enough.

Knows: sessions, elements, keys, the browser's log. Does not know: our pages."""

import base64
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.wait import PATIENCE

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP evil.test 127.0.0.1",
)
"""The last one: a name of an attacker that leads to this machine, as by DNS rebinding."""
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The name of a reference to an element, as the standard has it."""
KEYS = {
    "Tab": "\ue004",
    "Enter": "\ue007",
    "Shift": "\ue008",
    "Control": "\ue009",
    "Escape": "\ue00c",
    "Space": " ",
    "End": "\ue010",
    "Home": "\ue011",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
    "Backspace": "\ue003",
}


class DriverError(Exception):
    """What chromedriver refused, by the standard's code for it."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


def find_program(*names: str) -> str:
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return found
    raise AssertionError(f"{names[0]} is not installed; `make browser` installs it where Debian's packages are")


class Driver:
    """chromedriver as a process, and one kept connection to it."""

    def __init__(self) -> None:
        program = find_program("chromedriver")
        self._process = subprocess.Popen(
            [program, "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_quiet(),
            start_new_session=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found is not None:
                break
        else:
            raise AssertionError(f"chromedriver did not start: {self._process.wait()}")
        self._line = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        text = None if body is None else json.dumps(body).encode()
        self._line.request(method, path, text, {"content-type": "application/json"})
        value = json.loads(self._line.getresponse().read())["value"]
        if isinstance(value, dict) and "error" in value and "stacktrace" in value:
            raise DriverError(value["error"], value["message"].partition("\n")[0])
        return value

    def close(self) -> None:
        """With the browser it started, whatever state that is in."""
        self._line.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _quiet() -> dict[str, str]:
    """Without a proxy between the driver and its browser."""
    return {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}


class Element:
    def __init__(self, browser: "Browser", id: str) -> None:
        self._browser = browser
        self.id = id

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return self._browser.ask(method, f"/element/{self.id}/{path}", body)

    def click(self) -> None:
        self._ask("POST", "click", {})

    def type(self, text: str) -> None:
        """Key by key, instead of what is there."""
        self._browser.script("arguments[0].focus(); arguments[0].select()", self)
        self._browser.press(*(text or ["Backspace"]))

    def upload(self, path: Path) -> None:
        self._ask("POST", "value", {"text": str(path)})

    @property
    def text(self) -> str:
        return str(self._ask("GET", "text"))

    def get(self, name: str) -> Any:
        """A property: ``value``, ``checked`` …"""
        return self._ask("GET", f"property/{name}")

    def attribute(self, name: str) -> str | None:
        value = self._browser.script("return arguments[0].getAttribute(arguments[1])", self, name)
        return None if value is None else str(value)


class Browser:
    """One window. ``with Browser() as browser: browser.open(url)``."""

    def __init__(self, width: int = 1280, height: int = 900, *, scale: float = 1) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="yirangmq-browser-", ignore_cleanup_errors=True)
        self.downloads = Path(self._folder.name) / "downloads"
        self.downloads.mkdir()
        self._driver = Driver()
        flags = [*FLAGS, f"--user-data-dir={self._folder.name}/profile", f"--window-size={width},{height}"]
        options = {
            "binary": find_program("chromium", "chromium-browser"),
            "args": [*flags, f"--force-device-scale-factor={scale}"],
            "prefs": {
                "download.default_directory": str(self.downloads),
                "profile.default_content_setting_values.automatic_downloads": 1,  # more than one of a page
            },
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": int(PATIENCE * 1000) + 5000, "pageLoad": int(PATIENCE * 1000)},
        }
        try:
            made = self._driver.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self._driver.close()
            self._folder.cleanup()
            raise
        self._session = f"/session/{made['sessionId']}"

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._driver.close()
        self._folder.cleanup()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        return self._driver.ask(method, self._session + path, body)

    # -- pages ----------------------------------------------------------------------------------------------------

    def open(self, url: str) -> None:
        self.ask("POST", "/url", {"url": url})

    def reload(self) -> None:
        self.ask("POST", "/refresh", {})

    @property
    def url(self) -> str:
        return str(self.ask("GET", "/url"))

    def size(self, width: int, height: int) -> None:
        """Of the page, not of the window around it."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=0, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """``light`` or ``dark``, as the system would have it."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def devtools(self, command: str, **values: Any) -> Any:
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": values})

    def picture(self) -> bytes:
        return base64.b64decode(self.ask("GET", "/screenshot"))

    def log(self) -> list[str]:
        """What the browser complained of since the last call."""
        entries = self.ask("POST", "/se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in entries if entry["level"] != "DEBUG"]

    # -- what is on them ------------------------------------------------------------------------------------------

    def script(self, text: str, *values: Any) -> Any:
        given = [{ELEMENT: value.id} if isinstance(value, Element) else value for value in values]
        return self._back(self.ask("POST", "/execute/sync", {"script": text, "args": given}))

    def until(self, text: str, *values: Any) -> Any:
        """The value of a script, as soon as it is something. It is asked within the page, again and again."""
        whole = f"""
            const done = arguments[arguments.length - 1], values = [...arguments].slice(0, -1);
            const end = performance.now() + {PATIENCE * 1000};
            const look = () => {{
              const found = (function () {{ {text} }})(...values);
              if (found) done(found);
              else if (performance.now() > end) done(null);
              else setTimeout(look, 10);
            }};
            look();"""
        given = [{ELEMENT: value.id} if isinstance(value, Element) else value for value in values]
        found = self._back(self.ask("POST", "/execute/async", {"script": whole, "args": given}))
        if found is None:
            shown = self.script("return document.body.innerText")
            raise AssertionError(f"never came: {text} {values}\n--- the page:\n{shown[:3000]}\n--- log: {self.log()}")
        return found

    def wait(self, is_so: Callable[[], bool]) -> None:
        """For something outside of the page."""
        end = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < end, "it did not come to be"
            time.sleep(0.01)

    def _back(self, value: Any) -> Any:
        if isinstance(value, dict) and ELEMENT in value:
            return Element(self, value[ELEMENT])
        return [self._back(one) for one in value] if isinstance(value, list) else value

    def find(self, selector: str, text: str = "") -> Element:
        """The first that is shown and has this text in it, as soon as there is one."""
        found = self.until(
            """const [selector, text] = arguments;
            return [...document.querySelectorAll(selector)].find((node) =>
              node.checkVisibility() && (text === "" || node.textContent.includes(text)));""",
            selector,
            text,
        )
        assert isinstance(found, Element)
        return found

    def gone(self, selector: str, text: str = "") -> None:
        """Wait until nothing of the kind is shown."""
        self.until(
            """const [selector, text] = arguments;
            return ![...document.querySelectorAll(selector)].some((node) =>
              node.checkVisibility() && (text === "" || node.textContent.includes(text)));""",
            selector,
            text,
        )

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.script(
            "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)", selector
        )
        return found

    # -- keys -----------------------------------------------------------------------------------------------------

    def press(self, *names: str, holding: str = "") -> None:
        """Keys by name, or characters, one after the other, wherever the focus is."""
        steps: list[dict[str, str]] = []
        if holding:
            steps.append({"type": "keyDown", "value": KEYS[holding]})
        for name in names:
            value = KEYS.get(name, name)
            steps += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        if holding:
            steps.append({"type": "keyUp", "value": KEYS[holding]})
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def write(self, text: str) -> None:
        """Characters, wherever the focus is."""
        self.press(*text)

    def drag(self, element: Element, begin: float, end: float) -> None:
        """Press the mouse in an element and release it elsewhere in it; shares of its width from the left."""
        left, top, width, height = self.script(
            "const box = arguments[0].getBoundingClientRect(); return [box.left, box.top, box.width, box.height]",
            element,
        )
        y = round(top + height / 2)
        points = [round(left + width * (begin + (end - begin) * step / 4)) for step in range(5)]
        moves = [{"type": "pointerMove", "x": x, "y": y, "duration": 20} for x in points]
        steps = [moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp", "button": 0}]
        self.ask("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": steps}]})

    @property
    def focused(self) -> str:
        """What has the focus, in words."""
        return str(self.script("const node = document.activeElement; return node.textContent || node.ariaLabel || ''"))
