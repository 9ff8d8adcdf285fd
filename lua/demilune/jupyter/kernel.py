"""The Python side of demilune's Jupyter kernel.

Jupyter's messages come through ipykernel's base class; everything that knows Lua is in the Lua
process that this file starts, whose lines of JSON lua/demilune/jupyter/kernel.lua describes. When
the Lua process ends, the cell says so, and the next one starts another.
"""

import codecs
import json
import os
import select
import signal
import subprocess
import threading
import time
import uuid

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

# kernel.json has the interpreter and the paths of Lua's modules.
SETTINGS = "DEMILUNE_KERNEL"

READ = 65536  # bytes at once
TEXT_S = 0.05  # text of a cell is sent in pieces that are this far apart
ALIVE_S = 0.5  # so often a silent process is asked whether it lives
END_S = 2.0  # a process that should end has this long
SEPARATOR = b"\x1e"


class Ended(Exception):
    """The Lua process has ended; args[0] says how."""


def is_utf8(environment):
    """Whether programs write UTF-8 in this environment."""
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        if environment.get(name):
            return "UTF" in environment[name].upper()
    return False


def environment_of(settings):
    """The environment of the Lua process: paths of modules in front of the user's, and UTF-8."""
    environment = dict(os.environ)
    for name in ("PATH", "CPATH"):
        own = environment.get("LUA_%s_5_4" % name) or environment.get("LUA_" + name) or ";"
        environment["LUA_%s_5_4" % name] = settings[name.lower()] + ";" + own
    if not is_utf8(environment):
        environment["LC_ALL"] = "C.UTF-8"
    return environment


