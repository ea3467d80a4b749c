"""A headless Chromium, spoken to over two pipes: its DevTools protocol, JSON between null bytes."""

import json
import os
import select
import subprocess
import time

PATIENCE = 60


class BrowserError(Exception):
    """The browser does not do as it is asked."""


class Browser:
    """One page of a browser, for as long as a `with` lasts."""

    def __init__(self, program, profile):
        self.program, self.profile = program, profile

    def __enter__(self):
        commands, ours = os.pipe()
        theirs, answers = os.pipe()

        def ends():
            # The browser reads 3 and writes 4. Both may be taken by the pipes themselves, so they move out of the way first.
            high = [os.dup(commands), os.dup(answers)]
            while min(high) < 5:
                high = [os.dup(fd) for fd in high]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        command = [
            self.program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={self.profile}",
            "about:blank",
        ]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, preexec_fn=ends, close_fds=False, stdin=quiet, stdout=quiet, stderr=quiet
        )
        os.close(commands)
        os.close(answers)
        self.write, self.read = ours, theirs
        self.held, self.number, self.events, self.session = b"", 0, [], None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.write)
        os.close(self.read)

    def open(self, url, width, script):
        """Shows a page so many pixels wide, and returns what a script finds there."""
        self.events.clear()
        self.size(width, 900)
        failed = self.call("Page.navigate", url=url).get("errorText")
        if failed:
            raise BrowserError(f"{url} does not open: {failed}")
        self.until(lambda: any(event["method"] == "Page.loadEventFired" for event in self.events))
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"the script that looks at the page fails: {answer['exceptionDetails']}")
        return answer["result"]["value"]

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, width, height):
        """The whole page as a PNG in base64."""
        self.size(width, height)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        return self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]

    def complaints(self):
        """What was written to the console, went wrong there, or was asked of elsewhere."""
        said = []
        for event in self.events:
            about = event["params"]
            match event["method"]:
                case "Runtime.consoleAPICalled":
                    said.append(f"console: {[argument.get('value') for argument in about['args']]}")
                case "Runtime.exceptionThrown":
                    said.append(about["exceptionDetails"]["text"])
                case "Log.entryAdded":
                    said.append(about["entry"]["text"])
                case "Network.requestWillBeSent" if not about["request"]["url"].startswith(("file:", "data:", "about:")):
                    said.append(f"the page asks for {about['request']['url']}")
        return said

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        answer = []

        def answered():
            answer.extend(event for event in self.events if event.get("id") == message["id"])
            return bool(answer)

        self.until(answered)
        self.events = [event for event in self.events if "method" in event]
        if "error" in answer[0]:
            raise BrowserError(f"{method}: {answer[0]['error']['message']}")
        return answer[0]["result"]

    def until(self, done):
        """Reads what the browser says until something holds."""
        end = time.monotonic() + PATIENCE
        while not done():
            if not select.select([self.read], [], [], max(end - time.monotonic(), 0))[0]:
                raise BrowserError(f"{self.program} has not answered for {PATIENCE} s")
            piece = os.read(self.read, 1 << 20)
            if not piece:
                raise BrowserError(f"{self.program} has ended: start it by hand with --headless --no-sandbox to see why")
            *whole, self.held = (self.held + piece).split(b"\0")
            self.events += map(json.loads, whole)
