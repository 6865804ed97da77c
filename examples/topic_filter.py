"""Topic filters: a subscriber names the topics that it wants, by name and by pattern, and gets their records in order.

    yirangmq serve &
    python examples/topic_filter.py unix:yirang-data/yirangmq.sock

'*' is any text, '?' one character, '+' one level without a dot."""

import sys

import yirangmq

TOPICS = ("weather.kr.seoul", "weather.kr.busan", "weather.jp.tokyo", "weather.kr.seoul.wind", "roads.kr.seoul", "end")

if __name__ == "__main__":
    with yirangmq.connect(sys.argv[1]) as client:
        receipts = client.topics.publish_many((topic, n) for n, topic in enumerate(TOPICS))
        for wanted in (["weather.kr.+"], ["weather.*"], ["*.seoul", "weather.jp.tokyo"]):
            print(", ".join(wanted))
            with client.topics.subscribe([*wanted, "end"], sequence=receipts[0].sequence) as records:
                for record in records:
                    if record.topic == "end":
                        break
                    print(f"    {record.value()} {record.topic}")
