"""The permissions that the store's user needs."""

from __future__ import annotations

from collections.abc import Iterable

COMMANDS = (
    *(
        "ping",
        "info",
        "time",
        "select",
        "client|setinfo",
        "memory|usage",
        "scan",
        "evalsha",
        "eval",
        "script|load",
    ),
    *("get", "set", "getdel", "getex", "del", "unlink", "exists", "type", "rename"),
    *("expire", "expireat", "pexpire", "pttl", "incrby"),
    *("hget", "hset", "hsetnx", "hmget", "hgetall", "hdel", "hexists", "hincrby", "hkeys", "hlen", "hstrlen"),
    *("hrandfield", "hscan"),
    *("lindex", "lpop", "lrange", "rpush", "sadd", "srem", "scard", "sismember", "smembers"),
    *("xadd", "xrange", "xrevrange", "xtrim"),
    *("zadd", "zcard", "zcount", "zrange", "zrangebyscore", "zrem", "zremrangebyrank", "zremrangebyscore"),
    *("zrevrange", "zrevrank", "zscore", "publish", "subscribe", "unsubscribe"),
)
"""Commands that every store is sent."""


def rule(commands: Iterable[str]) -> str:
    """Return an ACL that allows these commands on our keys and channels, and nothing else."""
    return " ".join(["~ms:*", "&ms:*", "-@all", *(f"+{command}" for command in commands)])
