"""A real browser for tests of pages: headless Chromium, driven over its debugging pipe (Chrome DevTools Protocol).

Needs ``chromium`` on the PATH.
"""

import itertools
import json
import os
import select
import shutil
import subprocess
import time


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, profile):
        binary = shutil.which("chromium") or shutil.which("chromium-browser")
        assert binary, "install chromium"
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()

        def connect():  # the debugging pipe is descriptors 3 and 4 of the browser
            reading, writing = os.dup(commands), os.dup(answers)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self._process = subprocess.Popen(
            [binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio",
             "--autoplay-policy=no-user-gesture-required", "--remote-debugging-pipe", "--window-size=1200,900",
             f"--user-data-dir={profile}", "about:blank"],
            close_fds=False, preexec_fn=connect, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session = None
        self.complaints = []
        page = next(t for t in self._call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Runtime", "Page", "Log"):
            self._call(f"{domain}.enable")

    def _message(self, timeout=60):
        deadline = time.monotonic() + timeout
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], max(0, deadline - time.monotonic()))[0], "the browser is silent"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser is gone"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(message)
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown" or (
            method == "Log.entryAdded" and parameters["entry"]["level"] == "error"
        ):
            self.complaints.append(parameters)
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
            self.complaints.append(parameters)
        return message

    def _call(self, method, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path):
        self._call("Page.navigate", url=path.absolute().as_uri())
        self.wait_for("document.readyState === 'complete' && location.protocol === 'file:'")

    def evaluate(self, expression):
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression, timeout=30):
        deadline = time.monotonic() + timeout
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"never came true: {expression}"
            time.sleep(0.1)

    def resize(self, width, height=900):
        """Shows the page as a screen of this size does, CSS pixels."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=True)

    def prefer(self, scheme):
        """Asks for the light or the dark colours."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def set(self, name, value):
        self.evaluate(
            f"(() => {{ const field = document.forms.controls.elements[{json.dumps(name)}];"
            f" field[field.type === 'checkbox' ? 'checked' : 'value'] = {json.dumps(value)};"
            " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    def shown(self):
        """Returns [env, episode] of the visible rows, in their order."""
        return self.evaluate(
            "Array.from(document.querySelectorAll('.episode')).filter((row) => !row.hidden)"
            ".map((row) => [+row.dataset.env, +row.dataset.episode])"
        )

    def close(self):
        os.close(self._write)
        self._process.terminate()
        self._process.wait(20)
        os.close(self._read)
