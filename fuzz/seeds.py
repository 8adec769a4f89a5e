#!/usr/bin/env python3
"""Writes the first inputs of the fuzz targets: fuzz/seeds.py DIRECTORY makes DIRECTORY/TARGET/NAME.

They are few and small: one of each kind that a target knows, for libFuzzer to change and combine.
"""

import ipaddress
import pathlib
import struct
import sys

GATEWAY, GUEST, SYNTHETIC, PUBLIC = (
    ipaddress.ip_address(address).packed
    for address in ("198.19.255.1", "198.19.255.2", "198.18.0.1", "8.8.8.8")
)
GATEWAY_MAC, GUEST_MAC = bytes.fromhex("024c5a000001"), bytes.fromhex("024c5a000002")
# The gateway's first sequence number, as the test `frames_lead_into_an_open_connection` has it.
SEQUENCE = 0xDC9072B2
SYN, FIN, RST, PSH, ACK = 2, 1, 4, 8, 16


def ethernet(ethertype, payload):
    return GATEWAY_MAC + GUEST_MAC + struct.pack(">H", ethertype) + payload


def ipv4(protocol, to, payload):
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0x4000, 64, protocol, 0)
    return ethernet(0x800, head + GUEST + to + payload)


def arp(target):
    return ethernet(0x806, bytes.fromhex("0001080006040001") + GUEST_MAC + GUEST + bytes(6) + target)


def udp(to, port, payload):
    return ipv4(17, to, struct.pack(">HHHH", 40000, port, 8 + len(payload), 0) + payload)


def tcp(flags, sequence, to=GATEWAY, port=80, data=b"", options=b""):
    answered = 0 if flags == SYN else SEQUENCE + 1
    words = 5 + len(options) // 4
    head = struct.pack(">HHIIBBHHH", 41000, port, sequence, answered, words << 4, flags, 65535, 0, 0)
    return ipv4(6, to, head + options + data)


def query(name, kind=1, extra=b""):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    counts = struct.pack(">HHHH", 1, 0, 0, 1 if extra else 0)
    return b"\x12\x34\x01\x00" + counts + labels + b"\0" + struct.pack(">HH", kind, 1) + extra


def vector(data):
    return struct.pack(">H", len(data)) + data


def hello(*extensions, piece=1 << 14):
    ciphers = vector(bytes.fromhex("13011302c02fc02b"))
    body = b"\3\3" + b"r" * 32 + b"\0" + ciphers + b"\1\0" + vector(b"".join(extensions))
    message = b"\1" + struct.pack(">I", len(body))[1:] + body
    pieces = [message[at : at + piece] for at in range(0, len(message), piece)]
    return b"".join(b"\x16\3\1" + vector(piece) for piece in pieces)


def extension(kind, data):
    return struct.pack(">H", kind) + vector(data)


def server_name(name):
    return extension(0, vector(b"\0" + vector(name)))


# What a TLS server wants to see before it reads on: groups, signatures, versions, a key share.
USUAL = [
    extension(10, vector(b"\0\x1d")),
    extension(13, vector(bytes.fromhex("0403080404010503"))),
    extension(43, b"\4\3\4\3\3"),
    extension(51, vector(b"\0\x1d" + vector(b"k" * 32))),
]


def frame(kind, payload):
    return struct.pack(">BxxxI", kind, len(payload)) + payload


def request(head, *lines, body=""):
    return "\r\n".join([head, *lines, "", body])


