"""A server on loopback that speaks Turbopuffer's API, and fails as it is told to."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from fugu.memory.search import Bm25

TOGETHER = 16
Row = dict[str, Any]


class Service:
    """Namespaces in memory behind a real socket.

    Attributes:
        namespaces: The rows, by namespace and id.
        writes: The number of rows of each write that was taken.
        queries: The number of queries of each request that was answered.
        faults: What happens to the next requests instead, one each: a status, "hang", "drop",
            "garbage" (an answer cut short), "half" (only half of it is done), "drip".
        broken: A fault for every request, until it is None again.
        requests: How many came.
    """

    def __init__(self) -> None:
        self.namespaces: dict[str, dict[str, Row]] = {}
        self.writes: list[int] = []
        self.queries: list[int] = []
        self.faults: deque[int | str] = deque()
        self.broken: int | str | None = None
        self.requests = 0
        self.keys: set[str] = set()
        self.lock = threading.Lock()
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"service": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def ids(self, namespace: str = "programs") -> set[str]:
        with self.lock:
            return set(self.namespaces.get(namespace, {}))

    def __enter__(self) -> Service:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def next_fault(self) -> int | str | None:
        with self.lock:
            self.requests += 1
            if self.broken is not None:
                return self.broken
            return self.faults.popleft() if self.faults else None

    def write(self, name: str, body: Row, half: bool) -> tuple[int, Row]:
        rows = list(body.get("upsert_rows", []))
        columns = body.get("upsert_columns")
        if columns:
            names = list(columns)
            rows += [
                dict(zip(names, values, strict=True))
                for values in zip(*columns.values(), strict=True)
            ]
        ids = [row["id"] for row in rows]
        if len(set(ids)) < len(ids) or any(str(one).startswith("poison") for one in ids):
            return 400, {"status": "error", "error": "bad rows"}
        rows = rows[: len(rows) // 2] if half else rows
        with self.lock:
            space = self.namespaces.setdefault(name, {})
            for row in rows:
                space[row["id"]] = {**row, "vector": _vector(row["vector"])}
            self.writes.append(len(rows))
        billing = {"billable_logical_bytes_written": 0}
        answer = {"status": "OK", "message": "", "rows_affected": len(rows), "billing": billing}
        return 200, answer

    def query(self, name: str, body: Row, half: bool) -> tuple[int, Row]:
        with self.lock:
            if name not in self.namespaces:
                return 404, {"status": "error", "error": f"namespace {name} was not found"}
            rows = list(self.namespaces[name].values())
        queries = body["queries"]
        if len(queries) > TOGETHER:
            return 400, {"status": "error", "error": f"at most {TOGETHER} queries"}
        self.queries.append(len(queries))
        results = [{"rows": _answer(rows, query)} for query in queries]
        if half:
            results = results[: len(results) // 2]
        billing = {"billable_logical_bytes_queried": 0, "billable_logical_bytes_returned": 0}
        performance = {
            "approx_namespace_size": len(rows),
            "cache_hit_ratio": 1.0,
            "cache_temperature": "hot",
            "exhaustive_search_count": 0,
            "query_execution_ms": 0,
            "server_total_ms": 0,
        }
        return 200, {"results": results, "billing": billing, "performance": performance}


class _Handler(BaseHTTPRequestHandler):
    service: Service
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            content = gzip.decompress(content)
        self.service.keys.add(self.headers.get("Authorization", ""))
        fault = self.service.next_fault()
        if isinstance(fault, int):
            self._answer(fault, {"status": "error", "error": "as told"}, {"retry-after": "0.01"})
        elif fault == "hang":
            self.service.closing.wait()
            self.close_connection = True
        elif fault == "drop":
            self.close_connection = True
        elif fault == "drip":
            self._drip()
        else:
            self._serve(json.loads(content), fault)

    def _serve(self, body: Row, fault: str | None) -> None:
        path = self.path.partition("?")[0].strip("/").split("/")
        assert path[:2] == ["v2", "namespaces"], self.path
        half = fault == "half"
        if path[3:] == ["query"]:
            status, answer = self.service.query(path[2], body, half)
        else:
            assert path[3:] == [], self.path
            status, answer = self.service.write(path[2], body, half)
        self._answer(status, answer, {}, cut=fault == "garbage")

    def _answer(self, status: int, answer: Row, headers: dict[str, str], cut: bool = False) -> None:
        content = json.dumps(answer).encode()
        content = content[: len(content) // 2] if cut else content
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _drip(self) -> None:
        """An answer of which a byte comes now and then, and never the last."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        try:
            while not self.service.closing.wait(0.02):
                self.wfile.write(b" ")
        except OSError:
            pass
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _vector(given: Any) -> np.ndarray[Any, Any]:
    if isinstance(given, str):
        return np.frombuffer(base64.b64decode(given), "<f4")
    return np.array(given, np.float32)


def _answer(rows: list[Row], query: Row) -> list[Row]:
    kept = [row for row in rows if _passes(row, query.get("filters"))]
    attribute, way, value = query["rank_by"]
    assert (attribute, way) in (("vector", "ANN"), ("text", "BM25")), query["rank_by"]
    if way == "ANN":
        wanted = _vector(value).astype(np.float64)
        found = [(_distance(row["vector"].astype(np.float64), wanted), row) for row in kept]
        found.sort(key=lambda pair: pair[0])
    else:
        index = Bm25()
        for row in rows:
            index.add(row["text"])
        found_scores = index.scores(value, np.ones(len(rows), np.bool_))
        scores = {row["id"]: score for row, score in zip(rows, found_scores, strict=True)}
        found = [(scores[row["id"]], row) for row in kept if scores[row["id"]] > 0]
        found.sort(key=lambda pair: -pair[0])
    names = query["include_attributes"]
    return [
        {"id": row["id"], "$dist": distance, **{name: row[name] for name in names}}
        for distance, row in found[: query["top_k"]]
    ]


def _distance(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    scale = float(np.sqrt((one @ one) * (other @ other)))
    return 1.0 - float(one @ other) / scale if scale else 1.0


def _passes(row: Row, filters: Any) -> bool:
    if not filters:
        return True
    if filters[0] == "And":
        return all(_passes(row, inner) for inner in filters[1])
    name, operator, value = filters
    given = row[name]
    return {
        "Eq": given == value,
        "NotEq": given != value,
        "Gte": operator == "Gte" and given >= value,
        "Lte": operator == "Lte" and given <= value,
    }[operator]
