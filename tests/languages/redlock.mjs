// node-redlock, told what to do line by line: `NUMBER VERB [TTL]`, answered by `NUMBER OUTCOME [TOKEN]`.
//
// Arguments: the folder of node_modules, the port of the server and the key.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, port, key] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { Redis } = require("ioredis");
const { default: Redlock, ResourceLockedError } = require("redlock");

const client = new Redis({ host: "127.0.0.1", port: Number(port) });
const redlock = new Redlock([client], { retryCount: 0 });
let lock;

// What became of an operation, or `unless` if the key is someone else's or nobody's: the library has one error for
// that and for a server that fails.
async function outcome(operation, unless) {
  try {
    return await operation();
  } catch (error) {
    const last = await error.attempts?.at(-1);
    const against = [...(last?.votesAgainst.values() ?? [])];
    if (against.length > 0 && against.every((vote) => vote instanceof ResourceLockedError)) {
      return unless;
    }
    throw error;
  }
}

function acquire(ttl, retryCount) {
  return outcome(async () => {
    lock = await redlock.acquire([key], Number(ttl), { retryCount });
    return `held ${lock.value}`;
  }, "refused");
}

const verbs = {
  try: (ttl) => acquire(ttl, 0),
  wait: (ttl) => acquire(ttl, -1),
  release: () =>
    outcome(async () => {
      await lock.release();
      return "released";
    }, "not-owned"),
};

await client.ping();
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const [number, verb, ...args] = line.split(" ");
  const answer = await verbs[verb](...args).catch((error) => `failed: ${error}`);
  console.log(number, answer);
}
client.disconnect();
