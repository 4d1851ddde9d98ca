"""One real request per service, as small as its protocol allows: does it answer?

Written on the wire formats themselves, so that `headwater status` needs no driver, makes no
connection pool and takes milliseconds. Each probe returns "" for yes, else what was wrong.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct

_CQL_STARTUP, _CQL_READY, _CQL_QUERY, _CQL_RESULT = 0x01, 0x02, 0x07, 0x08
_CQL_REQUEST_V4 = 0x04
_CQL_CONSISTENCY_ONE = 1
_KAFKA_METADATA = 3
_HOST = "127.0.0.1"


def kafka_answers(port: int, timeout_seconds: float = 2.0) -> str:
    """Ask for the cluster's metadata; a broker counts once its controller has unfenced it.

    Metadata request v1 with no topics: https://kafka.apache.org/protocol (The Messages: Metadata).
    """
    client = b"headwater-probe"
    body = struct.pack(">hhih", _KAFKA_METADATA, 1, 1, len(client)) + client
    body += struct.pack(">i", 0)
    try:
        with socket.create_connection((_HOST, port), timeout_seconds) as connection:
            connection.settimeout(timeout_seconds)
            connection.sendall(struct.pack(">i", len(body)) + body)
            (length,) = struct.unpack(">i", _receive(connection, 4))
            answer = _receive(connection, length)
    except OSError as error:
        return _said(error)
    _correlation, brokers = struct.unpack_from(">ii", answer)
    return "" if brokers > 0 else "the broker has not joined its cluster yet"


def cassandra_answers(port: int, timeout_seconds: float = 2.0) -> str:
    """Run one CQL query (native protocol v4: STARTUP, then QUERY)."""
    query = b"SELECT release_version FROM system.local"
    startup = struct.pack(">H", 1) + _cql_string(b"CQL_VERSION") + _cql_string(b"3.4.5")
    select = struct.pack(">i", len(query)) + query + struct.pack(">HB", _CQL_CONSISTENCY_ONE, 0)
    try:
        with socket.create_connection((_HOST, port), timeout_seconds) as connection:
            connection.settimeout(timeout_seconds)
            for request, body, expected in (
                (_CQL_STARTUP, startup, _CQL_READY),
                (_CQL_QUERY, select, _CQL_RESULT),
            ):
                opcode = _cql_call(connection, request, body)
                if opcode != expected:
                    return f"CQL answer {opcode:#x} instead of {expected:#x}"
    except OSError as error:
        return _said(error)
    return ""


def triton_answers(port: int, timeout_seconds: float = 2.0) -> str:
    """Ask whether the server is ready (KServe v2 health API)."""
    try:
        status, _body = _http(port, "GET", "/v2/health/ready", timeout_seconds)
    except (OSError, http.client.HTTPException) as error:
        return _said(error)
    return "" if status == http.client.OK else f"health request answered {status}"


def triton_models(port: int, timeout_seconds: float = 2.0) -> dict[str, tuple[str, str]]:
    """State and reason per `model:version` (model repository extension); empty if unanswered."""
    try:
        status, body = _http(port, "POST", "/v2/repository/index", timeout_seconds)
    except (OSError, http.client.HTTPException):
        return {}
    if status != http.client.OK:
        return {}
    return {
        f"{model['name']}:{model.get('version', '?')}": (
            model.get("state", "not loaded"),
            model.get("reason", ""),
        )
        for model in json.loads(body)
    }


def _http(port: int, method: str, path: str, timeout_seconds: float) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(_HOST, port, timeout=timeout_seconds)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _cql_call(connection: socket.socket, opcode: int, body: bytes) -> int:
    connection.sendall(struct.pack(">BBhBi", _CQL_REQUEST_V4, 0, 0, opcode, len(body)) + body)
    _version, _flags, _stream, answer, length = struct.unpack(">BBhBi", _receive(connection, 9))
    _receive(connection, length)
    return int(answer)


def _cql_string(text: bytes) -> bytes:
    return struct.pack(">H", len(text)) + text


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("connection closed before the answer was complete")
        data += part
    return data


def _said(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens on its port"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
