"""The permissions that the store's user needs, and whether it has the rare ones. Knows no other setup."""

from __future__ import annotations

from collections.abc import Iterable

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

PROBE = "ms:probe:adoption"
"""A key that never exists."""

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
OF_ADOPTION = ("dump", "restore")
"""Commands that move conversations of version 0.1.0 to persons."""


def rule(commands: Iterable[str]) -> str:
    """Return an ACL that allows these commands on our keys and channels, and nothing else."""
    return " ".join(["~ms:*", "&ms:*", "-@all", *(f"+{command}" for command in commands)])


async def may_adopt(client: Redis) -> bool:
    """Return whether the store's user may run what moves conversations of version 0.1.0. Nothing is written.

    The commands are tried. `ACL DRYRUN`, and `acl_check_cmd` in scripts, are forbidden to most users, or crash the server if
    the arguments are missing (Valkey 9.1).
    """
    try:
        await client.dump(PROBE)
        await client.restore(PROBE, 0, b"")
    except NoPermissionError:
        return False
    except ResponseError:  # that this is nothing to be restored
        return True
    return True
