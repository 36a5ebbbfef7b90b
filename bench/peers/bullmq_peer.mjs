// Runs BullMQ on Node: the actions of actions.py, with one line of JSON as question and as answer.
// A worker is a process of its own, which sends the counts of its handler as messages.

import { fork } from 'node:child_process';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const require = createRequire(import.meta.url);
const { Queue, QueueEvents, Worker } = require('bullmq');
const { Redis } = require('ioredis');

const BODY = 'x'.repeat(100);
const URGENT = 'u'.repeat(100);
const SPIN_S = 0.0001;
const TICK_MS = 2;
const PAUSE_MS = 10;
const WARM = 10;
const CHUNK = 5000;

const spec = JSON.parse(process.argv[2]);
const place = new URL(spec.url);
const connection = { host: place.hostname, port: Number(place.port), maxRetriesPerRequest: null };
const now = () => Number(process.hrtime.bigint()) / 1e9;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const bodyOf = (tag) => String(tag).padStart(6, '0').padEnd(100, 'x');

// ---------------------------------------------------------------- the worker process

const board = { count: 0, first: 0, busy: 0, records: [] };

function spin(start) {
  while (now() - start < SPIN_S);
}

const handlers = {
  noop: async (job) => job.data,
  sleep: async (job) => {
    const start = now();
    await sleep(spec.ms);
    board.busy += now() - start;
    return job.data;
  },
  stamp: async (job) => {
    const start = now();
    board.records.push([0, start, start]);
    return job.data;
  },
  tagged: async (job) => {
    const start = now();
    await sleep(spec.ms);
    board.records.push([Number(job.data.slice(0, 6)), start, now()]);
    return job.data;
  },
  urgent: async (job) => {
    const start = now();
    if (job.data[0] === 'u') board.records.push([0, start, start]);
    else spin(start);
    return job.data;
  },
};

function work() {
  const handler = handlers[spec.handler ?? 'noop'];
  const counted = async (job) => {
    if (!board.first) board.first = now();
    board.count += 1;
    return handler(job);
  };
  new Worker('q', counted, { connection, concurrency: spec.concurrency ?? 1 });
  process.on('disconnect', () => process.exit(0));
  let sent = 0;
  setInterval(() => {
    if (board.count === sent && !board.records.length) return;
    sent = board.count;
    process.send({ ...board, at: now(), records: board.records.splice(0) });
  }, 5);
}

// ---------------------------------------------------------------- the measuring process

const workers = [];
const records = [];
const seen = [];
const until = now() + (spec.cap_s ?? 60);
let queue;
let redis;

async function open() {
  queue = new Queue('q', { connection });
  redis = new Redis(spec.url);
}

function start() {
  for (let i = 0; i < (spec.processes ?? 1); i += 1) {
    const child = fork(fileURLToPath(import.meta.url), [process.argv[2], 'worker']);
    const state = { child, count: 0, first: 0, busy: 0 };
    child.on('message', (message) => {
      Object.assign(state, { count: message.count, first: message.first, busy: message.busy });
      for (const record of message.records) records.push(record);
      const sum = (key) => workers.reduce((total, one) => total + one[key], 0);
      seen.push([message.at, sum('count'), sum('busy')]);
    });
    workers.push(state);
  }
}

const counted = () => workers.reduce((total, one) => total + one.count, 0);
const firstCall = () => Math.min(...workers.filter((one) => one.first).map((one) => one.first));

async function left() {
  const counts = [redis.llen('bull:q:wait'), redis.llen('bull:q:active')];
  counts.push(redis.zcard('bull:q:prioritized'));
  return (await Promise.all(counts)).reduce((a, b) => a + b, 0);
}

async function wait(reached, ms = TICK_MS, last = until) {
  while (!(await reached())) {
    if (now() > last) throw new Error(`not done after ${spec.cap_s ?? 60} s`);
    await sleep(ms);
  }
}

const options = () => {
  const chosen = spec.results === false ? { removeOnComplete: true } : {};
  return spec.action === 'urgent' ? { ...chosen, priority: 10 } : chosen;
};

async function put(bodies) {
  for (let at = 0; at < bodies.length; at += 1000) {
    const opts = options();
    const chunk = bodies.slice(at, at + 1000).map((data) => ({ name: 'handle', data, opts }));
    await queue.addBulk(chunk);
  }
}

async function fill() {
  const began = now();
  const limit = spec.fill_s ?? 1e9;
  for (let rest = spec.n; rest > 0 && now() - began < limit; rest -= CHUNK) {
    await put(Array(Math.min(rest, CHUNK)).fill(BODY));
  }
  return left();
}

const actions = {
  async submit() {
    await open();
    const began = now();
    if (spec.single) {
      for (let i = 0; i < spec.n; i += 1) await queue.add('handle', BODY, options());
    } else await put(Array(spec.n).fill(BODY));
    const seconds = now() - began;
    return { seconds, n: await left() };
  },

  async drain() {
    await open();
    const waiting = spec.fill ? await fill() : spec.n;
    const many = (spec.concurrency ?? 1) * (spec.processes ?? 1);
    start();
    await wait(async () => {
      if (spec.partly) return counted() >= spec.n;
      return counted() >= spec.n - 2 * many && (await left()) === 0;
    });
    const end = now();
    const stored = spec.results === false ? null : await redis.zcard('bull:q:completed');
    return { first: firstCall(), end, n: spec.partly ? counted() : spec.n, waiting, stored, seen };
  },

  async latency() {
    await open();
    start();
    const events = new QueueEvents('q', { connection });
    await events.waitUntilReady();
    const ask = async () => {
      const before = now();
      const job = await queue.add('handle', BODY, options());
      await job.waitUntilFinished(events, 5000);
      return [before, now()];
    };
    for (let i = 0; i < WARM; i += 1) await ask();
    const asked = [];
    for (let i = 0; i < spec.samples; i += 1) {
      await sleep(PAUSE_MS);
      asked.push(await ask());
    }
    await wait(() => records.length >= WARM + spec.samples);
    return { asked, starts: records.slice(WARM).map((record) => record[1]) };
  },

  async urgent() {
    await open();
    const waiting = await fill();
    start();
    await wait(() => counted() >= Math.min(50, waiting / 4));
    const asked = [];
    const last = now() + (spec.cap_s ?? 60);
    for (let i = 0; i < spec.samples; i += 1) {
      asked.push(now());
      await queue.add('handle', URGENT, { ...options(), priority: 1 });
      await wait(() => records.length > i || now() > last, TICK_MS, last + 1);
      if (records.length <= i) break;
      await sleep(PAUSE_MS);
    }
    return { asked, starts: records.map((record) => record[1]), waiting, left: await left() };
  },

  async fairness() {
    await open();
    for (const [tag, size] of spec.sizes.entries()) await put(Array(size).fill(bodyOf(tag)));
    start();
    await wait(() => {
      const counts = spec.sizes.map(() => 0);
      for (const [tag] of records) counts[tag] += 1;
      return counts.some((count, tag) => count >= spec.sizes[tag]);
    }, 200);
    return { records };
  },
};

if (process.argv[3] === 'worker') work();
else {
  let answer;
  try {
    answer = await actions[spec.action]();
  } catch (error) {
    process.stderr.write(`${error.stack}\n`);
    answer = { error: `${error.name}: ${error.message}` };
  }
  for (const { child } of workers) child.kill('SIGKILL');
  process.stdout.write(`${JSON.stringify(answer)}\n`, () => process.exit(0));
}
