"""Answers against the wire as its argument says; standard library only, so that it starts at once."""

import json
import os
import sys
import time
from pathlib import Path

DONE = {"reply": "done"}
DECLARED = {"name": "hostile", "version": "1", "level": 3, "credit": 2}
HEADER = b'{"sampled_token_ids":{"dtype":"I32","shape":[1,1],"data_offsets":[0,4]}}'
GOOD = len(HEADER).to_bytes(8, "little") + HEADER + bytes(4)
HUGE = b'{"sampled_token_ids":{"dtype":"I32","shape":[1,99999999],"data_offsets":[0,399999996]}}'
LARGE = b'{"sampled_token_ids":{"dtype":"I32","shape":[1048576,1],"data_offsets":[0,4194304]}}'
STRANGE = b'{"code":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
PICKLE = b"cos\nsystem\n(S'touch executed'\ntR."

LINES = {
    "garbage": b"\x00\xff garbage\n",
    "empty": b"\n",
    "list": b"[1, 2, 3]\n",
    "deep": b"[" * 500_000 + b"\n",
    "long": b'"' + b"x" * 2**21 + b'"\n',
    "pickle": PICKLE.replace(b"\n", b" ") + b"\n",
    "other-call": b'{"reply":"done","call":77}\n',
    "unknown-field": b'{"reply":"done","call":3,"exec":"touch executed"}\n',
    "unknown-reply": b'{"reply":"run","call":3}\n',
    "number": b'{"reply":"done","call":1e400}\n',
    "kind": b'{"reply":"failed","call":3,"kind":"fine","words":""}\n',
    "cut": b'{"reply":"do',
    "described": json.dumps(
        {"reply": "described", "call": 3, "wire": 1, "capabilities": DECLARED}
    ).encode()
    + b"\n",
}
FILES = {
    "no-bytes": b"",
    "cut-file": GOOD[:-2],
    "longer-file": GOOD + b"more",
    "long-header": (2**63 - 1).to_bytes(8, "little") + HEADER,
    "no-json": (4).to_bytes(8, "little") + b"{{{{",
    "huge-shape": len(HUGE).to_bytes(8, "little") + HUGE + bytes(4),
    "strange": len(STRANGE).to_bytes(8, "little") + STRANGE + bytes(4),
    "pickled": PICKLE,
    "large": len(LARGE).to_bytes(8, "little") + LARGE + bytes(2**22),
}


def say(message):
    os.write(1, message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n")


def twice():
    say(b'{"reply":"done","call":3}\n{"reply":"done","call":4}\n')


def flood():
    while True:
        say(b"x" * 2**16)


def trickle():
    while True:
        say(b" ")
        time.sleep(0.01)


def silent():
    time.sleep(60)


def dies():
    os.kill(os.getpid(), 11)


def leaves():
    sys.exit(3)


def link(output):
    elsewhere = output.with_name("elsewhere")
    elsewhere.write_bytes(GOOD)
    output.symlink_to(elsewhere)


ACTS = {one.__name__: one for one in (twice, flood, trickle, silent, dies, leaves)}
PUTS = {
    "link": link,
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "good": lambda output: output.write_bytes(GOOD),
    "nothing": os.fspath,
}


def sample(mode, call, output):
    if mode in (*LINES, *ACTS):
        output.write_bytes(GOOD)  # only the reply is wrong
    if mode in LINES:
        say(LINES[mode])
    elif mode in ACTS:
        ACTS[mode]()
    elif mode in FILES:
        output.write_bytes(FILES[mode])
        say({**DONE, "call": call})
    else:
        PUTS[mode](output)
        say({**DONE, "call": call})


def main(mode):
    folder = Path()
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["op"] == "describe":
            folder = Path(ask["folder"])
            version = 99 if mode == "other-wire" else 1
            declared = DECLARED | {"level": 2} if mode == "level-2" else DECLARED
            said = {"reply": "described", "wire": version, "capabilities": declared}
            say({**said, "call": ask["call"]})
        elif ask["op"] == "sample":
            sample(mode, ask["call"], folder / ask["output"])
        else:
            say({**DONE, "call": ask["call"]})


if __name__ == "__main__":
    main(sys.argv[1])
