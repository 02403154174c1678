"""Downloads against a local server: whole, cut, foreign, absent and unreachable."""

import contextlib
import hashlib
import http.server
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dubio.data.stored import DownloadError, Remote, download

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(http.server.BaseHTTPRequestHandler):
    """Answers by the path of the request."""

    paths: list[str]

    def do_GET(self) -> None:
        self.paths.append(self.path)
        if self.path == "/absent":
            self.send_error(404)
            return
        if self.path == "/hanging":
            self.server.released.wait(20)  # type: ignore[attr-defined]
            return
        self.send_response(200)
        if self.path not in ("/unannounced-cut", "/endless", "/trickling"):
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        with contextlib.suppress(OSError):  # the client leaves
            while self.path == "/endless":
                self.wfile.write(CONTENT)
            while self.path == "/trickling" and not self.server.released.wait(0.02):  # type: ignore[attr-defined]
                self.wfile.write(b"?")
        if self.path in ("/endless", "/trickling"):
            return
        cut = "cut" in self.path
        sent = b"?" * len(CONTENT) if self.path == "/foreign" else CONTENT
        self.wfile.write(sent[: len(CONTENT) // 2] if cut else sent)

    def log_message(self, *unused: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server, whose thread ends with the test."""
    Server.paths = []
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    serving.released = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{serving.server_address[1]}"
    serving.released.set()  # type: ignore[attr-defined]
    serving.shutdown()
    serving.server_close()
    thread.join()


def unreachable() -> str:
    """An address without a server."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/file"


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_whole_file_arrives_under_its_name(server: str, tmp_path: Path) -> None:
    path = download(Remote("MNIST/raw/file", (f"{server}/whole",), MD5), tmp_path)
    assert path == tmp_path / "MNIST/raw/file"
    assert path.read_bytes() == CONTENT
    assert files(tmp_path) == ["MNIST/raw/file"]


def test_a_file_that_is_there_is_not_fetched_again(server: str, tmp_path: Path) -> None:
    remote = Remote("file", (f"{server}/whole",), MD5)
    download(remote, tmp_path)
    download(remote, tmp_path)
    assert Server.paths == ["/whole"]


def test_a_damaged_file_is_fetched_again(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT[:100])
    download(Remote("file", (f"{server}/whole",), MD5), tmp_path)
    assert (tmp_path / "file").read_bytes() == CONTENT


REASONS = {
    "cut": f"the connection was cut, {len(CONTENT) // 2} bytes are missing",
    "unannounced-cut": f"its md5 must be {MD5}, got ",
    "foreign": f"its md5 must be {MD5}, got ",
    "absent": "HTTP Error 404: Not Found",
    "hanging": "timed out",
}


@pytest.mark.parametrize("kind", REASONS)
def test_what_is_not_whole_is_never_accepted(kind: str, server: str, tmp_path: Path) -> None:
    address = f"{server}/{kind}"
    with pytest.raises(DownloadError) as refused:
        download(Remote("raw/file", (address,), MD5), tmp_path, timeout=0.3)
    message = str(refused.value)
    assert message.startswith(f"file could not be downloaded ({address}: ")
    assert REASONS[kind] in message
    assert message.endswith(f"fetch {address} on a machine that has a network, and put it in {tmp_path / 'raw'}")
    assert files(tmp_path) == []


@pytest.mark.parametrize("kind", ["cut", "foreign"])
def test_a_failed_download_leaves_the_old_file_alone(kind: str, server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(DownloadError):
        download(Remote("file", (f"{server}/{kind}",), MD5), tmp_path)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert files(tmp_path) == ["file"]


def test_where_there_is_no_network_one_sentence_says_what_to_do(tmp_path: Path) -> None:
    address = unreachable()
    with pytest.raises(DownloadError, match="Connection refused") as refused:
        download(Remote("raw/file", (address,), MD5), tmp_path)
    assert str(refused.value).endswith(f"fetch {address} on a machine that has a network, and put it in {tmp_path}/raw")
    assert list(tmp_path.iterdir()) == []


def test_addresses_are_tried_in_turn(server: str, tmp_path: Path) -> None:
    addresses = (unreachable(), f"{server}/absent", f"{server}/cut", f"{server}/whole", f"{server}/never")
    path = download(Remote("file", addresses, MD5), tmp_path)
    assert path.read_bytes() == CONTENT
    assert Server.paths == ["/absent", "/cut", "/whole"]
    assert files(tmp_path) == ["file"]


def test_a_key_pressed_in_the_middle_leaves_nothing(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*unused: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("dubio.data.stored._copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        download(Remote("file", (f"{server}/whole",), MD5), tmp_path)
    assert files(tmp_path) == []


def test_progress_is_shown_on_stderr_of_a_terminal_only(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    download(Remote("quiet", (f"{server}/whole",), MD5), tmp_path)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    download(Remote("shown", (f"{server}/whole",), MD5), tmp_path)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "shown" in shown.err
    assert "1.0/1.0 MB" in shown.err


@pytest.mark.timeout(20)
def test_a_body_without_an_end_is_left_at_the_largest_size(server: str, tmp_path: Path) -> None:
    remote = Remote("file", (f"{server}/endless",), MD5, max_bytes=2 * len(CONTENT))
    with pytest.raises(DownloadError, match=f"it must have at most {2 * len(CONTENT)} bytes, and goes on"):
        download(remote, tmp_path)
    assert files(tmp_path) == []


def test_a_file_that_is_announced_too_large_is_not_fetched(server: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=f"it must have at most 1000 bytes, got {len(CONTENT)}"):
        download(Remote("file", (f"{server}/whole",), MD5, max_bytes=1000), tmp_path)
    assert files(tmp_path) == []


@pytest.mark.timeout(20)
def test_a_server_that_trickles_is_left_in_time(server: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="it took too long in all"):
        download(Remote("file", (f"{server}/trickling",), MD5), tmp_path, total=0.3)
    assert files(tmp_path) == []


def test_a_link_in_the_place_of_the_unfinished_file_is_not_followed(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    monkeypatch.setattr("os.urandom", bytes)
    (tmp_path / f".unfinished-{os.getpid()}-{bytes(8).hex()}").symlink_to(tmp_path / "victim")
    with pytest.raises(DownloadError, match="File exists"):
        download(Remote("file", (f"{server}/whole",), MD5), tmp_path)
    assert (tmp_path / "victim").read_bytes() == b"precious"
