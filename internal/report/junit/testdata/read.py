"""Reads JUnit files with junitparser and prints what it found in them as JSON."""
import json
import sys

from junitparser import Error, Failure, JUnitXml, Skipped

KINDS = {Failure: "failed", Error: "errored", Skipped: "skipped"}


def case(c):
    kinds = [KINDS[type(r)] for r in c.result]
    assert len(kinds) <= 1, kinds
    return {"name": c.name, "class": c.classname, "seconds": c.time, "kind": kinds[0] if kinds else "passed",
            "message": c.result[0].message if kinds else "", "text": (c.result[0].text if kinds else c.system_out) or ""}


def suite(s):
    return {"name": s.name, "tests": s.tests, "failures": s.failures, "errors": s.errors, "skipped": s.skipped,
            "seconds": s.time, "properties": {p.name: p.value for p in s.properties()}, "cases": [case(c) for c in s]}


print(json.dumps([[suite(s) for s in JUnitXml.fromfile(path)] for path in sys.argv[1:]]))
