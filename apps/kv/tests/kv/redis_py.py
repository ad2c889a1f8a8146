"""redis-py against a server at the port that is given: what its users do, every answer checked."""

import sys
import time

import redis


def check(protocol: int, port: int) -> None:
    client = redis.Redis(port=port, protocol=protocol, decode_responses=True)
    client.flushall()
    assert client.ping()
    assert client.set("a", "1", ex=100, nx=True) and client.set("a", "2", nx=True) is None
    assert 98 <= client.ttl("a") <= 100
    assert client.incrby("a", 41) == 42 and client.getex("a", persist=True) == "42" and client.ttl("a") == -1
    client.hset("h", mapping={"f": "1", "g": "x" * 1000})
    assert client.hgetall("h") == {"f": "1", "g": "x" * 1000}
    client.rpush("l", *range(10))
    assert client.lrange("l", 2, 4) == ["2", "3", "4"] and client.lpos("l", "7") == 7
    client.sadd("s", "a", "b", "c")
    assert set(client.smembers("s")) == {"a", "b", "c"}
    client.zadd("z", {"a": 1, "b": 2.5, "c": -1})
    assert client.zrange("z", 0, -1) == ["c", "a", "b"] and client.zscore("z", "b") == 2.5
    assert len(client.zrange("z", 0, -1, withscores=True)) == 3
    pipe = client.pipeline(transaction=True)
    for number in range(1000):
        pipe.set(f"key:{number}", number)
    assert all(pipe.execute())
    assert sorted(client.scan_iter("key:*", count=100)) == sorted(f"key:{number}" for number in range(1000))
    client.transaction(lambda pipe: (pipe.multi(), pipe.incr("key:1")), "key:1")
    assert client.get("key:1") == "2"
    with client.pipeline() as pipe:
        pipe.watch("key:2")
        client.set("key:2", "other")
        pipe.multi()
        pipe.set("key:2", "mine")
        try:
            pipe.execute()
            raise AssertionError("the key was changed by another client")
        except redis.WatchError:
            pass
    try:
        client.lpush("a", 1)
        raise AssertionError("a string takes no element")
    except redis.ResponseError as error:
        assert str(error).startswith("WRONGTYPE")
    client.set("short", "x", px=30)
    time.sleep(0.05)
    assert client.get("short") is None
    assert client.info("memory")["local_limit"] == 64 << 20
    assert client.config_get("maxmemory") == {"maxmemory": "0"}
    assert client.client_setname("me") and client.client_getname() == "me"
    assert client.dbsize() == len(client.keys("*"))
    assert client.command_count() > 100


for version in (2, 3):
    check(version, int(sys.argv[1]))
print("all as expected")
