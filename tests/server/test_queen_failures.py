"""What goes wrong, as published Queen clients see it: leases that end, retries, dead letters, transactions undone."""

from tests.server.conftest import Conversation


def test_renewed_leases_last(queen: Conversation):
    seen = queen("renew")
    assert seen["by message"]["success"] is True
    assert seen["by message"]["newExpiresAt"].endswith("Z")
    assert (seen["by id"], seen["kept"], seen["acked"]) == (True, [], True)
    assert (seen["many"], seen["calls"], seen["kept all"], seen["all acked"]) == (["message", "p"], 1, [], True)


def test_expired_leases_do_not(queen: Conversation):
    seen = queen("renew")
    assert (seen["again"], seen["another lease"], seen["in time"]) == ("message", True, True)
    assert seen["late"] == {"success": False, "error": "Invalid or expired lease"}


def test_what_is_not_leased_cannot_be_renewed(queen: Conversation, version: str):
    seen = queen("renew")
    for renewal in (seen["released"], seen["nobody's"]):
        assert renewal["newExpiresAt"] is None if version == "0.15.0" else renewal["success"] is False


def test_a_consumer_renews_while_it_works(queen: Conversation):
    seen = queen("renew")
    assert (seen["handled"], seen["meanwhile"], seen["afterwards"]) == (["message"], [], [])


def test_retries_then_dead_letters(queen: Conversation, version: str):
    seen = queen("dlq")
    assert seen["tried"] == ["good", "poison", "poison", "poison", "better"]
    assert seen["left"] == []
    (dead,) = seen["dead"]["messages"]
    assert seen["dead"]["total"] == 1
    assert (dead["data"], dead["partition"]) == ("poison", "Default")
    # 0.15 does not say why.
    assert dead["errorMessage"] if version == "0.15.0" else "cannot read it" in dead["errorMessage"]


def test_one_failure_in_a_batch(queen: Conversation):
    seen = queen("dlq")
    assert seen["each tried"][:3] == [0, 1, 2]
    assert (set(seen["each tried"]), seen["each tried"].count(2)) == ({0, 1, 2, 3, 4}, 2)
    assert (seen["each left"], seen["each dead"]) == ([], [])


def test_retries_of_a_batch(queen: Conversation):
    seen = queen("dlq")
    assert (seen["calls"], seen["recovered"], seen["dead of it"]) == ([100, 100, 100], [], [])
    assert seen["failing calls"][:2] == [[0, 1, 2], [0, 1, 2]]
    assert seen["all dead"] == [0, 1, 2]


def test_dead_letters_of_a_group(queen: Conversation):
    seen = queen("dlq")
    assert (seen["of a"], seen["of b"], seen["alive"]) == ([0, 1, 2, 3, 4], [], [0, 1, 2, 3, 4])
    assert seen["page"] == [[3, "reason 3"], [2, "reason 2"]], "the latest first"
    assert seen["total"] == 5


def test_transaction(queen: Conversation):
    seen = queen("transaction")
    assert seen["answer"]["success"] is True
    assert [one["type"] for one in seen["answer"]["results"]] == ["ack", "ack", "push", "push", "push"]
    assert (seen["source"], seen["target"], seen["other"]) == ([], ["x", "y"], ["z"])
    assert seen["many"] == ["a1", "a2", "b1", "b2", "c1", "c2"]


def test_transaction_over_two_leases(queen: Conversation):
    """Clients of 0.15 name them beside the operations."""
    assert queen("transaction")["two leases"] == [2, True]


def test_transaction_undone(queen: Conversation):
    seen = queen("transaction")
    assert "Message not found" in seen["rollback"]
    assert (seen["not pushed"], seen["still mine"]) == ([], True)
    assert "no operations" in seen["nothing"]


def test_transaction_of_a_group(queen: Conversation):
    seen = queen("transaction")
    assert (seen["a then"], seen["queue mode"]) == ([2], [1, 2])


def test_transaction_with_a_lost_lease(queen: Conversation):
    seen = queen("transaction")
    assert "lease" in seen["lost"]
    assert seen["not there"] == []
