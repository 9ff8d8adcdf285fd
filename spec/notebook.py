"""Runs notebooks and single cells in Jupyter for jupyter_spec.lua.

python3 spec/notebook.py run IN.ipynb OUT.ipynb     every cell, errors kept
python3 spec/notebook.py cells IN.json OUT.json     steps, each with its messages

A step is {"code": text}, with "interrupt": seconds after its start where it is interrupted, or
"leave": seconds after which the next step begins; or {"restart": true}, {"complete": text},
{"inspect": text}. JUPYTER_PATH says where the kernel is.
"""

import json
import queue
import sys
import time

import nbformat
from jupyter_client.manager import start_new_kernel
from nbclient import NotebookClient

SECONDS = 90
KERNEL = "demilune"


def run(path, to):
    """Executes a notebook and writes it with its outputs."""
    notebook = nbformat.read(path, 4)
    NotebookClient(notebook, timeout=SECONDS, kernel_name=KERNEL, allow_errors=True).execute()
    nbformat.write(notebook, to)


def content_of(message):
    """The part of a message that the spec looks at, and when it came."""
    return {"type": message["msg_type"], "content": message["content"]}


def execute(manager, client, step):
    """The messages of a cell, with the seconds since its start."""
    began, messages = time.time(), []
    number = client.execute(step["code"])
    waits = step.get("interrupt")
    while time.time() - began < step.get("leave", SECONDS):
        if waits is not None and time.time() - began > waits:
            manager.interrupt_kernel()
            waits = None
        try:
            message = client.get_iopub_msg(timeout=0.1)
        except queue.Empty:
            continue
        if message["parent_header"].get("msg_id") != number:
            continue
        found = content_of(message)
        found["seconds"] = time.time() - began
        if found["content"].get("execution_state") == "idle":
            return messages
        if found["type"] not in ("status", "execute_input"):
            messages.append(found)
    return messages


def wait_for_outputs(client):
    """Waits until the kernel's outputs arrive: behind a start the first ones may be lost."""
    began = time.time()
    while time.time() - began < SECONDS:
        client.kernel_info()
        try:
            client.get_iopub_msg(timeout=1)
            return
        except queue.Empty:
            continue


def take(manager, client, step):
    """The result of a step."""
    if step.get("restart"):
        manager.restart_kernel(now=False)
        client.wait_for_ready(timeout=SECONDS)
        wait_for_outputs(client)
        return "restarted"
    if "complete" in step:
        return client.complete(step["complete"], reply=True, timeout=SECONDS)["content"]
    if "inspect" in step:
        return client.inspect(step["inspect"], reply=True, timeout=SECONDS)["content"]
    return execute(manager, client, step)


def cells(path, to):
    """Takes steps in a kernel of their own and writes the results."""
    with open(path, encoding="utf-8") as file:
        steps = json.load(file)
    manager, client = start_new_kernel(kernel_name=KERNEL, startup_timeout=SECONDS)
    try:
        wait_for_outputs(client)
        results = [take(manager, client, step) for step in steps]
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    with open(to, "w", encoding="utf-8") as file:
        json.dump(results, file, default=str)


if __name__ == "__main__":
    {"run": run, "cells": cells}[sys.argv[1]](*sys.argv[2:])
