"""Programs that open sockets."""

from __future__ import annotations

from attacks.escape import Escape

NETWORK: tuple[Escape, ...] = (
    Escape("a TCP connection", "network", """
with socket.create_connection(("127.0.0.1", targets["tcp"]), 2) as line:
    return line.recv(5) == b"hello"
"""),
    Escape("a TCP connection over IPv6", "network", """
with socket.create_connection(("::1", targets["tcp6"]), 2) as line:
    return line.recv(5) == b"hello"
"""),
    Escape("a UDP datagram", "network", """
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
    return line.sendto(b"x", ("127.0.0.1", targets["udp"])) == 1
"""),
    Escape("a listening TCP port", "network", """
with socket.socket() as line:
    line.bind(("127.0.0.1", 0))
    line.listen()
    return True
"""),
    Escape("a raw ICMP socket", "network", """
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
return True
"""),
    Escape("a netlink socket", "network", """
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as line:
    line.bind((0, 0))
    return True
"""),
    Escape("a Unix socket by path", "network", """
with socket.socket(socket.AF_UNIX) as line:
    line.connect(targets["unix"])
    return line.recv(5) == b"hello"
"""),
    Escape("an abstract Unix socket", "network", """
with socket.socket(socket.AF_UNIX) as line:
    line.connect(targets["abstract"])
    return line.recv(5) == b"hello"
"""),
    Escape("a listening abstract Unix socket", "network", """
with socket.socket(socket.AF_UNIX) as line:
    line.bind(targets["abstract"] + "-mine")
    line.listen()
    return True
"""),
    Escape("a socket pair", "network", """
one, other = socket.socketpair()
one.sendall(b"x")
return other.recv(1) == b"x"
"""),
    Escape("listing network interfaces", "network", """
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as line:
    line.send(struct.pack("=IHHII", 32, 18, 0x301, 1, 0) + bytes(16))
    return len(line.recv(65536)) > 16
"""),
    Escape("a packet socket that sees all traffic", "network", """
socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)).close()
return True
"""),
)  # fmt: skip
