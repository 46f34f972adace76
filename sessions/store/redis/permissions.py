"""What a user of the store has to be allowed, and whether it may do what is seldom allowed. Knows no other setup."""

from __future__ import annotations

from collections.abc import Iterable

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

PROBE = "ms:probe:adoption"
"""A key that is never there."""

COMMANDS = (
    *("ping", "info", "time", "select", "client|setinfo", "scan", "evalsha", "eval", "script|load"),
    *("get", "set", "getdel", "getex", "del", "unlink", "exists", "type", "rename"),
    *("expire", "expireat", "pexpire", "pttl", "incrby"),
    *("hget", "hset", "hsetnx", "hmget", "hgetall", "hdel", "hexists", "hincrby", "hkeys", "hlen", "hscan"),
    *("lindex", "lpop", "lrange", "rpush", "sadd", "srem", "scard", "sismember", "smembers"),
    *("xadd", "xrange", "xrevrange", "xtrim"),
    *("zadd", "zcard", "zcount", "zrange", "zrangebyscore", "zrem", "zremrangebyrank", "zremrangebyscore"),
    *("zrevrange", "zrevrank", "zscore", "publish", "subscribe", "unsubscribe"),
)
"""Those that every store is sent."""
OF_ADOPTION = ("dump", "restore")
"""By these the conversations of version 0.1.0 move to persons."""


def rule(commands: Iterable[str]) -> str:
    """Return what an ACL says that allows these commands on our keys and channels, and nothing else."""
    return " ".join(["~ms:*", "&ms:*", "-@all", *(f"+{command}" for command in commands)])


async def may_adopt(client: Redis) -> bool:
    """Return whether the store's user may run what moves conversations of version 0.1.0. Nothing is written.

    It is tried: the server's own answers for that, `ACL DRYRUN` and `acl_check_cmd` in scripts, are forbidden to most users, or
    end servers that are asked about commands without their arguments (Valkey 9.1).
    """
    try:
        await client.dump(PROBE)
        await client.restore(PROBE, 0, b"")
    except NoPermissionError:
        return False
    except ResponseError:  # that this is nothing to be restored
        return True
    return True
