"""What the policies component leaves in this machine's firewall when it is killed, and removing it.

Pure text in the middle: rules and sets in, the commands that undo them out.
"""

import subprocess

_CHAINS = ("KUBE-ROUTER-", "KUBE-POD-FW-", "KUBE-NWPLCY-")
_SETS = ("KUBE-SRC-", "KUBE-DST-")


def clear() -> None:
    """Remove its rules, chains and address sets, and no others.

    Raises:
        subprocess.CalledProcessError: the kernel refused.
    """
    if commands := undo(_run("iptables", "-S")):
        _run("iptables-restore", "--noflush", text="\n".join(["*filter", *commands, "COMMIT", ""]))
    for name in _run("ipset", "list", "-n").split():
        if name.startswith(_SETS):
            _run("ipset", "destroy", name)


def left() -> int:
    """Its chains that exist."""
    return sum(1 for line in _run("iptables", "-S").splitlines() if line.startswith(tuple(f"-N {name}" for name in _CHAINS)))


def undo(listing: str) -> list[str]:
    """From `iptables -S`: jumps from other chains go first, then what is in the chains, then the chains."""
    lines = listing.splitlines()
    chains = [words[1] for line in lines if (words := line.split())[0] == "-N" and words[1].startswith(_CHAINS)]
    jumps = [line for line in lines if line.startswith("-A ") and line.split()[1] not in chains and _jumps_to(line) in chains]
    deletions = [f"-D {line.removeprefix('-A ')}" for line in jumps]
    return [*deletions, *(f"-F {name}" for name in chains), *(f"-X {name}" for name in chains)]


def _jumps_to(rule: str) -> str:
    return rule.rpartition(" -j ")[2].split()[0] if " -j " in rule else ""


def _run(*words: str, text: str | None = None) -> str:
    return subprocess.run(words, input=text, check=True, capture_output=True, text=True).stdout
