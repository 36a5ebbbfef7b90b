// Runs a flow of steps in BullMQ on Node: each job waits for its child, which is the step before it.
// `separate`: the same number of jobs as plain ones, one batch after the other.
// One line of JSON is the question and the answer. A worker is a process of its own.

import { fork } from 'node:child_process';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const require = createRequire(import.meta.url);
const { FlowProducer, Queue, Worker } = require('bullmq');
const { Redis } = require('ioredis');

const BODY = 'x'.repeat(100);
const spec = JSON.parse(process.argv[2]);
const place = new URL(spec.url);
const connection = { host: place.hostname, port: Number(place.port), maxRetriesPerRequest: null };
const now = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

function work() {
  new Worker('q', async (job) => job.data, { connection, concurrency: spec.concurrency });
  process.on('disconnect', () => process.exit(0));
}

function tree(steps) {
  const job = { name: `step${steps}`, queueName: 'q', data: BODY };
  return steps === 1 ? job : { ...job, children: [tree(steps - 1)] };
}

async function completed(redis, count) {
  while ((await redis.zcard('bull:q:completed')) < count) await sleep(5);
}

async function main() {
  const redis = new Redis(spec.url);
  const child = fork(fileURLToPath(import.meta.url), [process.argv[2], 'worker']);
  await sleep(1000); // its start is not measured
  const began = now();
  if (spec.separate) {
    const queue = new Queue('q', { connection });
    for (let step = 1; step <= spec.steps; step += 1) {
      for (let left = spec.n; left > 0; left -= 1000) {
        const chunk = Array(Math.min(left, 1000)).fill({ name: `step${step}`, data: BODY });
        await queue.addBulk(chunk);
      }
      await completed(redis, step * spec.n);
    }
  } else {
    const producer = new FlowProducer({ connection });
    for (let left = spec.n; left > 0; left -= 250) {
      await producer.addBulk(Array.from({ length: Math.min(left, 250) }, () => tree(spec.steps)));
    }
    await completed(redis, spec.steps * spec.n);
  }
  const seconds = now() - began;
  child.kill('SIGKILL');
  return { seconds };
}

if (process.argv[3] === 'worker') work();
else {
  const answer = await main();
  process.stdout.write(`${JSON.stringify(answer)}\n`, () => process.exit(0));
}
