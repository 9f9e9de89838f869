"""Several threads of a worker ask its agent at once: one that saves, one that makes room."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from elastic.link import AgentLink, Lines, pack

LIMIT_S = 10.0


def test_each_of_several_threads_gets_its_own_answer(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        link = AgentLink(str(tmp_path / "s"), rank=0, generation=1, pid=1)
        connection, _ = listener.accept()

        def answer_the_last_first() -> None:
            lines, asked = Lines(), list[dict[str, Any]]()
            while len(asked) < 8:
                asked += [message for message in lines.feed(connection.recv(65536)) if "ask" in message]
            for message in reversed(asked):
                answer = {"granted": True, "reason": "", "value": message["ask"]}
                connection.sendall(pack({"id": message["id"], "answer": answer}))

        agent = threading.Thread(target=answer_the_last_first)
        agent.start()
        with ThreadPoolExecutor(8) as pool:
            names = [f"question {number}" for number in range(8)]
            assert [answer.value for answer in pool.map(link.ask, names)] == names
        agent.join(LIMIT_S)
        link.close()
        connection.close()
