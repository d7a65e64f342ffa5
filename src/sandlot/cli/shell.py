"""`sandlot shell`: an interactive shell in a sandbox, on this terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import click

from sandlot.cli.failures import own_failures
from sandlot.cli.kubernetes import Where, where_options
from sandlot.cli.output import say
from sandlot.cli.running import run
from sandlot.cli.stdio import pass_on, write_all
from sandlot.cli.wanted import spec_options
from sandlot.errors import BadRequest
from sandlot.provider import Provider
from sandlot.sandbox import CommandStream, Sandbox
from sandlot.spec import Spec

_BEST_SHELL: Final = "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi"


@click.command("shell")
@click.argument("image", default="host")
@click.option(
    "--leased", "lease_s", type=float, metavar="SECONDS", help="Keep the sandbox this long after the shell has ended."
)
@click.option("--name", help="The name of a leased sandbox.  [default: one is made]")
@click.option("--attach", metavar="NAME", help="A shell in a leased sandbox that exists.")
@spec_options
@where_options
def command(where: Where, spec: Spec, lease_s: float | None, name: str | None, attach: str | None) -> int:
    """Open a shell in a fresh sandbox made from IMAGE, `host` by default.

    The sandbox is gone when the shell ends (owner: attached). With --leased it lives on (owner: leased) and --attach opens
    another shell in it. The exit code is the shell's; 125 is Sandlot's own failure.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadRequest("shell needs a terminal", hint="use `sandlot exec` in scripts")
    if name is not None and lease_s is None:
        raise BadRequest("--name belongs to --leased")
    with own_failures():
        provider = where.provider(where.of_one())
        return run(_attached(provider, attach, lease_s) if attach else _fresh(provider, spec, name, lease_s))


async def _fresh(opened: Provider, spec: Spec, name: str | None, lease_s: float | None) -> int:
    async with opened as provider:
        if lease_s is None:
            async with await provider.create(spec) as box:
                return await _converse(box)
        box = await provider.create(spec, owner="leased", lease_s=lease_s, name=name)
        return await _converse_leased(provider, box, lease_s)


async def _attached(opened: Provider, name: str, lease_s: float | None) -> int:
    async with opened as provider:
        return await _converse_leased(provider, await provider.attach(name), lease_s)


async def _converse_leased(provider: Provider, box: Sandbox, lease_s: float | None) -> int:
    """A leased sandbox lives while somebody is at its terminal, and its lease runs from when they leave."""
    renewing = asyncio.create_task(_renew(provider, box.name, lease_s)) if lease_s is not None else None
    try:
        return await _converse(box)
    finally:
        if renewing is not None:
            renewing.cancel()
            await asyncio.wait([renewing])
        say(f"{box.name} lives on until its lease ends: sandlot shell --attach {box.name}, sandlot gc {box.name}")


async def _renew(provider: Provider, name: str, lease_s: float) -> None:
    while True:
        await provider.renew(name, lease_s)
        await asyncio.sleep(lease_s / 3)


async def _converse(box: Sandbox) -> int:
    env = {"TERM": os.environ.get("TERM", "dumb")}
    async with box.stream(_BEST_SHELL, pty=_size(), env=env) as stream:
        with _raw_terminal(sys.stdin.fileno()):
            async with _resizing(stream), pass_on(sys.stdin.fileno(), stream):
                async for chunk in stream:
                    write_all(1, chunk.data)
        return stream.result.exit_code


@contextmanager
def _raw_terminal(number: int) -> Iterator[None]:
    """Every key goes to the sandbox, Ctrl-C too; the terminal is put back as it was, whatever happens."""
    before = termios.tcgetattr(number)
    tty.setraw(number, termios.TCSANOW)  # what was typed while the sandbox was being made is the shell's, not to be flushed
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


@asynccontextmanager
async def _resizing(stream: CommandStream) -> AsyncIterator[None]:
    """While the block runs, the shell is told when this terminal changes its size."""
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    follower = asyncio.create_task(_follow_size(stream, changed), name="follow the terminal's size")
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        follower.cancel()
        await asyncio.wait([follower])


async def _follow_size(stream: CommandStream, changed: asyncio.Event) -> None:
    while True:
        await changed.wait()
        changed.clear()
        await stream.resize(*_size())


def _size() -> tuple[int, int]:
    """Rows and columns of this terminal; one that does not know its size counts as the usual 24 by 80."""
    size = os.get_terminal_size()
    return size.lines or 24, size.columns or 80
