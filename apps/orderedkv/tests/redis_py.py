"""redis-py against the service whose port is the argument, with both protocol versions."""

import sys

import redis

port = int(sys.argv[1])
for options in [{}, {"protocol": 3}, {"protocol": 2}, {"protocol": 3, "client_name": "reader"}]:
    client = redis.Redis(port=port, decode_responses=True, **options)
    assert client.ping()
    assert client.set("fruit:apple", "1") and client.mset({"fruit:fig": "2", "fruit:pear": "3"})
    assert client.get("fruit:apple") == "1" and client.get("fruit:none") is None
    assert client.mget("fruit:fig", "fruit:none") == ["2", None]
    assert client.exists("fruit:apple", "fruit:none") == 1 and client.strlen("fruit:apple") == 1
    assert client.info()["keys"] == "text of up to 512 bytes"
    pages, first = [], "-"
    while page := client.execute_command("RANGE", first, "+", "LIMIT", 1):
        pages.append(page)
        first = "(" + page[0]
    assert pages == [["fruit:apple", "1"], ["fruit:fig", "2"], ["fruit:pear", "3"]], pages
    with client.pipeline(transaction=False) as pipeline:
        for number in range(2000):
            pipeline.set(f"many:{number:05}", number)
        assert all(pipeline.execute())
    assert client.execute_command("KEYRANGE", "(many:00000", "(many:00003") == ["many:00001", "many:00002"]
    try:
        client.execute_command("FLUSHALL")
        raise AssertionError("there is no FLUSHALL")
    except redis.ResponseError as error:
        assert "unknown command" in str(error), error
    for key in client.execute_command("KEYRANGE", "-", "+"):
        assert client.delete(key) == 1
    client.close()
print("all as expected")
