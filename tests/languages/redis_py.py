"""The lock of redis-py, told what to do line by line: `NUMBER VERB [TTL]`, answered by `NUMBER OUTCOME [TOKEN]`.

Arguments: the port of the server and the key.
"""

import sys

import redis
from redis.exceptions import LockNotOwnedError

port, key = sys.argv[1:]
client = redis.Redis(host="127.0.0.1", port=int(port))
lock = None


def acquire(ttl, blocking):
    global lock
    attempt = client.lock(key, timeout=int(ttl) / 1000)
    if not attempt.acquire(blocking=blocking):
        return "refused"
    lock = attempt
    return "held " + lock.local.token.decode()


def release():
    try:
        lock.release()
    except LockNotOwnedError:
        return "not-owned"
    return "released"


VERBS = {
    "try": lambda ttl: acquire(ttl, blocking=False),
    "wait": lambda ttl: acquire(ttl, blocking=True),
    "release": release,
}

client.ping()
print("ready", flush=True)
for line in sys.stdin:
    number, verb, *arguments = line.split()
    try:
        answer = VERBS[verb](*arguments)
    except Exception as error:
        answer = f"failed: {error!r}"
    print(number, answer, flush=True)
