from __future__ import annotations

import pytest

from tests.compat.message import SCHEDULE_TOPIC, Message, encode_batch
from tests.compat.workloads import WORKLOADS, Batch, workload

ALL = [(name, version) for version, makers in WORKLOADS.items() for name in makers]


@pytest.mark.parametrize(("name", "version"), ALL)
def test_a_workload_is_the_same_for_the_same_seed_only(name: str, version: str) -> None:
    assert workload(name, version) == workload(name, version)
    assert workload(name, version).operations != workload(name, version, seed=1).operations


@pytest.mark.parametrize("version", WORKLOADS)
def test_every_delay_level_is_there(version: str) -> None:
    levels = set()
    for operation in workload("mixed", version).operations:
        messages = operation.messages if isinstance(operation, Batch) else [operation]
        levels |= {message.delay_level for message in messages if isinstance(message, Message)}
    assert levels >= {*range(1, 20), 30, 0, -1}


def test_an_unknown_workload_is_an_error() -> None:
    with pytest.raises(KeyError):
        workload("long-topics", "4.9.7")


def test_properties_are_encoded_as_the_log_holds_them() -> None:
    message = Message("t", tags="a", keys="k l", uniq_key="u", delay_level=3, properties={"WAIT": "true"})
    expected = "WAIT\x01true\x02KEYS\x01k l\x02UNIQ_KEY\x01u\x02TAGS\x01a\x02DELAY\x013\x02"
    assert message.encoded_properties(final_separator=True) == expected
    assert message.encoded_properties(final_separator=False) == expected[:-1]
    assert Message("t", properties_string="odd").encoded_properties(final_separator=True) == "odd"


def test_a_batch_is_encoded_as_a_client_sends_it() -> None:
    one = Message(SCHEDULE_TOPIC, body=b"123456789", tags="a", flag=7)
    encoded = encode_batch([one, Message(SCHEDULE_TOPIC)], final_separator=True)
    first = (
        "00000026 00000000 4bf43926 00000007 00000009" + b"123456789".hex() + "0007" + b"TAGS\x01a\x02".hex()
    )
    second = "00000016 00000000 00000000 00000000 00000000 0000"
    assert encoded == bytes.fromhex(first + second)
