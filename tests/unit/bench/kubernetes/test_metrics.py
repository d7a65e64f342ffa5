"""What the API server's metrics page says of writes."""

from __future__ import annotations

from sandlot.bench.kubernetes.metrics import Kind, between, bindings, ours, writes


def line(verb: str, resource: str, subresource: str, count: str, code: int = 201) -> str:
    labels = f'code="{code}",component="apiserver",dry_run="",group="",resource="{resource}",scope="resource"'
    return f'apiserver_request_total{{{labels},subresource="{subresource}",verb="{verb}",version="v1"}} {count}\n'


PAGE = (
    "# HELP apiserver_request_total Counter of requests\n# TYPE apiserver_request_total counter\n"
    + line("POST", "pods", "", "100")
    + line("POST", "pods", "", "1.5e+01", code=409)
    + line("DELETE", "pods", "", "60", code=404)
    + line("GET", "pods", "", "7")
    + line("POST", "pods", "binding", "90")
    + line("PATCH", "pods", "status", "300")
    + 'apiserver_request_terminations_total{verb="POST",resource="pods"} 5\n'
    + line("PUT", "leases", "", "4")
)


def test_writes_are_summed_over_answers_and_reads_are_left_out() -> None:
    """A refused write is a write; a GET is none, nor is a write to nothing; other counters of the page are not looked at."""
    assert writes(PAGE) == {
        Kind("POST", "pods", ""): 115,
        Kind("POST", "pods", "binding"): 90,
        Kind("PATCH", "pods", "status"): 300,
        Kind("PUT", "leases", ""): 4,
    }


def test_status_events_and_bindings_are_not_ours() -> None:
    """Pods made and deleted are ours, and every Lease; bindings are told apart, and what kubelets report is not ours."""
    counted = writes(PAGE + line("POST", "events", "", "50") + line("DELETE", "pods", "", "100"))
    assert ours(counted) == 115 + 4 + 100
    assert bindings(counted) == 90


def test_only_what_was_written_between_two_looks_counts() -> None:
    """Kinds that appear later count from nothing, kinds that stood still do not appear."""
    before = {Kind("POST", "pods", ""): 100, Kind("PUT", "leases", ""): 4}
    after = {Kind("POST", "pods", ""): 130, Kind("PUT", "leases", ""): 4, Kind("DELETE", "pods", ""): 30}
    assert between(before, after) == {Kind("POST", "pods", ""): 30, Kind("DELETE", "pods", ""): 30}


def test_kinds_read_as_requests_do() -> None:
    """Verb, resource, and the subresource after a slash."""
    assert [str(Kind("POST", "pods", "binding")), str(Kind("DELETE", "pods", ""))] == ["POST pods/binding", "DELETE pods"]
