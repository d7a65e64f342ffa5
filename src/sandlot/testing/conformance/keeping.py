"""What is kept apart, what is put back, and what is left: isolation, quiesce, reset, deletion."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from sandlot import errors
from sandlot.provider import Provider
from sandlot.testing.conformance import MakeBox, until


async def test_two_sandboxes_of_one_image_share_nothing(make_box: MakeBox) -> None:
    """Files, processes, shared memory and host names of one are not those of the other."""
    one, two = await make_box(), await make_box()
    await one.exec("echo one > /bin/mark; echo one > /tmp/mark; echo one > /dev/shm/mark; (sleep 98765 &)", check=True)
    seen = await two.exec("cat /bin/mark /tmp/mark /dev/shm/mark 2>/dev/null; ps -o args | grep -c '[s]leep 98765' || true")
    assert seen.stdout == "0\n"


async def test_nothing_of_the_machine_or_the_client_is_seen_inside(
    make_box: MakeBox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Secrets planted in the client's environment and files are nowhere to be found inside."""
    canary = f"canary-{os.urandom(8).hex()}"
    monkeypatch.setenv("CANARY", canary)
    (tmp_path / "secret").write_text(canary)
    box = await make_box("debian")
    places = "/proc/*/environ /proc/*/cmdline /proc/mounts /proc/self/mountinfo /etc /run /tmp /root /home /var/tmp"
    search = f"grep -rasl {canary[:12]} {places} 2>/dev/null | grep -v '/proc/[a-z0-9-]*/cmdline' | head -3"
    assert (await box.exec(search)).stdout == ""
    assert (await box.exec(f"cat {tmp_path}/secret")).exit_code != 0


@pytest.mark.parametrize(
    "attack",
    [
        "cat /proc/1/environ", "cat /proc/1/maps", "cat /proc/1/mem", "ls /proc/1/root/", "readlink /proc/1/fd/*",
        "mount -t tmpfs x /mnt", "mount -o bind / /mnt", "umount /proc", "unshare -U true", "unshare -m true",
        "nsenter -t 1 -m true", "chroot /proc/1/root true", "mknod /tmp/m b 8 0 && cat /tmp/m",
        "echo 1 > /proc/sys/kernel/panic", "echo b > /proc/sysrq-trigger", "cat /proc/kcore",
        "hostname changed", "swapoff -a", "reboot -f", "dmesg",
    ],
)  # fmt: skip
async def test_ways_out_are_closed(make_box: MakeBox, attack: str) -> None:
    """Root inside is nobody outside: each of these is refused, and the sandbox lives on."""
    box = await make_box()
    result = await box.exec(attack, timeout=20)
    assert result.exit_code != 0
    assert (await box.exec("echo alive")).stdout == "alive\n"


async def test_network_is_a_loopback_of_its_own(make_box: MakeBox) -> None:
    """network="none": a loopback that is up, no other interface."""
    box = await make_box()
    result = await box.exec("awk -F: 'NR>2{print $1}' /proc/net/dev")
    assert result.stdout.split() == ["lo"]
    listening = await box.start("nc -l -p 8080 -e /bin/echo served")

    async def served() -> bool:
        return "served" in (await box.exec("nc 127.0.0.1 8080 </dev/null", timeout=5)).stdout

    await until(served)
    await listening.signal(9)


async def test_quiesce_leaves_no_process_and_lists_what_was_there(make_box: MakeBox) -> None:
    """Writers of every kind stop; files stop changing; commands work afterwards."""
    box = await make_box()
    writer = "while :; do date >> /tmp/w; done"
    await box.exec(f"({writer}) & setsid sh -c '{writer}' & (setsid sleep 98765 &)", check=True)
    shell = await box.shell()
    await shell.run("sleep 98765 &")
    found = await box.quiesce()
    assert any(b"98765" in b" ".join(process.argv) for process in found)
    first, second = await box.read("/tmp/w"), await box.read("/tmp/w")
    assert first == second
    assert await box.processes() == []