CONNECTION = [
    arp(GATEWAY),
    tcp(SYN, 0, options=bytes.fromhex("020405b401030307")),
    tcp(ACK, 1),
    tcp(PSH | ACK, 1, data=b"GET / HTTP/1.1"),
    tcp(FIN | ACK, 15),
]
FRAMES = {
    "arp": [arp(GATEWAY)],
    "dns": [arp(GATEWAY), udp(GATEWAY, 53, query("a.example"))],
    "syn": [arp(GATEWAY), tcp(SYN, 0)],
    "connection": CONNECTION,
    "reset": [*CONNECTION[:4], tcp(RST | ACK, 15)],
    "named": [arp(GATEWAY), udp(GATEWAY, 53, query("a.example")), tcp(SYN, 0, SYNTHETIC, 443)],
    "address": [arp(GATEWAY), tcp(SYN, 0, PUBLIC, 443)],
    "quic": [arp(GATEWAY), udp(PUBLIC, 443, b"\xc0")],
    "ping": [arp(GATEWAY), ipv4(1, PUBLIC, bytes.fromhex("0800000000010001"))],
    "ipv6": [ethernet(0x86DD, bytes.fromhex("60000000000800ff") + b"\xfe" * 32)],
}
ASKED = "Host: a.example"
HTTP = {
    "get": request("GET /a?b HTTP/1.1", ASKED, "Accept: */*"),
    "absolute": request("GET http://a.example/ HTTP/1.1", ASKED),
    "post": request("POST / HTTP/1.1", ASKED, "Content-Length: 2", body="ok"),
    "chunked": request("POST / HTTP/1.1", ASKED, "Transfer-Encoding: chunked", body="2\r\nok\r\n0\r\n\r\n"),
    "expect": request("POST / HTTP/1.1", ASKED, "Content-Length: 2", "Expect: 100-continue", body="ok"),
    "upgrade": request("GET / HTTP/1.1", ASKED, "Connection: Upgrade, X", "Upgrade: h2c", "X: 1"),
    "two": request("HEAD / HTTP/1.1", ASKED) + request("GET / HTTP/1.1", "Host: other.example"),
    "old": request("GET / HTTP/1.0", ASKED, "Connection: keep-alive"),
    "connect": request("CONNECT a.example:80 HTTP/1.1", ASKED),
    "both": request("POST / HTTP/1.1", ASKED, "Content-Length: 5", "Transfer-Encoding: chunked", body="0\r\n\r\n"),
}
OWN = request("GET /git/a/b.git/info/refs HTTP/1.1", "Host: gateway.lazaret", "Lazaret-Sandbox: x", "Cookie: x")
EXIT = b'{"end":"exited","code":0,"duration_ms":1}'
GAP = b'{"resume_at":9,"dropped":1}'
RULES = "open example.com *.example.com:8443 8.8.8.0/24 2606:4700::/32:53 10.0.0.0/8"

SEEDS = {
    "frames": {name: b"".join(map(vector, frames)) for name, frames in FRAMES.items()}
    | {"raw": b"\xff\xff" + struct.pack(">I", 42) + arp(GATEWAY) + b"\xff\xff\xff\xff"},
    "dns": {
        "a": query("a.example"),
        "gateway": query("gateway.lazaret"),
        "https": query("xn--bcher-kva.example", 65),
        "edns": query("a.example", 28, bytes.fromhex("00002904d000000000000c000a00081122334455667788")),
        "pointer": query("a.example") + b"\xc0\x0c",
    },
    "hello": {
        "plain": hello(server_name(b"example.com"), *USUAL),
        "cut": hello(server_name(b"Example.com"), *USUAL, piece=7),
        "nameless": hello(*USUAL),
        "encrypted": hello(server_name(b"example.com"), extension(0xFE0D, b"\0" * 20)),
    },
    "http": {name: b"\0" + said.encode() for name, said in HTTP.items()} | {"own": b"\1" + OWN.encode()},
    "output": {
        "whole": b"\xff" + frame(1, b"out\n") + frame(2, b"err\n") + frame(3, EXIT),
        "gap": b"\3" + frame(4, GAP) + frame(1, b""),
        "long": b"\0" + struct.pack(">BxxxI", 1, 1 << 18),
    },
    "git": {
        "refs": b"GET /git/acme/demo.git/info/refs?service=git-upload-pack",
        "pack": b"POST /git/acme/demo/git-upload-pack",
        "push": b"GET /git/acme/demo.git/info/refs?service=git-receive-pack",
    },
    "egress": {
        "policy": f"{RULES}\nexample.com\na.example.com:8443\n8.8.8.8:443\n[2606:4700::1]:53\n10.0.0.1\n".encode(),
        "names": "bücher.example\nb\u00fccher.example\nEXAMPLE\u3002com\nxn--bcher-kva.example\n0x7f.1\n".encode(),
        "wrapped": b"open 64:ff9b::/96\n64:ff9b::7f00:1\n::ffff:169.254.169.254\n2002:7f00:1::\n",
    },
    "names": {
        str(at): text.encode()
        for at, text in enumerate(
            "r0000000000000000 s0000000000000000 turn-1 host-1 a.tar.gz acme/demo.git main release/1.2 a/b.txt/ "
            "1G 512MiB 1024T 1h30m 366d 15ms 64 PATH ../x -x @{u} a.lock".split()
        )
    },
}

if __name__ == "__main__":
    for target, inputs in SEEDS.items():
        directory = pathlib.Path(sys.argv[1], target)
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (directory / name).write_bytes(data)
