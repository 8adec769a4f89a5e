"""The official Python SDK as a caller: delegates a task, asks how it stands, tears it down.

Environment: LAZARET_URL (…/mcp), LAZARET_TOKEN, and LAZARET_TASK, the arguments of `delegate` as
JSON. Prints one JSON document; any surprise ends it with a traceback and a status other than 0.
"""

import asyncio
import json
import os

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


def structured(result):
    assert not result.is_error, result
    assert result.content and result.content[0].type == "text", result
    return result.structured_content


async def main():
    headers = {"Authorization": f"Bearer {os.environ['LAZARET_TOKEN']}"}
    task = json.loads(os.environ["LAZARET_TASK"])
    async with httpx2.AsyncClient(headers=headers, timeout=120) as http:
        async with Client(streamable_http_client(os.environ["LAZARET_URL"], http_client=http)) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            assert tools == sorted(tools) and {"delegate", "status", "teardown"} <= set(tools), tools

            reported = []

            async def on_progress(progress, total, message):
                reported.append(message)

            delegated = structured(await client.call_tool("delegate", task, progress_callback=on_progress))
            run = delegated["run"]
            status = delegated
            for _ in range(20):
                if status["state"] == "done":
                    break
                status = structured(await client.call_tool("status", {"run": run, "wait_s": 45}))
            else:
                raise AssertionError(f"not done: {status}")
            status = structured(await client.call_tool("status", {"run": run}))

            refused = await client.call_tool("status", {"run": "../../root"})
            assert refused.is_error and refused.structured_content["code"] == "invalid_id", refused

            torn_down = structured(await client.call_tool("teardown", {"run": run}))
            assert torn_down["run"] == run, torn_down
            again = structured(await client.call_tool("teardown", {"run": run}))
            assert again["run"] == run, again
            print(
                json.dumps(
                    {
                        "client": "python",
                        "protocol": client.protocol_version,
                        "tools": tools,
                        "delegated": delegated,
                        "status": status,
                        "torn_down": again,
                        "progress": reported,
                    }
                )
            )


asyncio.run(main())