async def test_frozen_processes_stand_still_and_go_on_when_thawed(make_box: MakeBox) -> None:
    """freeze stops every process that is there; thaw lets them continue where they were."""
    box = await make_box()
    await box.exec("(while :; do echo x >> /tmp/w; sleep 0.01; done) &", check=True)
    await until(lambda: box.exists("/tmp/w"))
    await box.quiesce("freeze")
    size = (await box.stat("/tmp/w")).size
    await asyncio.sleep(0.3)
    assert (await box.stat("/tmp/w")).size == size
    await box.quiesce("thaw")

    async def grown() -> bool:
        return (await box.stat("/tmp/w")).size > size

    await until(grown)


async def test_reset_restores_everything_an_episode_can_change(make_box: MakeBox) -> None:
    """Files anywhere, temporary places, shared memory, processes, shells, working directory, ownership: as after creation."""
    box = await make_box("debian")
    look = """
    cd /
    find / -xdev \\( -path /proc -o -path /sys \\) -prune -o -printf '%p %y %m %U %G %s %l\\n' 2>/dev/null | sort | sha256sum
    sort /proc/mounts | sha256sum; hostname; ls /dev/shm /tmp /run | sha256sum; set -- /proc/[0-9]*; echo $#
    cat /proc/sysvipc/shm /proc/sysvipc/msg /proc/sysvipc/sem | wc -l
    pwd; umask; ulimit -n; awk 'NR>2{print $1}' /proc/net/dev
    """
    before = (await box.exec(look)).stdout
    ipc = "import ctypes; c=ctypes.CDLL(None); c.shmget(77, 4096, 0o1666); c.msgget(78, 0o1666); c.semget(79, 1, 0o1666)"
    episode = f"""
    python3 -c '{ipc}'
    echo x > /usr/bin/new; rm -rf /usr/bin/git /etc/apt /var/log; chmod 777 /etc/passwd; chown 1000 /root
    echo x > /tmp/f; echo x > /dev/shm/f; mkdir -p /run/x; mkfifo /p; ln -s / /deep; (setsid sleep 98765 &)
    echo 'root:x:0:0::/:/bin/false' > /etc/passwd
    """
    await box.exec(episode)
    shell = await box.shell()
    await shell.run("sleep 98765 &")
    await box.reset()
    assert (await box.exec(look)).stdout == before
    assert await box.processes() == []
    with pytest.raises(errors.SandlotError):
        await shell.run("echo still here")


async def test_reset_again_and_again_stays_clean(make_box: MakeBox) -> None:
    """Thirty episodes in a row each begin with the same files and leave nothing to the next."""
    box = await make_box()
    for i in range(30):
        assert (await box.exec("ls / /tmp /bin/x* 2>/dev/null | grep -c mark || true")).stdout == "0\n"
        await box.exec(f"for j in $(seq 200); do echo {i} > /mark$j; done; echo > /tmp/mark; (sleep 98765 &)", check=True)
        await box.reset()


async def test_calls_on_a_closed_sandbox_are_typed_errors(make_box: MakeBox, provider: Provider) -> None:
    """After closing, every call says so; closing again is fine."""
    box = await make_box()
    name = box.name
    await box.aclose()
    await box.aclose()
    with pytest.raises(errors.SandlotError):
        await box.exec("echo x")
    assert name not in [info.name for info in await provider.list()]


async def test_stop_with_grace_lets_processes_finish(make_box: MakeBox, provider: Provider) -> None:
    """TERM first: a trap has its say; a process that ignores it is killed after the grace."""
    box = await make_box()
    job = await box.start("trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    async for chunk in job.output():
        if b"up" in chunk.data:
            break
    waiting = asyncio.create_task(job.wait())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await box.aclose(grace_s=5)
    with contextlib.suppress(errors.SandboxGone, errors.Closed):  # its last words may be too late for a reader
        assert "told" in (await waiting).stdout


async def test_daemon_that_dies_is_an_infrastructure_fault(make_box: MakeBox, provider: Provider) -> None:
    """A sandbox that ends under a running command is SandboxGone, retriable, never an exit code; other sandboxes go on."""
    box, other = await make_box(), await make_box()
    call = asyncio.create_task(box.exec("sleep 300"))
    await asyncio.sleep(0.1)
    await provider.backend.delete(box.name)
    with pytest.raises(errors.SandboxGone) as gone:
        await call
    assert gone.value.retriable
    assert (await other.exec("echo alive")).stdout == "alive\n"
