// The TypeScript SDK, version 1: speaks the 2025 revisions.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { headers, story, url } from './caller.mjs';

const client = new Client({ name: 'lazaret-test', version: '1' });
const transport = new StreamableHTTPClientTransport(url, { requestInit: { headers } });
await client.connect(transport);
await story('typescript-v1', {
  list: () => client.listTools(),
  call: (name, args, onprogress) =>
    client.callTool({ name, arguments: args }, undefined, { onprogress, timeout: 60_000 }),
  protocol: () => transport.protocolVersion,
});
await client.close();
