"""`PodOptions.extra` over a finished pod spec: what merges, and what must stay as it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Final

from sandlot.errors import BadRequest
from sandlot.podoptions import thawed

Json = dict[str, Any]

MERGED_BY: Final[Mapping[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "ports": "containerPort",
}
"""Lists whose members have an identity, and its field: as strategic merge patches of pods know them."""


def merge(pod: Json, extra: Mapping[str, object]) -> None:
    """Lay `extra` over `pod`, in place.

    Raises:
        BadRequest: a part has another shape than the pod's, or changes what Sandlot needs; the field's path is told.
    """
    if not extra:
        return
    needed = _needed(pod)
    _merge_mapping(pod, extra, "extra")
    for path, value in needed.items():
        if _needed(pod).get(path) != value:
            raise BadRequest(f"PodOptions.extra changes {path}, which Sandlot needs as it is", hint="leave that field out")


def _merge_mapping(base: Json, over: Mapping[str, object], path: str) -> None:
    for key, value in over.items():
        where = f"{path}.{key}"
        if value is None:
            base.pop(key, None)
        elif isinstance(base.get(key), dict):
            if not isinstance(value, Mapping):
                raise BadRequest(f"{where} must be a mapping")
            _merge_mapping(base[key], value, where)
        elif key in MERGED_BY:
            base[key] = _merged_list(base.get(key, []), value, MERGED_BY[key], where)
        else:
            base[key] = thawed(value)


def _merged_list(base: list[Json], over: object, by: str, path: str) -> list[Json]:
    if not isinstance(over, tuple) or not all(isinstance(one, Mapping) and by in one for one in over):
        raise BadRequest(f"{path} must be a list of mappings that each have {by!r}")
    known = {one[by]: one for one in base}
    for at, one in enumerate(over):
        if one[by] in known:
            _merge_mapping(known[one[by]], one, f"{path}[{at}]")
        else:
            base.append({key: thawed(value) for key, value in one.items()})
    return base


def _needed(pod: Json) -> dict[str, object]:
    """What the rest of Sandlot counts on, by path; a copy, since merging changes the pod in place."""
    pod = deepcopy(pod)
    task = (pod.get("containers") or [{}])[0]
    ours = [one for one in task.get("env") or () if str(one.get("name", "")).startswith("SANDLOT_")]
    return {
        "restartPolicy": pod.get("restartPolicy"),
        "shareProcessNamespace": bool(pod.get("shareProcessNamespace")),  # the daemon has to be process 1
        "hostPID": bool(pod.get("hostPID")),
        "containers[task].name": task.get("name"),
        "containers[task].image": task.get("image"),
        "containers[task].command": list(task.get("command") or ()),
        "containers[task].args": task.get("args"),
        "containers[task].env": ours,
        "containers[task].volumeMounts[/sandlot]": _one(task.get("volumeMounts"), "mountPath", "/sandlot"),
        "volumes[sandlot]": _one(pod.get("volumes"), "name", "sandlot"),
    }


def _one(items: list[Json] | None, by: str, value: str) -> Json | None:
    return next((one for one in items or () if one.get(by) == value), None)
