from __future__ import annotations

from itertools import pairwise

import h11
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ferrule import LM, ConfigurationError
from ferrule.net.http1 import AnswerReader, Head, HTTPSyntaxError, request_head

ENDED = "the server closed the connection"
NAMES = st.sampled_from(
    ["Content-Type", "x-request-id", "X-Ratelimit-Limit", "a", "!#$%&'*+-.^_`|~"],
)
VALUES = st.text(
    st.characters(min_codepoint=0x21, max_codepoint=0xFF, exclude_characters="\x7f\x85\xa0"),
    max_size=8,
)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=4)
BODIES = st.lists(st.binary(max_size=40), max_size=4)


def read(*pieces: bytes) -> tuple[Head, bytes, bool]:
    """One answer that comes in these pieces: its head, its body, and whether the connection can be used again."""
    reader, waiting = AnswerReader(), list(pieces)

    def until(step):
        while (found := step()) is None:
            reader.feed(waiting.pop(0) if waiting else b"")
        return found

    head, body = until(reader.head), b""
    while piece := until(reader.piece):
        body += piece
    for each in waiting:
        reader.feed(each)
    return head, body, reader.is_reusable


def read_by_h11(*pieces: bytes) -> tuple[Head, bytes, bool]:
    """The same by h11."""
    client, waiting = h11.Connection(h11.CLIENT), [*pieces, b""]
    client.send(
        h11.Request(method="POST", target="/", headers=[("host", "h"), ("content-length", "0")]),
    )
    client.send(h11.EndOfMessage())
    head, body = None, b""
    while True:
        match client.next_event():
            case h11.NEED_DATA:
                client.receive_data(waiting.pop(0))
            case h11.Response() as event:
                headers: dict[str, str] = {}
                for name, value in event.headers:
                    key, text = name.decode(), value.decode("latin-1")
                    headers[key] = f"{headers[key]}, {text}" if key in headers else text
                head = Head(event.status_code, headers)
            case h11.Data() as event:
                body += event.data
            case h11.EndOfMessage():
                for each in waiting[:-1]:
                    client.receive_data(each)
                is_open = client.their_state is h11.DONE and client.trailing_data == (b"", False)
                return head, body, is_open
            case _:
                pass


def either(how, pieces):
    """What was read; None if it was refused."""
    try:
        return how(*pieces)
    except (HTTPSyntaxError, h11.RemoteProtocolError):
        return None


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]


@st.composite
def answers(draw) -> bytes:
    """Answers as servers write them, and some that no server should."""
    version, status = (
        draw(st.sampled_from(["1.1", "1.1", "1.0"])),
        draw(st.sampled_from([200, 200, 204, 304, 400, 429, 500, 999])),
    )
    between = draw(st.sampled_from([b"", b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"]))
    lines = [f"HTTP/{version} {status}{draw(st.sampled_from(['', ' ', ' OK', ' Too Many']))}"]
    lines += [
        f"{name}:{draw(st.sampled_from(['', ' ', '  ']))}{value}" for name, value in draw(FIELDS)
    ]
    if draw(st.booleans()):
        lines.append(draw(st.sampled_from(["Connection: close", "connection: Keep-Alive"])))
    chunks, body = draw(BODIES), b""
    match draw(st.sampled_from(["length", "length", "chunked", "chunked", "end"])):
        case "length":
            body = b"".join(chunks)
            lines.append(f"Content-Length: {len(body)}")
        case "chunked":
            lines.append("Transfer-Encoding: chunked")
            for each in filter(None, chunks):
                body += b"%x%b\r\n%b\r\n" % (
                    len(each),
                    draw(st.sampled_from([b"", b";a=b", b"  "])),
                    each,
                )
            body += b"0\r\n" + draw(st.sampled_from([b"", b"", b"x-sum: 1\r\n"])) + b"\r\n"
        case _:
            body = b"".join(chunks)
    head = draw(st.sampled_from(["\r\n", "\r\n", "\n"])).join([*lines, "", ""]).encode("latin-1")
    return between + head + body + draw(st.sampled_from([b"", b"", b"", b"junk"]))


PLACES = st.lists(st.integers(0, 2000), max_size=8)


@given(answers(), PLACES)
def test_answers_are_read_as_h11_reads_them_wherever_they_are_cut(answer, places):
    pieces = cut(answer, places)
    assert either(read, pieces) == either(read_by_h11, pieces)


@given(answers(), st.integers(0, 2000), st.binary(max_size=3), PLACES)
@example(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", 30, b"", [])
def test_a_broken_answer_is_refused_or_read_and_never_anything_else(
    answer,
    place,
    inserted,
    places,
):
    place %= len(answer) + 1
    pieces = cut(answer[:place] + inserted + answer[place + len(inserted) :], places)
    ours, theirs = either(read, pieces), either(read_by_h11, pieces)
    assert ours is None or theirs is None or ours[:2] == theirs[:2]


@given(answers(), st.integers(0, 2000))
def test_an_answer_that_breaks_off_is_refused_where_h11_refuses_it(answer, place):
    part = answer[: place % (len(answer) + 1)]
    ours, theirs = either(read, [part]), either(read_by_h11, [part])
    assert (ours is None) == (theirs is None)
    assert ours == theirs


def test_the_parts_of_a_long_header_are_joined():
    """RFC 9112, 5.2: old servers fold lines."""
    head, _, _ = read(b"HTTP/1.1 200 OK\r\na: one\r\n  two\r\n\tthree\r\ncontent-length: 0\r\n\r\n")
    assert head.headers["a"] == "one two three"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", f"{ENDED} without an answer"),
        (b"HTTP/1.1 200", f"{ENDED} in the middle of its answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe", f"{ENDED} in the middle of its answer"),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            f"{ENDED} in the middle of its answer",
        ),
        (
            b"SSH-2.0-OpenSSH\r\n\r\n",
            "does not begin with a status line of HTTP/1.1: 'SSH-2.0-OpenSSH'",
        ),
        (
            b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\n\r\n",
            "the server changes to another protocol",
        ),
        (b"HTTP/1.1 200 OK\r\nno header\r\n\r\n", "a malformed header line: 'no header'"),
        (b"HTTP/1.1 200 OK\r\na: b\0\r\n\r\n", "a malformed header line"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "an invalid `content-length`: '-1'"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            "an invalid `content-length`: '1, 2'",
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
            "an invalid `content-length`",
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "an unknown `transfer-encoding`: 'gzip, chunked'",
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            "a chunk of the answer has an invalid size",
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"1" * 5000,
            "a chunk of the answer has an invalid size",
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n",
            "does not end where it says",
        ),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\na b: c\r\n\r\n",
            "a malformed header line: 'a b: c'",
        ),
        (b"HTTP/1.1 200 OK\r\na: " + b"x" * 200_000, "headers of more than 102400 bytes"),
    ],
)
def test_what_is_wrong_is_said(answer, said):
    with pytest.raises(HTTPSyntaxError) as caught:
        read(answer)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


