"""The path of a message as published Queen clients walk it: configure, push, pop, consume, ack."""

from tests.server.conftest import Conversation

DEFAULTS = {"leaseTime": 300, "retryLimit": 3, "priority": 0, "delayedProcessing": 0, "windowBuffer": 0, "maxSize": 0}
EVERYTHING = {
    "leaseTime": 17,
    "retryLimit": 5,
    "retryDelay": 250,
    "maxSize": 1000,
    "ttl": 7200,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "priority": 3,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "retentionSeconds": 86400,
    "completedRetentionSeconds": 3600,
    "retentionEnabled": True,
    "encryptionEnabled": False,
    "maxWaitTimeSeconds": 0,
}
SOON = 0.5  # seconds from a push to whoever waits for it; a poll of once a second would often miss that


def test_configure(queen: Conversation):
    seen = queen("configure")
    assert seen["plain"]["configured"] is True
    assert seen["plain"]["options"].items() >= DEFAULTS.items()
    assert seen["full"]["options"] == EVERYTHING
    assert (seen["full"]["namespace"], seen["full"]["task"]) == ("shop", "mail")
    assert "queue is required" in seen["without a name"]
    assert seen["changed"]["options"]["leaseTime"] == 30
    assert seen["kept"] == [1]
    assert seen["odd"] == ["odd"]
    assert seen["odd deleted"]["existed"] is True
    assert (seen["deleted"]["deleted"], seen["deleted"]["existed"], seen["after"]) == (True, True, [])
    assert seen["deleted again"]["existed"] is False
    assert seen["recreated"] == [2]


def test_push(queen: Conversation):
    seen = queen("push")
    (one,) = seen["one"]
    assert (one["index"], one["status"]) == (0, "queued")
    assert {"message_id", "partition_id", "transaction_id", "trace_id", "queueName"} <= one.keys()
    (popped,) = seen["popped"]
    assert popped["data"] == {"plain": "item"}
    assert popped["id"] == one["message_id"]
    assert popped["partitionId"] == one["partition_id"]
    assert popped["transactionId"] == one["transaction_id"]
    assert seen["payloads"] is True


def test_push_of_duplicates(queen: Conversation):
    seen = queen("push")
    (first,) = seen["first"]
    assert [one["status"] for one in seen["again"]] == ["queued", "duplicate", "queued"]
    assert seen["again"][1]["message_id"] == first["message_id"]
    assert [one["index"] for one in seen["again"]] == [0, 1, 2]
    assert [one["status"] for one in seen["at once"]] == ["queued", "duplicate"]
    assert len({one["message_id"] for one in seen["at once"]}) == 1
    assert seen["elsewhere"][0]["status"] == "queued"
    assert seen["called"] == [["duplicate", 1, "Duplicate transaction IDs detected"], ["success", 1]]
    assert (seen["transaction"], seen["trace"]) == ("order-7", "7c9e6679-7425-40de-944b-e07fc1f90ae7")


def test_push_of_what_cannot_be_stored(queen: Conversation):
    seen = queen("push")
    assert seen["nul"]
    assert seen["long"]
    assert (seen["fine"], seen["stored"]) == (["queued"], ["fine"])


def test_pop(queen: Conversation):
    seen = queen("pop")
    assert seen["missing queue"] == []
    assert [one["data"] for one in seen["first"]] == [0, 1, 2]
    message = {
        "id",
        "transactionId",
        "traceId",
        "data",
        "producerSub",
        "createdAt",
        "partitionId",
        "partition",
        "leaseId",
    }
    assert message <= seen["first"][0].keys()
    assert (seen["while leased"], seen["rest"], seen["after"]) == ([], [3, 4], [])


def test_pop_of_partitions(queen: Conversation):
    seen = queen("pop")
    assert seen["alone"] == ["b1", "b2"]
    assert seen["together"] == ["a1", "a2", "c1", "c2", "default"]
    changes = sum(1 for one, other in zip(seen["contiguous"], seen["contiguous"][1:], strict=False) if one != other)
    assert changes == 2, "messages of a partition stand together"
    assert (seen["leases"], seen["acked"], seen["unset"]) == (1, True, 0)


def test_pop_that_waits(queen: Conversation):
    seen = queen("pop")
    assert seen["nothing"] == []
    assert 0.4 <= seen["waited"] < 2
    assert seen["woken"] == ["woken"]
    assert seen["latency"] < SOON


def test_ack(queen: Conversation):
    seen = queen("ack")
    assert seen["nacked"]["success"] is True
    assert (seen["redelivered"], seen["acked"]["success"], seen["then"]) == ("a", True, "b")
    assert {"leaseReleased", "dlq", "queueName", "partitionName"} <= seen["acked"].keys()


def test_ack_of_a_mixed_batch(queen: Conversation):
    seen = queen("ack")
    assert len(seen["mixed"]["results"]) == 4
    assert seen["mixed dead"] == [[1, "no"]], "a whole batch has the verdict of partial_failure"
    assert seen["mixed after"] == []


def test_ack_by_word(queen: Conversation):
    seen = queen("ack")
    assert (seen["still"], seen["to dlq"], seen["dead"], seen["next"]) == ("a", True, [["a", "poison"]], ["b"])


def test_ack_of_what_is_not_there(queen: Conversation):
    seen = queen("ack")
    assert seen["unknown"] == {"success": False, "error": "Message not found"}
    assert seen["lease"] == {"success": False, "error": "Invalid or expired lease"}
    assert (seen["word"], seen["no id"], seen["fine"], seen["late"]) == (False, False, True, False)
    assert seen["not again"] == []


def test_consume(queen: Conversation):
    seen = queen("consume")
    assert (seen["each"], seen["each left"]) == ([0, 1, 2, 3, 4], [])
    assert (seen["batches"], seen["batches left"]) == ([[0, 1, 2], [3, 4, 5], [6]], [])
    assert seen["default"] == [0, 1, 2]
    assert seen["called"] == [["good", "done"], ["bad", "bad one"], ["better", "done"]]
    assert seen["stopped"] == ["one"]


def test_consume_side_by_side(queen: Conversation):
    seen = queen("consume")
    assert seen["workers"] == {str(partition): list(range(20)) for partition in range(6)}
    assert seen["overlaps"] == []


def test_consume_that_waits(queen: Conversation):
    latency = queen("consume")["latency"]
    assert len(latency) == 3
    assert max(latency) < SOON


def test_buffer(queen: Conversation):
    seen = queen("buffer")
    assert (seen["answer"], seen["full"]) == ({"buffered": True, "count": 1}, list(range(10)))
    assert (seen["early"], seen["late"]) == ([], [1, 2])
    assert (seen["waiting"], seen["left"], seen["told"]) == (3, 0, [[0, 1, 2], ["p"]])
    assert seen["end"] == [0, 1, 2, 3]


def test_namespace_and_task(queen: Conversation):
    seen = queen("namespace")
    assert (seen["task"], seen["namespace"], seen["nowhere"]) == (["sms"], ["mail"], [])
    assert (seen["group"], seen["nothing left"]) == (["mail", "sms"], [])


def test_commit_at_delivery(queen: Conversation):
    seen = queen("delivery")
    assert (seen["first"], seen["rest"], seen["after"]) == ([0, 1, 2], [3], [])
    assert set(seen["leases"]) == {""}
