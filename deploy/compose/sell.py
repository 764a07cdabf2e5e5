"""Makes the topics of the shops, then ten orders a second in each of them."""

import os
import time

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

BROKERS = os.environ["KAFKA"]
SHOPS = ["north", "south", "west"]
for made in AdminClient({"bootstrap.servers": BROKERS}).create_topics([NewTopic(s, 1, 1) for s in SHOPS]).values():
    try:
        made.result()
    except KafkaException as error:
        print(error, flush=True)  # It is there already.
producer = Producer({"bootstrap.servers": BROKERS, "enable.idempotence": True})
while True:
    for shop in SHOPS:
        producer.produce(shop, b'{"item": 1}', timestamp=time.time_ns() // 1_000_000)
    producer.poll(0)
    time.sleep(0.1)
