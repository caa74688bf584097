"""A real broker, and a producer, on a host: ``python -m tests.hosts.broker VERSION STORE CONF SECONDS RATE``.

Its broker.conf is written to CONF. It prints ``ready`` when it takes messages; SECONDS later it stops in good
order, and prints how many it took.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.compat.broker import Broker
from tests.compat.conf import conf_text
from tests.compat.story import CONFIG, TOPICS, Producer


def _run(version: str, store: Path, conf: Path, seconds: float, rate: int) -> None:
    conf.write_text(conf_text({**CONFIG, "storePathRootDir": store}), encoding="utf-8")
    with Broker(version, store, CONFIG) as broker:
        for topic, queues in TOPICS.items():
            broker.create_topic(topic, queues)
        print("ready", flush=True)
        with Producer(broker, rate) as producer:
            time.sleep(seconds)
            sent = producer.finish()
        broker.wait_dispatched()
    print(f"stopped after {sent} messages", flush=True)


if __name__ == "__main__":
    _run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