def test_what_comes_unasked_makes_a_connection_useless():
    """The next answer would begin with it."""
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    assert read(whole) == (Head(200, {"content-length": "2"}), b"ok", True)
    assert read(whole, b"HTTP/1.1 200 OK") == (Head(200, {"content-length": "2"}), b"ok", False)
    assert read(whole + b"\r\n")[2] is False


def test_a_body_without_a_length_lasts_until_the_connection_closes_and_not_until_it_breaks():
    for is_broken in (False, True):
        reader = AnswerReader()
        reader.feed(b"HTTP/1.1 200 OK\r\n\r\nhalf of")
        reader.feed(b"", is_broken=is_broken)
        assert reader.head() == Head(200, {})
        assert reader.piece() == b"half of"
        if is_broken:
            with pytest.raises(HTTPSyntaxError, match="in the middle of its answer"):
                reader.piece()
        else:
            assert reader.piece() == b""


def test_a_host_of_its_own_is_written_in_place_of_that_of_the_address():
    assert request_head("127.0.0.1", "/", {"host": "model.example"}).lower().count(b"host:") == 1


@given(FIELDS.map(dict), st.integers(0, 10**9))
def test_a_request_is_written_as_h11_reads_it(headers, length):
    server = h11.Connection(h11.SERVER)
    server.receive_data(
        request_head("model.example:8000", "/v1/chat?a=b", headers) + b"%d\r\n\r\n" % length,
    )
    asked = server.next_event()
    assert (asked.method, asked.target) == (b"POST", b"/v1/chat?a=b")
    named = {
        "host": "model.example:8000",
        **{name.lower(): value for name, value in headers.items()},
        "content-length": str(length),
    }
    assert {name.decode(): value.decode("latin-1") for name, value in asked.headers} == named


@pytest.mark.parametrize(
    "field",
    [("X", "a\r\nb: c"), ("X", "é"), ("X", "€"), ("X é", "a"), ("a b", "c"), ("", "b")],
)
def test_a_header_that_cannot_be_sent_is_refused_when_the_model_is_made(field):
    with pytest.raises(ConfigurationError, match="characters that headers do not allow"):
        LM("openai/m", headers=dict([field]))


@pytest.mark.parametrize("field", [("X", None), ("X", 3), ("X", b"a"), (None, "a")])
def test_a_header_that_is_no_text_is_refused_without_its_value(field):
    with pytest.raises(ConfigurationError, match="names and values as text"):
        LM("openai/m", headers=dict([field]))


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding"])
def test_what_says_how_long_a_request_is_cannot_be_given(name):
    with pytest.raises(ConfigurationError, match="ferrule sets it for each request"):
        LM("openai/m", headers={name: "3"})


@pytest.mark.parametrize(
    "field",
    [
        ("a", "b\r\nc: d"),
        ("a", "b\n"),
        ("a", "\0"),
        ("a", "€"),
        ("a b", "c"),
        ("a:", "b"),
        ("", "b"),
    ],
)
def test_a_header_that_would_end_its_line_is_refused(field):
    with pytest.raises(HTTPSyntaxError, match="characters that headers do not allow"):
        request_head("h", "/", dict([field]))
