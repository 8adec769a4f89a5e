// What a caller does, whatever its SDK: delegates a task, asks how it stands, tears it down.
//
// Environment: LAZARET_URL (…/mcp), LAZARET_TOKEN, and LAZARET_TASK, the arguments of `delegate` as
// JSON. Prints one JSON document; any surprise ends it with an error and a status other than 0.

import assert from 'node:assert/strict';

export const url = new URL(process.env.LAZARET_URL);
export const headers = { Authorization: `Bearer ${process.env.LAZARET_TOKEN}` };

function structured(result) {
  assert.ok(!result.isError, JSON.stringify(result));
  assert.equal(result.content[0].type, 'text');
  return result.structuredContent;
}

/** Runs the story with `list` and `call(name, arguments, onProgress)`. */
export async function story(client, { list, call, protocol }) {
  const tools = (await list()).tools.map((tool) => tool.name);
  assert.deepEqual(tools, [...tools].sort());
  for (const name of ['delegate', 'status', 'teardown']) assert.ok(tools.includes(name), name);

  const progress = [];
  const task = JSON.parse(process.env.LAZARET_TASK);
  const delegated = structured(await call('delegate', task, (notice) => progress.push(notice.message)));
  const { run } = delegated;
  let status = delegated;
  for (let turn = 0; status.state !== 'done'; turn += 1) {
    assert.ok(turn < 20, `not done: ${JSON.stringify(status)}`);
    status = structured(await call('status', { run, wait_s: 45 }));
  }
  status = structured(await call('status', { run }));

  const refused = await call('status', { run: '../../root' });
  assert.equal(refused.isError, true);
  assert.equal(refused.structuredContent.code, 'invalid_id');

  const torn = structured(await call('teardown', { run }));
  assert.equal(torn.run, run);
  const again = structured(await call('teardown', { run }));
  assert.equal(again.run, run);
  console.log(JSON.stringify({ client, protocol: protocol(), tools, delegated, status, torn_down: again, progress }));
}