class Lua:
    """A Lua process: requests go to a pipe of its own, standard output has text and messages."""

    def __init__(self, settings):
        reader, self.requests = os.pipe()
        token = uuid.uuid4().hex
        self.mark = SEPARATOR + token.encode()
        self.buffer = bytearray()
        self.decoders = {}
        code = "os.exit(require('demilune.cli').main{'kernel', '/dev/fd/%d', '\\030%s'}, true)"
        try:
            # A session of its own keeps the signals that Jupyter sends to its group away.
            self.process = subprocess.Popen(
                [settings["lua"], "-e", code % (reader, token)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                pass_fds=(reader,), env=environment_of(settings), start_new_session=True)
        finally:
            os.close(reader)
        self.streams = {self.process.stdout.fileno(): "stdout",
                        self.process.stderr.fileno(): "stderr"}
        for name in ("stdout", "stderr"):
            self.decoders[name] = codecs.getincrementaldecoder("utf-8")("replace")

    def send(self, request):
        """Sends a request; characters that Lua's JSON lacks become U+FFFD."""
        request = {name: value.replace("\0", "\ufffd") if isinstance(value, str) else value
                   for name, value in request.items()}
        data = json.dumps(request, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        try:
            while data:
                data = data[os.write(self.requests, data):]
        except OSError:
            raise Ended(self.how_it_ended()) from None

    def interrupt(self):
        """Interrupts the cell, and the programs that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)

    def how_it_ended(self):
        """The end of the process in words; waits for it."""
        try:
            status = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its output"
        if status < 0:
            return "was ended by the signal %s" % signal.Signals(-status).name
        return "ended with status %d" % status

    def kill(self):
        """Ends the process and the programs that it has started at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    def close(self):
        """Lets the process end by itself, as it does when no more requests can come."""
        try:
            os.close(self.requests)
            self.process.wait(END_S)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()

    def read(self, seconds):
        """The messages of so many seconds: a list of ("stdout", text), ("stderr", text) and
        ("message", dict). Raises Ended where the process has."""
        parts, ended = [], False
        ready = select.select(list(self.streams), [], [], seconds)[0]
        if not ready and self.process.poll() is not None:
            ended = True
        for file in ready:
            data = os.read(file, READ)
            if data and self.streams[file] == "stdout":
                self.buffer += data
                parts += self.parts_of_buffer()
            elif data:
                # It was written before what standard output may have behind it, a reply.
                parts.insert(0, ("stderr", self.decoders["stderr"].decode(data)))
            elif self.streams[file] == "stdout":
                ended = True
            else:
                del self.streams[file]
        if ended and not parts:
            raise Ended(self.how_it_ended())
        return parts

    def parts_of_buffer(self):
        """The parts of the buffer that are whole, in order; the rest stays."""
        parts = []
        while self.buffer:
            at = self.buffer.find(self.mark)
            if at != 0:
                text = self.buffer[:at] if at > 0 else self.without_start_of_mark()
                del self.buffer[:len(text)]
                if text:
                    parts.append(("stdout", self.decoders["stdout"].decode(bytes(text))))
                if at < 0:
                    break
                continue
            end = self.buffer.find(b"\n")
            if end < 0:
                break
            line = bytes(self.buffer[len(self.mark):end])
            del self.buffer[:end + 1]
            parts.append(("message", json.loads(line.decode("utf-8", "replace"))))
        return parts

    def without_start_of_mark(self):
        """The buffer up to what may be the start of a mark."""
        at = self.buffer.rfind(SEPARATOR)
        return self.buffer[:at] if at >= 0 and self.mark.startswith(self.buffer[at:]) \
            else self.buffer[:]


class DemiluneKernel(Kernel):
    """The kernel, as Jupyter sees it."""

    settings = json.loads(os.environ.get(SETTINGS, "{}"))
    implementation = "demilune"
    implementation_version = settings.get("version", "")
    banner = "demilune %s: tensors, gradients and mixed precision for Lua" % implementation_version
    language_info = {"name": "lua", "version": "5.4", "mimetype": "text/x-lua",
                     "file_extension": ".lua", "pygments_lexer": "lua", "codemirror_mode": "lua"}
    help_links = []

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.lua = None
        self.count = 0  # of requests
        self.running = False  # whether a signal would interrupt a cell
        self.interrupted = False
        self.text = {}  # by stream, not sent yet
        self.sent = 0.0  # when text was sent

    # ---- outputs ----

    def publish(self, kind, **content):
        """Sends a message to all who look at the notebook."""
        self.send_response(self.iopub_socket, kind, content)

    def send_text(self):
        """Sends the text that is there."""
        if not self.text:
            return
        for name, parts in self.text.items():
            self.publish("stream", name=name, text="".join(parts))
        self.text, self.sent = {}, time.monotonic()

    def add_text(self, name, text):
        """Keeps text for the next piece, which begins anew where the stream changes."""
        if name not in self.text:
            self.send_text_now_and_then(bool(self.text))
        self.text.setdefault(name, []).append(text)
        self.send_text_now_and_then()

    def send_text_now_and_then(self, now=False):
        """Sends the text, where it is time for it."""
        if self.text and (now or time.monotonic() - self.sent > TEXT_S):
            self.send_text()

    def show(self, message):
        """Sends an output, behind the text in front of it."""
        self.send_text()
        transient = {"display_id": message["id"]} if message.get("id") else {}
        self.publish("update_display_data" if message.get("update") else "display_data",
                     data=message["data"], metadata=message.get("metadata") or {},
                     transient=transient)

    # ---- requests to Lua ----

    def take(self, message):
        """Does what a message says that is no reply."""
        if message["type"] == "running":
            self.running = True
            if self.interrupted and self.lua:
                self.lua.interrupt()
        elif message["type"] == "display":
            self.show(message)
        elif message["type"] == "clear":
            self.send_text()
            self.publish("clear_output", wait=message["wait"])

    def reply_to(self, number):
        """Waits for the reply to a request; meanwhile its outputs are sent."""
        lua, reply = self.lua, None
        while reply is None:
            pause = TEXT_S if self.text else ALIVE_S
            for kind, content in lua.read(pause):
                if kind != "message":
                    self.add_text(kind, content)
                elif content["type"] != "reply":
                    self.take(content)
                elif content.get("id") in (number, None):
                    reply = content
            self.send_text_now_and_then()
        return reply

    def rest_of_text(self):
        """Takes what standard error still holds behind a reply."""
        try:
            for kind, content in self.lua.read(0) if self.lua else ():
                if kind != "message":
                    self.add_text(kind, content)
        except Ended:
            pass  # the next request tells
        self.send_text()

    def ask(self, kind, **request):
        """The reply to a request. Raises Ended, and OSError where Lua cannot be started."""
        if not self.lua:
            self.lua = Lua(self.settings)
        self.count += 1
        try:
            self.lua.send(dict(request, type=kind, id=self.count))
            reply = self.reply_to(self.count)
        except Ended:
            self.send_text()
            self.lua = None
            raise
        self.rest_of_text()
        return reply

    def ask_quietly(self, kind, **request):
        """The reply to a request of the editor; nothing where Lua does not answer."""
        try:
            return self.ask(kind, **request)
        except (Ended, OSError, KeyError):
            return {}

    # ---- Jupyter's requests ----

    def handle_signal(self, *_):
        """SIGINT while a cell runs: it waits until the cell can be interrupted."""
        self.interrupted = True
        if self.running and self.lua:
            self.lua.interrupt()

    def run_cell(self, code, silent):
        """The reply to a cell, with the signal of Jupyter's interrupt passed on."""
        self.running = self.interrupted = False
        in_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, self.handle_signal) if in_main else None
        try:
            return self.ask("execute", code=code, count=self.execution_count, silent=silent)
        except Ended as end:
            text = "the Lua process %s; the next cell starts a new one, without the variables " \
                "of this one" % end.args[0]
        except (OSError, KeyError) as why:
            text = "Lua cannot be started: %s; hint: demilune jupyter install" % why
        finally:
            self.running = False
            if in_main:
                signal.signal(signal.SIGINT, before)
        return {"status": "error", "ename": "ended", "evalue": text,
                "traceback": ["\x1b[31merror\x1b[0m: " + text]}

    def do_execute(self, code, silent, store_history=True, user_expressions=None,
                   allow_stdin=False, **_):
        """Runs a cell."""
        if not code.strip():
            return {"status": "ok", "execution_count": self.execution_count, "payload": [],
                    "user_expressions": {}}
        reply = self.run_cell(code, bool(silent))
        if reply["status"] == "ok":
            if reply.get("data") and not silent:
                self.publish("execute_result", execution_count=self.execution_count,
                             data=reply["data"], metadata=reply.get("metadata") or {})
            return {"status": "ok", "execution_count": self.execution_count, "payload": [],
                    "user_expressions": {}}
        error = {name: reply.get(name) or "" for name in ("ename", "evalue")}
        error["traceback"] = reply.get("traceback") or []
        if not silent:
            self.publish("error", **error)
        return dict(error, status="error", execution_count=self.execution_count)

    def do_complete(self, code, cursor_pos):
        """The names that fit in front of the cursor."""
        reply = self.ask_quietly("complete", text=code[:cursor_pos])
        return {"status": "ok", "matches": list(reply.get("matches") or []),
                "cursor_start": cursor_pos - len(reply.get("word") or ""),
                "cursor_end": cursor_pos, "metadata": {}}

    def do_inspect(self, code, cursor_pos, detail_level=0, omit_sections=()):
        """The meaning of the name at the cursor."""
        reply = self.ask_quietly("inspect", code=code, cursor=len(code[:cursor_pos].encode()))
        text = reply.get("text")
        return {"status": "ok", "found": bool(text), "metadata": {},
                "data": {"text/plain": text} if text else {}}

    def do_is_complete(self, code):
        """Whether a cell can run, for consoles."""
        state = self.ask_quietly("is_complete", code=code).get("state", "unknown")
        return {"status": state, "indent": "  "} if state == "incomplete" else {"status": state}

    def do_shutdown(self, restart):
        """Ends the Lua process. Jupyter may ask amid a cell, in another thread."""
        lua, self.lua = self.lua, None
        if lua:
            if self.running:
                lua.kill()
            else:
                lua.close()
        return {"status": "ok", "restart": restart}


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=DemiluneKernel)
