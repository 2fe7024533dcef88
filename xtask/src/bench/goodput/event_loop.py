"""A service that accepts at once and queues inside, as event loops do.

Arguments: address, port, connections worked on at a time, requests per second.
"""

import asyncio
import sys

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n"
CATCH_UP_MAX_SECONDS = 0.02


async def main(address, port, at_a_time, per_second):
    now = asyncio.get_running_loop().time
    places = asyncio.Semaphore(at_a_time)
    free_at = now()

    async def work():
        # By the schedule, whatever a wake-up costs, so that the capacity does not depend on the machine.
        nonlocal free_at
        free_at = max(free_at, now() - CATCH_UP_MAX_SECONDS) + 1 / per_second
        await asyncio.sleep(free_at - now())

    async def serve(reader, writer):
        try:
            await reader.readuntil(b"\r\n\r\n")
            async with places:
                await work()
            writer.write(ANSWER)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, address, port, backlog=1024)
    async with server:
        await server.serve_forever()


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
