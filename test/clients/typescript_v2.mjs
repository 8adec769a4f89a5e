// The TypeScript SDK, version 2, which negotiates the stateless 2026 revision.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { headers, story, url } from './caller.mjs';

const client = new Client(
  { name: 'lazaret-test', version: '1' },
  { versionNegotiation: { mode: 'auto' } },
);
const transport = new StreamableHTTPClientTransport(url, { requestInit: { headers } });
await client.connect(transport);
await story('typescript-v2', {
  list: () => client.listTools(),
  call: (name, args, onprogress) => client.callTool({ name, arguments: args }, { onprogress, timeout: 60_000 }),
  protocol: () => client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion,
});
await client.close();
